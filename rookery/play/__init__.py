"""Watching and recording a trained agent."""

import os

# pygame greets on standard output, which is for frames and results alone.
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
