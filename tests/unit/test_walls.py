"""A line of code knows its room: what engines, carriers and roles must not know.

Formations are data, so no engine and no role may ask which one it is in, nor which algorithm; and
an engine or a carrier knows roles only by their nodes' attributes. Each wall is shown to hold what
it should.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rookery
from rookery.formations.settings import formation_names

PACKAGE = Path(rookery.__file__).parent
ROOMS = ("engines", "carriers", "roles")
SAME_AS_A_ROLE = {"replay"}
"""Formations whose name is a role's too; that is forbidden where roles are."""
ROLES = {"actor", "learner", "worker", "replay", "evaluator", "inference", "server", "recorder"}
TO_COME = {"paramserver"}


def docstrings(tree: ast.AST) -> set[int]:
    """The constants that only explain."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def words(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Strings that code may act on, f-strings' parts among them."""
    silent = docstrings(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in silent:
            continue
        if isinstance(node.value, str):
            yield node.value.rstrip("-"), node.lineno


def asks_for_a_config(tree: ast.AST) -> Iterator[str]:
    """``isinstance`` of a formation's or an algorithm's settings, and the choice itself."""
    for node in ast.walk(tree):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called == "isinstance" and "Config" in ast.unparse(node):
            yield f"{ast.unparse(node)} in line {node.lineno}"
        if isinstance(node, ast.Attribute) and node.attr in ("formation", "algo"):
            yield f"{ast.unparse(node)} in line {node.lineno}"


def probes(tree: ast.AST) -> Iterator[str]:
    """``getattr`` and ``hasattr`` of a name written down: asking an object what it is."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("getattr", "hasattr"):
            continue
        if isinstance(node.args[1], ast.Constant):
            yield f"{ast.unparse(node)} in line {node.lineno}"


def names_a_formation(tree: ast.AST) -> Iterator[str]:
    known = ({*formation_names()} | TO_COME) - SAME_AS_A_ROLE
    yield from (f"{word} in line {line}" for word, line in words(tree) if word in known)


def names_a_role(tree: ast.AST) -> Iterator[str]:
    yield from (f"{word} in line {line}" for word, line in words(tree) if word in ROLES)


Wall = Callable[[ast.AST], Iterator[str]]
WALLS: dict[str, tuple[Wall, tuple[str, ...], str]] = {
    "no config": (asks_for_a_config, ROOMS, "if isinstance(config, ReplayConfig): pass"),
    "no choice": (asks_for_a_config, ROOMS, "wiring = WIRINGS[config.formation]"),
    "no probe": (probes, ROOMS, "save = getattr(formation, 'save_replay', False)"),
    "no formation": (names_a_formation, ROOMS, "if name == 'allreduce': pass"),
    "no role": (names_a_role, ("engines", "carriers"), "ACTING = ('actor', 'worker')"),
    "no role's name": (names_a_role, ("engines", "carriers"), "part = f'actor-{replica}'"),
}
"""What must not be, in which rooms, and code that has it."""


@pytest.mark.parametrize("name", WALLS)
def test_the_wall_stands(name: str) -> None:
    wall, rooms, _ = WALLS[name]
    for room in rooms:
        for path in sorted((PACKAGE / room).glob("*.py")):
            assert list(wall(ast.parse(path.read_text("utf-8")))) == [], path


@pytest.mark.parametrize("name", WALLS)
def test_the_wall_holds_what_it_should(name: str) -> None:
    wall, _, bad = WALLS[name]
    assert list(wall(ast.parse(bad)))


def test_what_may_be_written() -> None:
    fine = '"""The learner of formation async."""\nvalue = getattr(rng, name)\nx = "no such actor"'
    for wall, _, _ in WALLS.values():
        assert list(wall(ast.parse(fine))) == []


def test_links_are_known_in_one_place() -> None:
    """Only engines and carriers import carriers; ports and roles do not know what carries them."""
    free = {"carriers", "engines"}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] in free:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            assert not (module or "").startswith("rookery.carriers"), path


def test_roles_import_no_engine() -> None:
    for path in sorted((PACKAGE / "roles").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            assert not (module or "").startswith("rookery.engines"), path
