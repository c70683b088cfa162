"""What flows between roles, and the doors it flows through."""
