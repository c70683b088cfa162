"""Memory that processes share without locks is only for processors that keep stores in order."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from rookery.carriers.shared_memory import check_store_order
from rookery.cli.main import main


@pytest.mark.parametrize("machine", ["x86_64", "AMD64"])
def test_processors_that_keep_stores_in_order_are_fine(machine: str) -> None:
    check_store_order(machine)


def test_others_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    words = ["--engine", "local", "--envs", "2", "--run", str(tmp_path / "run"), "--quiet"]
    assert main(["train", "CartPole-v1", *words]) == 2
    said = capsys.readouterr().err
    assert "this is aarch64; use --engine inline, or mpi" in said
    assert said.count("\n") == 1
