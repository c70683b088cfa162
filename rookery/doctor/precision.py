"""Which precision trains images faster on this machine's processor, and whether bf16 works at all.

A run keeps the precision it was begun with, and may go on, or be played, on another machine.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from typing import Literal

from rookery.doctor.probe import try_out
from rookery.nets.policy import PolicyConfig

_LOG = logging.getLogger(__name__)

Precision = Literal["fp32", "bf16"]

PROBE_SECS = 10.0
GAIN = 1.15
"""bf16 rounds: it must be this much faster to be worth it."""

PROBE = """
import json, time, torch
torch.set_num_threads(1)
layers = torch.nn.Sequential(
    torch.nn.Conv2d(4, 32, 8, stride=4), torch.nn.ReLU(),
    torch.nn.Conv2d(32, 64, 4, stride=2), torch.nn.ReLU(),
    torch.nn.Flatten(), torch.nn.Linear(5184, 128),
)
images = torch.rand(32, 4, 84, 84).contiguous(memory_format=torch.channels_last)
def secs(enabled):
    best = float("inf")
    for _ in range(4):
        begun = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = layers(images).float().square().mean()
        loss.backward()
        best = min(best, time.perf_counter() - begun)
    return best
print(json.dumps({"fp32": secs(False)}), flush=True)
print(json.dumps({"bf16": secs(True)}), flush=True)
"""
"""A process of its own: on some virtual machines bfloat16 ends it with an illegal instruction."""


@cache
def faster_precision(code: str = PROBE) -> Precision:
    """bf16 if it works here and is clearly faster, else fp32; tried once in a process."""
    said = try_out(code, PROBE_SECS).said
    if "bf16" not in said or "fp32" not in said:
        return "fp32"
    return "bf16" if said["fp32"] / said["bf16"] >= GAIN else "fp32"


def why_not_bf16(code: str = PROBE) -> str:
    """Why this processor cannot compute in bf16; empty if it can, or if it was too busy to say."""
    tried = try_out(code, PROBE_SECS)
    return "" if "bf16" in tried.said or tried.code is None else tried.fate or "no answer"


def computable(config: PolicyConfig, name: str, code: str = PROBE) -> PolicyConfig:
    """``config``, with fp32 in place of a bf16 that this processor does not have, which is told.

    Weights are float32 either way.
    """
    if config.precision != "bf16" or not (why := why_not_bf16(code)):
        return config
    _LOG.warning("%s computed in bf16, which this machine cannot (%s): fp32 it is", name, why)
    return replace(config, precision="fp32")
