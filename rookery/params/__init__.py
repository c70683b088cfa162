"""Where weights live and gradients meet."""
