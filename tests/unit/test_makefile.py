"""``make demo`` on a machine with nothing yet: it says what it installs, and pip shows progress."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
STAMPS = (".venv/.installed", ".venv/.installed-test", ".venv-peers/.installed")
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip "*) shift 2; echo "pip $*, constraint '$PIP_CONSTRAINT'" ;;
esac
"""
"""Stands for Python: makes environments, and says how its pip was called."""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that an installation needs."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/peers.txt").write_text("")
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def make(checkout: Path, stamp: str, out: int) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHON": str(checkout / "python")}
    command = ["make", "-C", str(checkout), stamp]
    subprocess.run(command, env=environment, stdout=out, stderr=out, check=True, timeout=60)


@pytest.mark.parametrize("stamp", STAMPS)
def test_it_says_what_is_installed(stamp: str, checkout: Path) -> None:
    with (checkout / "log").open("wb") as log:
        make(checkout, stamp, log.fileno())
    lines = (checkout / "log").read_text().splitlines()
    said = next(n for n, line in enumerate(lines) if line.startswith("installing "))
    assert f"into {stamp.partition('/')[0]}; this usually takes a few minutes" in lines[said]
    called = lines[said + 1]
    assert called.startswith("pip --disable-pip-version-check -q install "), "quiet in a log"
    assert ("constraint ''" in called) == ("peers" in stamp)
    assert (checkout / stamp).exists()


def test_pip_shows_its_progress_on_a_terminal(checkout: Path) -> None:
    master, terminal = pty.openpty()
    make(checkout, STAMPS[0], terminal)
    os.close(terminal)
    shown = ""
    with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
        while chunk := os.read(master, 1 << 16):
            shown += chunk.decode()
    os.close(master)
    assert "pip --disable-pip-version-check install -e .[mpi,grpc]" in shown
