"""What some tests need of the machine beyond Python packages."""

from __future__ import annotations

import os

import pytest


def need(there: bool, remedy: str) -> None:
    """Without it a test is skipped; in CI, where `make system-deps` was called, it fails."""
    if there:
        return
    if os.environ.get("ROOKERY_CI"):
        raise AssertionError(remedy)
    pytest.skip(remedy)
