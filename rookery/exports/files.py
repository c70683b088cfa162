"""The acting network as a file: ``.onnx`` for ONNX runtimes, ``.pt2`` for torch.export.

::

    exported = export(find_trained("runs/first"), ".onnx")
    exported.data, exported.check         # written nowhere yet; already compared with the policy
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch

from rookery.core.errors import UserError
from rookery.core.spec import Arrays
from rookery.core.tensors import Tensors
from rookery.exports.acting import ActingNetwork
from rookery.exports.check import compare, made_up
from rookery.runs.trained import Trained

NOTE = "rookery"
"""Under which key an ONNX file, and as which .json a .pt2 file, tells where it is from."""

_EXAMPLE_ROWS = 3
"""Any number but 1, which torch.export would take for the only one."""


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported policy."""

    data: bytes
    """Content of the file."""
    inputs: dict[str, str]
    """What to give, as ``float32 [batch, 4]`` by name."""
    outputs: dict[str, str]
    """What comes out."""
    check: str
    """How it was compared with the policy."""


def export(trained: Trained, suffix: str) -> Exported:
    """Export one policy as the kind of file that ``suffix`` names, and compare it."""
    policy = copy.deepcopy(trained.policy).requires_grad_(False).eval()
    policy.refreshed()  # derived numbers are made anew, as constants of the export
    network = ActingNetwork(policy).eval()
    rng = np.random.default_rng(0)
    example = {
        name: torch.from_numpy(array)
        for name, array in made_up(network, _EXAMPLE_ROWS, rng).items()
    }
    with _quiet(), torch.no_grad():
        outputs = network(example)
        data, run, check = _KINDS[suffix](network, example, list(outputs), _note(trained))
    difference = compare(network, run) if run is not None else None
    same = "" if difference is None else f" gives what the policy gives, within {difference:.1e}"
    return Exported(data, _described(example), _described(outputs), check + same)


def check_packages(suffix: str) -> None:
    """Refuse before any work if a package is missing."""
    for package in ("onnx", "onnxscript") if suffix == ".onnx" else ():
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"export to {suffix} needs the package {package}; "
                "`pip install 'rookery[export]'` brings it (.pt2 needs nothing more)"
            )


def _note(trained: Trained) -> str:
    note = {
        "name": trained.name,
        "task": trained.env.id,
        "steps": trained.steps,
        "deterministic": trained.eval.deterministic,
        "rookery": metadata.version("rookery"),
    }
    return json.dumps(note)


def _described(tensors: Tensors) -> dict[str, str]:
    return {
        name: f"{str(tensor.dtype).removeprefix('torch.')} "
        f"[{', '.join(['batch', *map(str, tensor.shape[1:])])}]"
        for name, tensor in tensors.items()
    }


Run = Callable[[Arrays], Arrays]
Kind = Callable[[ActingNetwork, Tensors, list[str], str], tuple[bytes, Run | None, str]]


def _program(network: ActingNetwork, example: Tensors) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    shapes = ({name: {0: batch} for name in example},)
    program: torch.export.ExportedProgram = _exportable(
        lambda: torch.export.export(network, (example,), dynamic_shapes=shapes, strict=False)
    )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # lines of the source, with paths of this machine
    return program


def _exportable(export: Callable[[], Any]) -> Any:
    """Torch's many pages about what it could not export as one line."""
    try:
        return export()
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0][:200] if lines else type(error).__name__
        raise UserError(
            f"the network cannot be exported ({reason}); a torso of your own must not branch on "
            "the values of its inputs"
        ) from error


def _pt2(
    network: ActingNetwork, example: Tensors, outputs: list[str], note: str
) -> tuple[bytes, Run | None, str]:
    program = _program(network, example)
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={f"{NOTE}.json": note})
    data = file.getvalue()
    loaded = torch.export.load(io.BytesIO(data)).module()

    def run(inputs: Arrays) -> Arrays:
        with torch.no_grad():
            found = loaded({name: torch.from_numpy(array) for name, array in inputs.items()})
        return {name: tensor.numpy() for name, tensor in found.items()}

    return data, run, "the file, loaded back by torch.export,"


def _onnx(
    network: ActingNetwork, example: Tensors, outputs: list[str], note: str
) -> tuple[bytes, Run | None, str]:
    shapes = ({name: {0: "batch"} for name in example},)
    onnx_program = _exportable(
        lambda: torch.onnx.export(
            _program(network, example),
            (example,),
            input_names=list(example),
            output_names=outputs,
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
    )
    for node in onnx_program.model.graph.all_nodes():
        node.metadata_props.clear()  # lines of the source, with paths of this machine
    onnx_program.model.metadata_props[NOTE] = note
    model = onnx_program.model_proto
    data = model.SerializeToString()
    if importlib.util.find_spec("onnxruntime") is None:
        import onnx

        onnx.checker.check_model(model, full_check=True)
        return data, None, "onnx finds the file well formed; with onnxruntime it is run as well"
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(inputs: Arrays) -> Arrays:
        return dict(zip(outputs, session.run(outputs, inputs), strict=True))

    return data, run, f"the file, run by onnxruntime {onnxruntime.__version__},"


_KINDS: dict[str, Kind] = {".onnx": _onnx, ".pt2": _pt2}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks about packages and names that do not matter here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
