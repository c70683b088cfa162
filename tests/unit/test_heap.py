"""Freed memory stays with the process: counted in pages that the system had to give anew."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import resource, sys
import numpy as np
from rookery.core.heap import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    [np.full(6_000_000, 1.0, np.float32) for _ in range(4)]  # 96 MB in blocks of 24
use()
before = faults()
for _ in range(5):
    use()
print(faults() - before)
"""


def pages_given(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_used_again() -> None:
    assert pages_given("kept") < 50 < pages_given("given back")
