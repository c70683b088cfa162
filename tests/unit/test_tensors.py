"""Arrays as tensors: shared where that changes nothing, and always laid out alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rookery.core.spec import Array
from rookery.core.tensors import as_tensor

CPU = torch.device("cpu")


def at_address(offset: int, dtype: type = np.float32) -> Array:
    """A 4 x 4 array that begins ``offset`` bytes after a multiple of 64."""
    memory = np.zeros(4 * 4 * 8 + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    size = 16 * np.dtype(dtype).itemsize
    array: Array = memory[begin : begin + size].view(dtype).reshape(4, 4)
    array[:] = np.arange(16).reshape(4, 4)
    return array


@pytest.mark.parametrize("offset", [0, 4, 16, 32])
@pytest.mark.parametrize("turned", [False, True])
def test_numbers_lie_as_torchs_own(offset: int, turned: bool) -> None:
    array = at_address(offset)
    given = array.T if turned else array
    tensor = as_tensor(given, CPU)
    assert tensor.data_ptr() % 64 == 0
    assert tensor.is_contiguous()
    np.testing.assert_array_equal(tensor.numpy(), given)


def test_what_lies_well_is_shared() -> None:
    array = at_address(0)
    as_tensor(array, CPU)[1, 1] = 99.0
    assert array[1, 1] == 99.0


def test_bytes_are_shared_wherever_they_lie() -> None:
    array = at_address(16, np.uint8)
    assert as_tensor(array, CPU).data_ptr() == array.ctypes.data
