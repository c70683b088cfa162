"""The rules of the layout: what may be imported where, and what must not be there at all."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rookery

PACKAGE = Path(rookery.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
HOMES = {"mpi4py": "mpi", "ray": "ray", "grpc": "grpc", "cryptography": "tls"}
"""Packages that only files of one name, or of one that begins so, may import."""
PICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
HEAVY = (
    "torch",
    "tensorboard",
    "jsonargparse",
    "yaml",
    "safetensors",
    "setproctitle",
    "lz4",
    "ale_py",
    "Box2D",
    "pygame",
    "mpi4py",
    "ray",
    "grpc",
    "google.protobuf",
    "cryptography",
)
"""What `import rookery` must do without."""


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module a file imports, at its top or anywhere inside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def is_literal(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def pickle_uses(tree: ast.AST) -> Iterator[str]:
    """Whatever in a file reads or writes pickles."""
    yield from (name for name in imports(tree) if name.partition(".")[0] in PICKLERS)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if "allow_pickle" in given and not is_literal(given["allow_pickle"], False):
            yield f"allow_pickle in line {node.lineno}"
        if "weights_only" in given and not is_literal(given["weights_only"], True):
            yield f"weights_only in line {node.lineno}"
        if ast.unparse(node.func) == "torch.load" and "weights_only" not in given:
            yield f"torch.load without weights_only=True in line {node.lineno}"


def parse(path: Path) -> ast.AST:
    return ast.parse(path.read_text("utf-8"), str(path))


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 30


def test_every_module_knows_its_room() -> None:
    homeless = {"utils", "util", "common", "helpers", "helper", "misc"}
    names = {path: {*path.relative_to(PACKAGE).with_suffix("").parts} for path in SOURCES}
    assert [path for path, parts in names.items() if parts & homeless] == []


def strays(tree: ast.AST, stem: str) -> list[str]:
    """Imports of packages that a file of this name may not import."""
    tops = {name.partition(".")[0] for name in imports(tree)}
    return sorted(top for top in tops if top in HOMES and HOMES[top] != stem.partition("_")[0])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_room_allows(path: Path) -> None:
    tree = parse(path)
    assert strays(tree, path.stem) == []
    assert list(pickle_uses(tree)) == []


def test_operations_import_nothing_but_torch() -> None:
    allowed = {"__future__", "collections", "math", "torch", "typing"}
    for path in (PACKAGE / "ops").glob("*.py"):
        others = {name.partition(".")[0] for name in imports(parse(path))} - allowed
        ours = {name for name in imports(parse(path)) if name.startswith("rookery.ops")}
        assert others - ({"rookery"} if ours else set()) == set(), path


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=trust)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
    ],
)
def test_the_gate_sees_pickles(source: str) -> None:
    assert list(pickle_uses(ast.parse(source)))


def test_the_gate_lets_the_rest_pass() -> None:
    source = "import json\ntorch.load(path, weights_only=True)\nnp.load(path, allow_pickle=False)"
    assert list(pickle_uses(ast.parse(source))) == []


def test_the_gate_sees_strays() -> None:
    tree = ast.parse("def f():\n    from ray.util import queue")
    assert strays(tree, "local") == ["ray"]
    assert strays(tree, "ray") == []
    assert strays(tree, "ray_host") == []


IMPORT = """
import json, sys, time
heavy = json.loads(sys.argv[1])
for name in heavy:
    sys.modules[name] = None     # importing it now fails
begun = time.process_time()
import rookery
print(json.dumps([time.process_time() - begun, rookery.__version__]))
"""


def test_import_rookery_is_light() -> None:
    """Neither torch nor any of the tools; CPU seconds, so that a busy machine does not matter."""
    out = subprocess.run(
        [sys.executable, "-c", IMPORT, json.dumps(HEAVY)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=PACKAGE.parent,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert out.returncode == 0, out.stderr
    secs, version = json.loads(out.stdout)
    assert version == rookery.__version__
    assert secs < 1.0


WITHOUT_TORCH = ("cli.main", "engines.fork_server", "engines.child", "envs.process_worker")
"""Modules that processes begin with, or get by on."""


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_some_modules_do_without_torch(module: str) -> None:
    out = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules['torch'] = None; import rookery.{module}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=PACKAGE.parent,
    )
    assert out.returncode == 0, out.stderr


def test_what_is_imported_late_is_listed_and_there() -> None:
    assert rookery.train.__module__ == "rookery.training"
    for name in rookery.__all__:
        assert getattr(rookery, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = rookery.trian


WALLS = {"rookery.cli": {"cli", "__main__.py"}, "rookery.doctor": {"doctor", "cli", "runs", "tune"}}
"""Who may import a room, beside what stands in no room."""


@pytest.mark.parametrize("room", WALLS)
def test_walls(room: str) -> None:
    """Nothing below the command line knows it, and no role examines the machine."""
    alone = {"__init__.py", "training.py", "agent.py"} if room != "rookery.cli" else set()
    for source in SOURCES:
        if source.relative_to(PACKAGE).parts[0] not in WALLS[room] | alone:
            asked = [name for name in imports(ast.parse(source.read_text())) if room in name]
            assert not asked, f"{source} imports {asked}"
