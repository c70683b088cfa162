"""Gymnasium spaces as leaves, and back.

An observation of any supported space becomes a flat mapping of leaves (see ``core.spec``)::

    leaves = obs_leaves(env.observation_space)            # {"obs": LeafSpec} or {"a.b": LeafSpec}
    arrays = flatten_obs(env.observation_space, obs)      # the same names, one array each
    env.step(env_action(env.action_space, action))        # an internal action, for the environment

Internal actions: int64 scalar from 0 (Discrete), int64 ``[k]`` from 0 (MultiDiscrete), int8 ``[n]``
(MultiBinary), float32 ``[n]`` (Box); several axes are flattened.

Shapes: B environments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces

from rookery.core.errors import UserError
from rookery.core.spec import ACTION_MASK, Array, Arrays, EnvForm, LeafSpec, LeafSpecs

PLAIN = "obs"
"""Name of the one leaf of a space that is neither Dict nor Tuple."""

_INT64 = np.dtype(np.int64)
_INT8 = np.dtype(np.int8)
_FLOAT32 = np.dtype(np.float32)

AnySpace = spaces.Space[Any]


class LeafError(Exception):
    """A value is not what its leaf declares; says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class ObsLeaf:
    """How one leaf is taken out of an observation."""

    name: str
    path: tuple[Any, ...]
    """Keys and indices from the observation down to this leaf."""
    spec: LeafSpec
    """What is carried."""
    env_shape: tuple[int, ...]
    """Shape of the environment's own value, before flattening."""
    env_dtype: np.dtype[Any]
    """Dtype the environment's space declares."""
    start: Array | None
    """Subtracted so that choices count from 0; None where they already do."""

    @property
    def copies_plainly(self) -> bool:
        """Whether the value is carried as it is, but for its dtype."""
        return self.start is None and self.env_shape == self.spec.shape

    def pick(self, obs: Any) -> Any:
        """This leaf's value within ``obs``."""
        for depth, key in enumerate(self.path):
            try:
                obs = obs[key]
            except (KeyError, IndexError, TypeError) as error:
                where = ".".join(str(part) for part in self.path[: depth + 1])
                raise LeafError(f"the observation has no entry '{where}'") from error
        return obs

    def convert(self, value: Any, axes: tuple[int, ...] = ()) -> Array:
        """``value`` (behind batch ``axes``) as carried; raises LeafError if it cannot be."""
        array = np.asarray(value)
        expected = axes + self.env_shape
        if array.shape != expected:
            raise LeafError(
                f"'{self.name}' should have shape {expected}, its shape is {array.shape}"
            )
        if not fits(array.dtype, self.env_dtype):
            raise LeafError(f"'{self.name}' should be {self.env_dtype}, it is {array.dtype}")
        if self.start is not None:
            array = array - self.start
        with np.errstate(over="ignore"):
            return array.astype(self.spec.dtype, copy=False).reshape(axes + self.spec.shape)


def fits(got: np.dtype[Any], declared: np.dtype[Any]) -> bool:
    """Whether values of dtype ``got`` may stand in a space of dtype ``declared``.

    Precision may differ (float64 in a float32 box, int64 in an int32 one); the kind may not.
    """
    return got is declared or np.can_cast(got, declared, casting="same_kind")


def obs_plan(space: AnySpace) -> tuple[ObsLeaf, ...]:
    """The leaves of an observation space, in a fixed order."""
    leaves = tuple(_walk(space, (), space))
    names = [leaf.name for leaf in leaves]
    if not leaves:
        raise UserError("the observation space is an empty Dict or Tuple; give it an entry")
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"the observation space names two entries '{name}'; rename the key with the dot"
            )
    return leaves


def obs_leaves(space: AnySpace) -> dict[str, LeafSpec]:
    """Names and descriptions of the leaves of an observation space."""
    return {leaf.name: leaf.spec for leaf in obs_plan(space)}


def flatten_obs(space: AnySpace, obs: Any) -> Arrays:
    """One observation as leaves."""
    return {leaf.name: leaf.convert(leaf.pick(obs)) for leaf in obs_plan(space)}


def flatten_batch(space: AnySpace, obs: Any) -> Arrays:
    """Observations batched the way gymnasium batches them, as leaves ``[B, ...]``."""
    arrays: Arrays = {}
    for leaf in obs_plan(space):
        value = np.asarray(leaf.pick(obs))
        arrays[leaf.name] = leaf.convert(value, value.shape[:1])
    return arrays


def _walk(space: AnySpace, path: tuple[Any, ...], whole: AnySpace) -> Iterator[ObsLeaf]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _walk(inner, (*path, key), whole)
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _walk(inner, (*path, index), whole)
    else:
        yield _obs_leaf(space, path, whole)


def _obs_leaf(space: AnySpace, path: tuple[Any, ...], whole: AnySpace) -> ObsLeaf:
    name = ".".join(str(key) for key in path) or PLAIN
    start: Array | None = None
    if isinstance(space, spaces.Box):
        dtype = _FLOAT32 if space.dtype.kind == "f" else space.dtype
        spec = LeafSpec("box", space.shape, dtype, (), *_bounds(space, dtype, space.shape))
    elif isinstance(space, spaces.Discrete):
        spec = LeafSpec("discrete", (), _INT64, (int(space.n),))
        start = np.asarray(space.start, _INT64) if space.start else None
    elif isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(size) for size in space.nvec.reshape(-1))
        spec = LeafSpec("multi_discrete", (len(sizes),), _INT64, sizes)
        start = space.start.astype(_INT64) if np.any(space.start) else None
    elif isinstance(space, spaces.MultiBinary):
        spec = LeafSpec("multi_binary", space.shape, _INT8)
    else:
        where = "is" if not path else f"has at '{name}'"
        raise UserError(
            f"the observation space {where} a {type(space).__name__}, which is not supported; use "
            "Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these"
            f"{_without(path, whole)}"
        )
    declared = np.dtype(space.dtype) if space.dtype is not None else spec.dtype
    shape = tuple(space.shape or ())
    if start is not None or shape != spec.shape:
        spec = replace(spec, env_form=_env_form(shape, declared, start))
    return ObsLeaf(name, path, spec, shape, declared, start)


