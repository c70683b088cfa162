"""What is played rounds alike on every processor and beside any number of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rookery.core.signature import Signature
from rookery.core.spec import LeafSpec
from rookery.nets.actor_critic import ActorCritic
from rookery.nets.policy import Policy, PolicyConfig
from rookery.nets.rounding import rounded_alike
from tests.unit.net_inputs import FLOAT, INT, UINT8

REPOSITORY = Path(__file__).parents[2]

ASK = """
import hashlib
from tests.unit.test_rounding import answers, policy
from rookery.nets.rounding import rounded_alike
print(hashlib.sha256(answers(rounded_alike(policy()), 64).tobytes()).hexdigest())
"""


def policy(**more: object) -> Policy:
    """Layers of a size that float32 rounds otherwise in small batches."""
    signature = Signature(
        obs={"obs": LeafSpec("box", (27,), FLOAT)}, action=LeafSpec("box", (3,), FLOAT)
    )
    made = ActorCritic(PolicyConfig(hidden=(63, 61), **more), signature)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for weights in made.parameters():  # orthogonal ones would depend on the processor
            weights.copy_(torch.from_numpy(0.2 * rng.normal(size=weights.shape)))
    return made


def answers(policy: Policy, rows: int) -> np.ndarray:
    """Actions and values of the first ``rows`` of some observations, after three steps."""
    obs = np.random.default_rng(1).normal(size=(64, 27)).astype(np.float32)
    state = policy.initial_state(rows)
    with torch.inference_mode():
        for _ in range(3):
            seen = {"obs": torch.from_numpy(obs[:rows])}
            out, state = policy.step(seen, state, torch.zeros(rows, dtype=torch.bool), None)
    return torch.cat([out.action, out.value[:, None]], 1).numpy()


@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
def test_an_answer_does_not_depend_on_who_else_asks(core: str) -> None:
    alike = rounded_alike(policy(core=core, core_size=31))
    many = answers(alike, 64)
    for rows in (1, 2, 5, 33):
        np.testing.assert_array_equal(answers(alike, rows), many[:rows])
    plain = answers(policy(core=core, core_size=31), 64)
    np.testing.assert_allclose(many, plain, atol=1e-5)


@pytest.mark.slow
def test_an_answer_does_not_depend_on_the_processor() -> None:
    """MKL_CBWR chooses the code of another processor for matrix products."""
    found = set()
    for kind in ("AUTO", "COMPATIBLE"):
        environment = os.environ | {"MKL_CBWR": kind, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-c", ASK]
        found.add(subprocess.check_output(command, env=environment, text=True))
    assert len(found) == 1


def test_what_does_not_fit_is_left_alone() -> None:
    half = policy(precision="bf16")
    assert rounded_alike(half) is half
    images = Signature(
        obs={"obs": LeafSpec("box", (4, 84, 84), UINT8)},
        action=LeafSpec("discrete", (), INT, (3,)),
    )
    seeing = ActorCritic(PolicyConfig(), images)
    assert rounded_alike(seeing) is seeing
