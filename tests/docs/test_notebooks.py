"""The notebooks of the docs: executed from the first cell to the last, they show what they say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "notebooks" / "first-run.ipynb"


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The outputs of each code cell."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place)
    client.execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
def test_the_first_run(executed: list[Any]) -> None:
    trained, metrics, plot, played = executed
    said = "".join(output.text for output in trained if output.output_type == "stream")
    assert "\r" in said, "one line that changes"
    assert " steps/s" in said
    assert "memory: about " in said
    assert "Traceback" not in said
    (table,) = metrics
    assert "rollout/return_mean" in table.data["text/html"]
    assert table.data["text/html"].count("<tr") == 1 + 5
    (picture,) = plot
    assert len(picture.data["image/png"]) > 10_000
    (score,) = played
    assert float(score.data["text/plain"]) > 50


def test_no_output_is_kept() -> None:
    """What a notebook shows is made by who opens it; kept outputs grow old."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
