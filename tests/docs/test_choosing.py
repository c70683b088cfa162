"""What docs/choosing.md says of formations and engines is what the validator accepts."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

from rookery.formations.settings import formation_names
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "make" / "choosing.py"))


def test_the_tables_are_current(made: dict[str, Any]) -> None:
    page = made["on_page"](made["PAGE"].read_text("utf-8"))
    assert page == made["tables"](), "python docs/make/choosing.py --write"


def test_what_is_known_to_be_so(made: dict[str, Any]) -> None:
    rows = {line.split("`")[1]: line for line in made["places"]().splitlines()[2:]}
    assert [*rows] == formation_names()
    cells = {name: [cell.strip() for cell in row.split("|")[2:-1]] for name, row in rows.items()}
    assert cells["hogwild"] == ["one worker", "yes", "", "one node", "", "one node", ""]
    assert cells["sync"][:4] == ["yes", "yes", "yes", "a fixed number"]
    assert cells["sync"][4:] == ["a fixed number", "a host a node", "ranks"]
    assert cells["central"][:4] == ["yes", "yes", "", "a fixed number or `MIN:MAX`"]
    assert cells["central"][4] == "a fixed number or more actors"
    assert not made["learns"]("sync", "dqn")
    assert made["learns"]("replay", "dqn")
