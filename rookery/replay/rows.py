"""Steps of an actor as rows of a table: one value for each column, checked."""

from __future__ import annotations

import numpy as np

from rookery.core.errors import UserError
from rookery.core.sequence import Steps, StepSpec
from rookery.core.spec import Array, Arrays, ArraySpec

_FLAG = ArraySpec((), np.dtype(np.bool_))
_REWARD = ArraySpec((), np.dtype(np.float32))


def column_specs(spec: StepSpec) -> dict[str, ArraySpec]:
    """What each column of a table holds."""
    return (
        {f"obs/{name}": leaf for name, leaf in spec.obs.items()}
        | {f"extra/{name}": leaf for name, leaf in spec.extra.items()}
        | {"action": spec.action, "reward": _REWARD, "terminated": _FLAG, "truncated": _FLAG}
    )


def values_of(steps: Steps, spec: StepSpec) -> dict[str, Array]:
    """The columns of the rows of ``steps``."""
    values = {f"obs/{name}": steps.obs[name] for name in spec.obs}
    values |= {f"extra/{name}": steps.extra[name] for name in spec.extra}
    return values | {
        "action": steps.action,
        "reward": steps.reward,
        "terminated": steps.terminated,
        "truncated": steps.truncated,
    }


def final_values_of(steps: Steps, ended: Array, spec: StepSpec) -> dict[str, Array]:
    """The columns of the rows of last observations, in which nothing is done."""
    final = steps.final_obs or {}
    num = int(np.count_nonzero(ended))
    values = {
        name: np.zeros((num, *leaf.shape), leaf.dtype) for name, leaf in column_specs(spec).items()
    }
    values |= {f"obs/{name}": final[name][ended] for name in spec.obs}
    if steps.final_extra is not None:
        values |= {f"extra/{name}": steps.final_extra[name][ended] for name in spec.extra}
    return values


def checked(steps: Steps, spec: StepSpec, num_streams: int) -> Steps:
    """The valid ones of ``steps``, or one line about what is wrong with them."""
    num = len(steps.stream)
    shapes = {f"obs/{name}": (steps.obs.get(name), leaf) for name, leaf in spec.obs.items()}
    shapes |= {f"state/{name}": (steps.state.get(name), leaf) for name, leaf in spec.state.items()}
    shapes |= {f"extra/{name}": (steps.extra.get(name), leaf) for name, leaf in spec.extra.items()}
    shapes["action"] = (steps.action, spec.action)
    for name, (array, leaf) in shapes.items():
        fits = array is not None and np.can_cast(array.dtype, leaf.dtype, "same_kind")
        if array is None or not fits or array.shape != (num, *leaf.shape):
            got = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            wanted = f"{leaf.dtype}{[num, *leaf.shape]}"
            raise UserError(f"replay: {name} must be {wanted}, got {got}")
    # This is done for every step: counting is the fastest way to ask for any or all.
    if steps.valid is not None and np.count_nonzero(steps.valid) < num:
        steps = _rows(steps, steps.valid)
        num = len(steps.stream)
    if not num:
        return steps
    _check_streams(steps.stream, num_streams)
    if np.count_nonzero(np.isfinite(steps.reward)) < num:
        bad = int(np.flatnonzero(~np.isfinite(steps.reward))[0])
        raise UserError(
            f"replay: the reward of stream {steps.stream[bad]} is {steps.reward[bad]}; "
            "rewards must be finite: look at the environment's step"
        )
    last_seen = steps.final_obs is not None and set(spec.obs) <= set(steps.final_obs)
    if not last_seen and np.count_nonzero(steps.terminated | steps.truncated):
        raise UserError("replay: an episode ended, but final_obs is missing")
    return steps


def _check_streams(streams: Array, num_streams: int) -> None:
    unsigned = np.asarray(streams, np.int64).view(np.uint64)  # negative ones are large
    if np.count_nonzero(unsigned >= num_streams):
        raise UserError(
            f"replay: stream {streams.min()} or {streams.max()} is not within 0..{num_streams - 1}"
        )
    if np.count_nonzero(np.bincount(streams)) < len(streams):
        raise UserError("replay: a stream was named twice in one put; put its steps one by one")


def _rows(steps: Steps, keep: Array) -> Steps:
    def leaves(arrays: Arrays) -> Arrays:
        return {name: array[keep] for name, array in arrays.items()}

    return Steps(
        stream=steps.stream[keep],
        obs=leaves(steps.obs),
        action=steps.action[keep],
        reward=steps.reward[keep],
        terminated=steps.terminated[keep],
        truncated=steps.truncated[keep],
        final_obs=None if steps.final_obs is None else leaves(steps.final_obs),
        state=leaves(steps.state),
        extra=leaves(steps.extra),
        final_extra=None if steps.final_extra is None else leaves(steps.final_extra),
    )
