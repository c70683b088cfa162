"""Roles: who acts, who learns, who evaluates. They know neither formations nor engines."""
