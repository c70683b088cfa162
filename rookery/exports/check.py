"""Whether an exported network gives what the policy itself gives.

Both play the same made-up observations for some steps, each with its own recurrent state, in
batches of one and of several rows, with resets in between::

    difference = compare(network, run)          # run: inputs -> outputs, both by name
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from rookery.core.action import from_env_form, to_env_form
from rookery.core.errors import UserError
from rookery.core.spec import ACTION_MASK, Array, Arrays, LeafSpec
from rookery.envs.spaces import choice_offsets
from rookery.exports.acting import ACTION, NEW_STATE, RESET, STATE, VALUE, ActingNetwork, parameters
from rookery.nets.heads import ActionDist

Runner = Callable[[Arrays], Arrays]

TOLERANCE = 1e-4
"""Largest difference between the same sums done in another order, relative where above 1."""
BATCHES, STEPS = (1, 5), 4


def compare(network: ActingNetwork, run: Runner) -> float:
    """The largest difference between ``run`` and the policy; a UserError if it matters."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for num in BATCHES:
        ours = theirs = made_up(network, num, rng)
        for _ in range(STEPS):
            expected, dist = _of_policy(network, ours)
            got = run(theirs)
            worst = max(worst, _difference(network, expected, got, dist))
            inputs = made_up(network, num, rng)
            ours, theirs = inputs | _carried_on(expected), inputs | _carried_on(got)
    return worst


def made_up(network: ActingNetwork, num: int, rng: np.random.Generator) -> Arrays:
    """Inputs that an environment could give."""
    policy = network.policy
    inputs = {}
    for name, spec in network.inputs.items():
        shape = (num, *spec.shape)
        if name == RESET:
            inputs[name] = rng.random(num) < 0.3
        elif name.startswith(STATE):
            inputs[name] = rng.normal(0.0, 0.5, shape).astype(spec.dtype)
        else:
            leaf = policy.signature.obs[network.leaf_of[name]]
            inputs[name] = _values(leaf, shape, rng).astype(spec.dtype)
            if name == ACTION_MASK:  # each element of the action keeps a choice
                inputs[name][:, choice_offsets(policy.signature.action)] = 1
    return inputs


def _values(leaf: LeafSpec, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if leaf.sizes:
        start = leaf.env_form.start if leaf.env_form is not None else ()
        choices = rng.integers(0, np.reshape(leaf.sizes, shape[1:]), shape)
        return choices + np.reshape(start, shape[1:]) if start else choices
    if leaf.kind == "multi_binary":
        return rng.integers(0, 2, shape)
    if leaf.dtype.kind != "f":
        bounds = np.iinfo(leaf.dtype) if leaf.dtype.kind in "iu" else None
        low = leaf.low if leaf.low is not None else bounds.min if bounds else 0
        high = leaf.high if leaf.high is not None else bounds.max if bounds else 1
        return rng.integers(low, high, shape, endpoint=True)
    return rng.normal(size=shape)


def _of_policy(network: ActingNetwork, inputs: Arrays) -> tuple[Arrays, ActionDist]:
    """What the policy gives by the way that :class:`rookery.Agent` goes."""
    policy, signature = network.policy, network.policy.signature
    leaves = {
        leaf: torch.from_numpy(from_env_form(signature.obs[leaf], inputs[name]))
        for name, leaf in network.leaf_of.items()
    }
    state = {leaf: torch.from_numpy(inputs[STATE + leaf]) for leaf in policy.state_spec}
    num = len(next(iter(leaves.values())))
    reset = torch.from_numpy(inputs[RESET]) if state else torch.zeros(num, dtype=torch.bool)
    with torch.no_grad():
        dist, value, state = policy.distribution(leaves, state, reset)
    outputs = {ACTION: dist.mode(), **parameters(dist), VALUE: value}
    outputs |= {NEW_STATE + leaf: after for leaf, after in state.items()}
    arrays = {name: output.numpy() for name, output in outputs.items()}
    return arrays | {ACTION: to_env_form(signature.action, arrays[ACTION])}, dist


def _carried_on(outputs: Arrays) -> Arrays:
    """The new state as the next input."""
    return {
        STATE + name.removeprefix(NEW_STATE): leaf
        for name, leaf in outputs.items()
        if name.startswith(NEW_STATE)
    }


def _difference(network: ActingNetwork, expected: Arrays, got: Arrays, dist: ActionDist) -> float:
    worst = 0.0
    for name, array in expected.items():
        found = got.get(name)
        if found is None or (found.shape, found.dtype) != (array.shape, array.dtype):
            what = "missing" if found is None else f"{found.dtype}{list(found.shape)}"
            raise _differs(f"'{name}' is {what} instead of {array.dtype}{list(array.shape)}")
        if name == ACTION and array.dtype.kind != "f":
            _check_choice(network, array, found, dist)
            continue
        gap = np.abs(found - array) / np.maximum(1.0, np.abs(array))
        if not (gap <= TOLERANCE).all():  # NaN is not either
            raise _differs(f"'{name}' differs by {gap.max():.2g}")
        worst = max(worst, float(gap.max(initial=0.0)))
    return worst


def _check_choice(network: ActingNetwork, expected: Array, found: Array, dist: ActionDist) -> None:
    """The most likely choice must be the same, or as likely but for rounding."""
    if np.array_equal(expected, found):
        return
    leaf = network.policy.signature.action
    best, other = (
        dist.log_prob(torch.from_numpy(from_env_form(leaf, action))) for action in (expected, found)
    )
    if not bool((best - other <= TOLERANCE).all()):
        raise _differs("it chooses other actions")


def _differs(how: str) -> UserError:
    return UserError(f"the exported network is not the policy: {how}; nothing was written")
