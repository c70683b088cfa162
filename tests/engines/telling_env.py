"""An environment that writes down what the process it lives in is like."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.faults.fault_worlds import Plain

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Tells(Plain):
    """Tells ``folder``, in a file for each process."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        path = Path(folder) / f"{os.getpid()}.json"
        if not path.exists():
            path.write_text(json.dumps(facts()))


def is_open(number: str) -> bool:
    """Not the one by which the directory was read."""
    return os.path.lexists(f"/proc/self/fd/{number}")


def is_memory(number: str) -> bool:
    return "memfd:" in os.readlink(f"/proc/self/fd/{number}")


def _handled(handler: Any) -> str:
    return "heard" if callable(handler) else str(handler)


def facts() -> dict[str, Any]:
    numbers = [number for number in os.listdir("/proc/self/fd") if is_open(number)]
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    return {
        "title": Path("/proc/self/cmdline").read_bytes().decode().strip("\0"),
        "parent": os.getppid(),
        "parent_threads": len(os.listdir(f"/proc/{os.getppid()}/task")),
        "links": [os.readlink(f"/proc/self/fd/{number}") for number in numbers],
        "memories": len({os.fstat(int(n)).st_ino for n in numbers if is_memory(n)}),
        "std": [os.readlink(f"/proc/self/fd/{number}") for number in range(3)],
        "signals": [_handled(signal.getsignal(number)) for number in signals],
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "threads": re.findall(r"_threads\(\) : (\d+)", torch.__config__.parallel_info()),
        "environment": {name: os.environ.get(name) for name in THREADS},
        "chance": [random.random(), float(np.random.rand())],
        "main": getattr(sys.modules["__main__"], "__file__", None),
    }
