"""Cores: unrolling equals stepping, across the ends of episodes.

Shapes: T steps, B environments, F features, H numbers of state.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from rookery.core.tensors import Tensors
from rookery.nets.cores import Core
from tests.unit.net_inputs import B, T, randn, random_resets

F, H = 5, 6


def random_state(core: Core, num: int) -> Tensors:
    return {
        name: randn(num, *spec.shape, seed=seed)
        for seed, (name, spec) in enumerate(core.state_spec.items(), 5)
    }


@pytest.fixture(params=["gru", "lstm"])
def core(request: pytest.FixtureRequest) -> Core:
    torch.manual_seed(0)
    return Core(request.param, F, H)


def test_an_unroll_equals_stepping_with_the_state_zeroed_at_resets(core: Core) -> None:
    features, reset, state = randn(T, B, F), random_resets(), random_state(core, B)
    outputs, after = core(features, state, reset)
    assert outputs.shape == (T, B, H)
    for t in range(T):
        state = {n: torch.where(reset[t][:, None], 0.0, leaf) for n, leaf in state.items()}
        output, state = core(features[t : t + 1], state, torch.zeros(1, B, dtype=torch.bool))
        torch.testing.assert_close(output[0], outputs[t], rtol=1e-5, atol=1e-6)
    for name in core.state_spec:
        torch.testing.assert_close(state[name], after[name], rtol=1e-5, atol=1e-6)


def test_an_unroll_equals_each_episode_by_itself(core: Core) -> None:
    features, reset, state = randn(T, B, F), random_resets(), random_state(core, B)
    outputs, _ = core(features, state, reset)
    for b in range(B):
        starts = torch.nonzero(reset[:, b]).flatten().tolist()
        cuts = sorted({0, *starts, T})
        for start, stop in pairwise(cuts):
            first = None
            if start not in starts:
                leaves = [leaf[b][None, None] for leaf in state.values()]
                first = leaves[0] if core.name == "gru" else tuple(leaves)
            alone, _ = core.rnn(features[start:stop, b : b + 1], first)
            torch.testing.assert_close(outputs[start:stop, b], alone[:, 0], rtol=1e-5, atol=1e-6)


def test_gradients_do_not_cross_a_reset(core: Core) -> None:
    features = randn(T, B, F).requires_grad_()
    reset = random_resets()
    outputs, _ = core(features, random_state(core, B), reset)
    outputs[5, 0].sum().backward()
    assert features.grad is not None
    reached = features.grad[:, 0].abs().sum(-1) > 0
    assert reached.tolist() == [False] * 4 + [True] * 2 + [False] * 3
    assert not features.grad[:, 1:].any()


def test_a_core_must_be_one() -> None:
    with pytest.raises(ValueError, match="gru or an lstm"):
        Core("none", F, H)
