"""Spaces to leaves and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.core.errors import UserError
from rookery.core.spec import ACTION_MASK
from rookery.envs.conformance import sample_actions
from rookery.envs.spaces import (
    LeafError,
    action_leaf,
    carried_leaves,
    env_action,
    env_actions,
    flatten_batch,
    flatten_obs,
    mask_leaf,
    obs_leaves,
    obs_plan,
    split_actions,
)
from tests.toy_envs import random_action_space, random_space

BOOL: Any = np.bool_
NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 4), np.uint8),
        "inner": spaces.Dict({"speed": spaces.Box(-1.0, np.inf, (2,), np.float64)}),
        "pair": spaces.Tuple([spaces.Discrete(3, start=5), spaces.MultiBinary(4)]),
    }
)


def test_names_join_keys_and_indices() -> None:
    assert set(obs_leaves(NESTED)) == {"camera", "inner.speed", "pair.0", "pair.1"}
    assert set(obs_leaves(spaces.Discrete(2))) == {"obs"}


@pytest.mark.parametrize(
    ("space", "kind", "shape", "dtype", "sizes"),
    [
        (spaces.Box(0, 255, (2, 3), np.uint8), "box", (2, 3), np.uint8, ()),
        (spaces.Box(-1, 1, (2,), np.float64), "box", (2,), np.float32, ()),
        (spaces.Box(-1, 1, (2,), np.float16), "box", (2,), np.float32, ()),
        (spaces.Box(-9, 9, (), np.int32), "box", (), np.int32, ()),
        (spaces.Box(0, 1, (3,), BOOL), "box", (3,), np.bool_, ()),
        (spaces.Discrete(5, start=2), "discrete", (), np.int64, (5,)),
        (spaces.MultiDiscrete([2, 3]), "multi_discrete", (2,), np.int64, (2, 3)),
        (
            spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
            "multi_discrete",
            (4,),
            np.int64,
            (2, 3, 4, 5),
        ),
        (spaces.MultiBinary((2, 2)), "multi_binary", (2, 2), np.int8, ()),
    ],
)
def test_what_is_carried(space: Any, kind: str, shape: Any, dtype: Any, sizes: Any) -> None:
    leaf = obs_leaves(space)["obs"]
    assert (leaf.kind, leaf.shape, leaf.dtype, leaf.sizes) == (kind, shape, np.dtype(dtype), sizes)
    arrays = flatten_obs(space, space.sample())
    assert (arrays["obs"].shape, arrays["obs"].dtype) == (shape, np.dtype(dtype))


def test_choices_count_from_zero() -> None:
    assert flatten_obs(spaces.Discrete(3, start=5), 6)["obs"] == 1
    space = spaces.MultiDiscrete(np.full((2, 2), 2), start=np.array([[1, 2], [3, 4]]))
    value = np.array([[2, 2], [3, 5]])
    np.testing.assert_array_equal(flatten_obs(space, value)["obs"], [1, 0, 0, 1])


def test_bounds_are_none_where_there_are_none() -> None:
    leaf = obs_leaves(NESTED)["inner.speed"]
    assert leaf.high is None
    np.testing.assert_array_equal(leaf.low, np.full(2, -1, np.float32))


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (spaces.Text(3), "Text"),
        (spaces.Graph(spaces.Discrete(2), None), "Graph"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence"),
        (spaces.OneOf([spaces.Discrete(2)]), "OneOf"),
    ],
)
def test_other_spaces_are_refused_by_name_and_place(space: Any, name: str) -> None:
    with pytest.raises(UserError, match=f"is a {name}, which is not supported"):
        obs_leaves(space)
    with pytest.raises(UserError, match=rf"at 'a\.1' a {name}"):
        obs_leaves(spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), space])}))
    with pytest.raises(UserError, match=f"action space is a {name}"):
        action_leaf(space)


def test_ambiguous_and_empty_spaces_are_refused() -> None:
    twice = spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})})
    with pytest.raises(UserError, match=r"two entries 'a\.b'"):
        obs_leaves(twice)
    with pytest.raises(UserError, match="empty"):
        obs_leaves(spaces.Dict({}))


@pytest.mark.parametrize(
    ("space", "what"),
    [
        (spaces.Dict({"a": spaces.Discrete(2)}), "Dict"),
        (spaces.Tuple([spaces.Discrete(2)]), "Tuple"),
        (spaces.Box(0, 5, (2,), np.int64), "Box of int64"),
    ],
)
def test_unsupported_actions_are_refused(space: Any, what: str) -> None:
    with pytest.raises(UserError, match=f"action space is a {what}"):
        action_leaf(space)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), num_envs=st.integers(1, 4))
def test_a_batch_flattens_like_its_rows(seed: int, num_envs: int) -> None:
    space = random_space(np.random.default_rng(seed))
    space.seed(seed % 1000)
    rows = [space.sample() for _ in range(num_envs)]
    empty: Any = create_empty_array(space, num_envs)
    batch = concatenate(space, rows, empty)
    assert batch in batch_space(space, num_envs)
    flat = flatten_batch(space, batch)
    leaves = obs_leaves(space)
    assert set(flat) == set(leaves)
    for name, array in flat.items():
        expected = np.stack([flatten_obs(space, row)[name] for row in rows])
        assert array.dtype == leaves[name].dtype == expected.dtype
        assert array.shape == (num_envs, *leaves[name].shape)
        np.testing.assert_array_equal(array, expected)
        if leaves[name].sizes:
            assert (array >= 0).all()
            assert (array < np.reshape(leaves[name].sizes, leaves[name].shape)).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_internal_actions_are_in_the_space(seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = random_action_space(rng)
    leaf = action_leaf(space)
    actions = sample_actions(rng, leaf, 5)
    assert actions.shape == (5, *leaf.shape)
    batch = env_actions(space, actions)
    singles = split_actions(space, actions)
    for row, action in enumerate(actions):
        one = env_action(space, action)
        assert space.contains(one)
        np.testing.assert_array_equal(one, batch[row])
        np.testing.assert_array_equal(one, singles[row])


def test_actions_reach_the_environment_as_it_wants_them() -> None:
    one = env_action(spaces.Discrete(3, start=4), np.int64(2))
    assert type(one) is int
    assert one == 6
    box = spaces.Box(np.array([[-1.0, 0.0]]), np.array([[1.0, 3.0]]), dtype=np.float64)
    moved = env_action(box, np.array([-7.0, 9.0], np.float32))
    assert moved.dtype == np.float64
    np.testing.assert_array_equal(moved, [[-1.0, 3.0]])
    grid = spaces.MultiDiscrete(np.array([[2, 2]]), start=np.array([[5, 6]]))
    np.testing.assert_array_equal(env_action(grid, np.array([1, 0])), [[6, 6]])


def test_an_action_of_the_caller_is_never_handed_out() -> None:
    for space in (spaces.Box(-np.inf, np.inf, (2,)), spaces.MultiDiscrete([3, 3])):
        actions = np.zeros((2, 2), action_leaf(space).dtype)
        for handed in split_actions(space, actions):
            assert not np.shares_memory(handed, actions)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(3, np.float32), r"'obs' should have shape \(2,\), its shape is \(3,\)"),
        (np.float32(1), r"should have shape \(2,\), its shape is \(\)"),
        (np.array(["a", "b"]), "'obs' should be float32, it is <U1"),
        (np.zeros(2, np.complex64), "'obs' should be float32, it is complex64"),
    ],
)
def test_what_does_not_fit_its_leaf_is_refused(value: Any, message: str) -> None:
    with pytest.raises(LeafError, match=message):
        flatten_obs(spaces.Box(-1, 1, (2,)), value)


def test_a_float_in_a_byte_image_is_refused_and_precision_is_not() -> None:
    with pytest.raises(LeafError, match="should be uint8, it is float64"):
        flatten_obs(spaces.Box(0, 255, (2,), np.uint8), np.zeros(2))
    assert flatten_obs(spaces.Box(-1, 1, (2,)), np.zeros(2))["obs"].dtype == np.float32


def test_a_missing_entry_is_named() -> None:
    with pytest.raises(LeafError, match=r"no entry 'inner\.speed'"):
        flatten_obs(NESTED, {"camera": np.zeros((4, 4), np.uint8), "inner": {}})


def test_mask_leaves() -> None:
    assert mask_leaf(spaces.Discrete(4)).shape == (4,)
    assert mask_leaf(spaces.MultiDiscrete([2, 3])).shape == (5,)
    with pytest.raises(UserError, match="has no choices"):
        mask_leaf(spaces.Box(-1, 1))
    taken = obs_plan(spaces.Dict({ACTION_MASK: spaces.MultiBinary(2)}))
    with pytest.raises(UserError, match="rename the entry"):
        carried_leaves(taken, spaces.Discrete(2), masked=True)
