"""Arrays and JSON as bytes: what the files of a checkpoint hold.

Arrays are written in the safetensors format, streamed and in a stable order, so that identical
arrays give identical bytes; they are read by the safetensors library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rookery.core.errors import UserError

if TYPE_CHECKING:  # torch takes a second to import; listing runs must not wait for it
    import torch

    from rookery.core.spec import Array

_SAFETENSORS_TYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
}


METADATA = "__metadata__"
"""Where the header of a safetensors file has text of its writer's."""

SavedArrays: TypeAlias = "dict[str, Array | torch.Tensor]"


class DamagedError(UserError):
    """A checkpoint is not what its manifest says: truncated, altered, incomplete or not ours."""


def safetensors_chunks(
    part: str,
    arrays: Mapping[str, Array | torch.Tensor],
    metadata: Mapping[str, str] | None = None,
) -> Iterator[memoryview]:
    """The bytes of a safetensors file, one array at a time and without copying CPU memory.

    The library's own writer would need a second pass for the checksum, refuses tied weights, and
    reports a full disk only as text. Widest types first, then by name: the order it uses too.
    """
    tensors = {name: _as_tensor(part, name, array) for name, array in arrays.items()}
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name in order:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        dtype = _SAFETENSORS_TYPES[_dtype_name(tensor)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for name in order:
        yield _memory(tensors[name])


def _memory(tensor: torch.Tensor) -> memoryview:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def is_tensor(array: Array | torch.Tensor) -> bool:
    """Whether ``array`` is a torch tensor rather than a NumPy array."""
    import torch

    return isinstance(array, torch.Tensor)


def _as_tensor(part: str, name: str, array: Array | torch.Tensor) -> torch.Tensor:
    import torch

    if isinstance(array, torch.Tensor):
        tensor = array
    else:
        plain = np.asarray(array)
        if plain.dtype.name not in _SAFETENSORS_TYPES:
            raise TypeError(f"{part}: array '{name}' has the type {plain.dtype}, not saveable")
        native = plain.dtype.newbyteorder("=")
        tensor = torch.from_numpy(np.require(plain, native, requirements=["C", "W"]))
    if _dtype_name(tensor) not in _SAFETENSORS_TYPES or tensor.layout != torch.strided:
        raise TypeError(f"{part}: tensor '{name}' ({tensor.dtype}, {tensor.layout}) not saveable")
    return tensor


def read_arrays(path: Path, numpy: set[str]) -> dict[str, Array | torch.Tensor]:
    """The arrays of a safetensors file; those named in ``numpy`` as NumPy arrays."""
    from safetensors import SafetensorError, safe_open

    arrays: dict[str, Array | torch.Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name).clone()  # not a view of the mapped file
                arrays[name] = tensor.numpy() if name in numpy else tensor
    except (OSError, SafetensorError) as error:
        raise DamagedError(f"{path.name} cannot be read ({error})") from error
    return arrays


def read_safetensors(path: Path) -> SavedArrays:
    """The tensors of any safetensors file, which no manifest vouches for."""
    return read_arrays(path, set())


def json_bytes(part: str, data: dict[str, Any]) -> bytes:
    """``data`` as JSON text; refuses what would not come back equal."""
    _check_keys(part, data)
    try:
        return json.dumps(data).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(f"{part}: its data is not JSON: {error}") from error


def _check_keys(where: str, data: Any) -> None:
    """JSON would silently turn other keys into strings, and a resumed run would miss them."""
    if isinstance(data, dict):
        for key, value in data.items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: the key {key!r} of its data is not a string")
            _check_keys(f"{where}.{key}", value)
    elif isinstance(data, list | tuple):
        for value in data:
            if isinstance(value, dict | list | tuple):
                _check_keys(where, value)