def _without(path: tuple[Any, ...], whole: AnySpace) -> str:
    """How to do without the entry at ``path``, where that can be."""
    if not isinstance(whole, spaces.Dict) or len(whole.spaces) < 2:
        return ""
    others = ",".join(str(key) for key in whole.spaces if key != path[0])
    return f", or leave it out by --env.obs_keys {others}"


def _env_form(shape: tuple[int, ...], dtype: np.dtype[Any], start: Array | None) -> EnvForm:
    first = () if start is None else tuple(int(choice) for choice in start.reshape(-1))
    return EnvForm(shape, dtype, first)


def _bounds(
    space: spaces.Box, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> tuple[Array | None, Array | None]:
    """Lower and upper bounds as carried, None where nothing is bounded."""
    with np.errstate(over="ignore"):
        low = space.low.astype(dtype).reshape(shape) if space.bounded_below.any() else None
        high = space.high.astype(dtype).reshape(shape) if space.bounded_above.any() else None
    return low, high


def action_leaf(space: AnySpace) -> LeafSpec:
    """The leaf of an action space."""
    leaf = _flat_action(space)
    start = np.asarray(getattr(space, "start", 0), _INT64)
    shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)
    if (shape, dtype) == (leaf.shape, leaf.dtype) and not start.any():
        return leaf
    return replace(leaf, env_form=_env_form(shape, dtype, start if start.any() else None))


def _flat_action(space: AnySpace) -> LeafSpec:
    """The leaf of an action space, less what only the environment knows."""
    if isinstance(space, spaces.Discrete):
        return LeafSpec("discrete", (), _INT64, (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(size) for size in space.nvec.reshape(-1))
        return LeafSpec("multi_discrete", (len(sizes),), _INT64, sizes)
    if isinstance(space, spaces.MultiBinary):
        return LeafSpec("multi_binary", (int(np.prod(space.shape)),), _INT8)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        shape = (int(np.prod(space.shape, dtype=np.int64)),)
        return LeafSpec("box", shape, _FLOAT32, (), *_bounds(space, space.dtype, shape))
    what = type(space).__name__
    if isinstance(space, spaces.Box):
        what += f" of {space.dtype}"
    raise UserError(
        f"the action space is a {what}, which is not supported; "
        "use Discrete, MultiDiscrete, MultiBinary or a float Box (a wrapper can convert it)"
    )


def mask_leaf(space: AnySpace) -> LeafSpec:
    """The leaf of an action mask over ``space``: one entry a choice, 1 where it is allowed."""
    leaf = action_leaf(space)
    if not leaf.sizes:
        raise UserError(
            f"env.action_mask_key is set, but a {type(space).__name__} action space has no choices "
            "to mask; leave it unset"
        )
    return LeafSpec("multi_binary", (sum(leaf.sizes),), _INT8)


def carried_leaves(plan: tuple[ObsLeaf, ...], action_space: AnySpace, masked: bool) -> LeafSpecs:
    """The leaves a backend carries: those of ``plan``, and the action mask if there is one."""
    leaves = {leaf.name: leaf.spec for leaf in plan}
    if ACTION_MASK in leaves:
        raise UserError(
            f"the observation has an entry '{ACTION_MASK}', a name that is kept for the mask that "
            "env.action_mask_key finds in info; give it there, and rename the entry or leave it "
            "out by env.obs_keys"
        )
    if masked:
        leaves[ACTION_MASK] = mask_leaf(action_space)
    return leaves


def env_action(space: AnySpace, action: Any) -> Any:
    """One internal action as ``env.step`` wants it."""
    return split_actions(space, np.asarray(action)[None])[0]


def split_actions(space: AnySpace, actions: Array) -> list[Any]:
    """Internal actions ``[B, ...]`` as a list of what each ``env.step`` wants."""
    batch = env_actions(space, actions)
    if isinstance(space, spaces.Discrete):
        plain: list[Any] = batch.tolist()
        return plain
    return list(batch)


def env_actions(space: AnySpace, actions: Array) -> Array:
    """Internal actions ``[B, ...]`` as a gymnasium vector environment wants them."""
    if isinstance(space, spaces.Discrete):
        return actions + space.start if space.start else actions
    shape = (len(actions), *(space.shape or ()))
    if isinstance(space, spaces.Box):
        within = np.minimum(
            np.maximum(actions.reshape(shape), space.low, dtype=space.dtype), space.high
        )
        return within.astype(space.dtype, copy=False)
    moved = actions.reshape(shape).astype(space.dtype or _INT64)
    if isinstance(space, spaces.MultiDiscrete):
        moved += space.start
    return moved


def concatenate_mask(value: Any) -> Array:
    """A mask given as one array, or as one array for each element of a MultiDiscrete action."""
    if isinstance(value, (list, tuple)) and len(value) and np.ndim(value[0]):
        return np.concatenate([np.asarray(part).reshape(-1) for part in value])
    return np.asarray(value)


def choice_offsets(leaf: LeafSpec) -> Array:
    """Where the choices of each element of a discrete action begin within its mask."""
    return np.cumsum((0, *leaf.sizes[:-1]), dtype=np.int64)
