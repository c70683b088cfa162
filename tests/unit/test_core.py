"""The core: seeds, signatures, actions, rollouts, blocks, names, and the restart budget."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rookery.core.action import from_env_form, to_env_form, to_env_units
from rookery.core.errors import RunFailed, UserError, naming, near_names
from rookery.core.names import load_object
from rookery.core.ports import ExperienceSink, ExperienceSource, ParamSink, ParamSource
from rookery.core.records import Rollout, rollout_spec
from rookery.core.seeding import generator_state, restore_generator, seed_of, stream
from rookery.core.signature import Signature
from rookery.core.spec import Array, ArraySpec, EnvForm, LeafSpec, zeros
from rookery.runs.supervise import RestartBudget, SuperviseConfig, describe_exit
from rookery.transport.blocks import BlockPort, BlockSink, BlockSource
from tests.wired import ends, got, weights_cell

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int64)


# --- seeding ---------------------------------------------------------------------------------


def test_streams_keep_their_values() -> None:
    """A run of today must repeat a run of yesterday."""
    assert seed_of(0, "env", 0, 0) == 2_105_868_151
    assert seed_of(7, "weights") == 674_398_087
    drawn = stream(7, "actor", 2).integers(1 << 30, size=3)
    assert drawn.tolist() == [748_108_363, 979_035_782, 74_866_393]


def test_streams_differ_in_every_part_of_their_name() -> None:
    names: list[tuple[Any, ...]] = [
        (0, "actor"),
        (1, "actor"),
        (0, "learner"),
        (0, "actor", 0),
        (0, "actor", 1),
        (0, "actor", 0, 0),
        (0, "actor", 0, 1),
        (0, "actor", 1, 0),
    ]
    draws = [tuple(stream(*name).random(4)) for name in names]
    assert len(set(draws)) == len(names)
    assert len({seed_of(*name) for name in names}) == len(names)


def test_streams_do_not_depend_on_the_order_they_are_made_in() -> None:
    forwards = [stream(3, "actor", replica).random() for replica in range(4)]
    backwards = [stream(3, "actor", replica).random() for replica in reversed(range(4))]
    assert forwards == backwards[::-1]


def test_streams_are_independent() -> None:
    """Neighbouring replicas are uncorrelated: 4 sigma of the correlation of 20,000 draws."""
    draws = np.stack([stream(0, "actor", replica).normal(size=20_000) for replica in range(6)])
    correlation = np.corrcoef(draws) - np.eye(6)
    assert np.abs(correlation).max() < 4 / np.sqrt(20_000)


def test_integer_seeds_fit_31_bits() -> None:
    seeds = [seed_of(0, "env", env) for env in range(1000)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert max(seeds) > 2**30


def test_a_generator_goes_on_from_its_saved_state() -> None:
    rng = stream(0, "actor")
    rng.normal(size=5)
    saved = json.loads(json.dumps(generator_state(rng)))
    expected = rng.normal(size=5)
    other = stream(99, "other")
    restore_generator(other, saved)
    np.testing.assert_array_equal(other.normal(size=5), expected)


# --- signatures ------------------------------------------------------------------------------

IMAGE = LeafSpec(
    "box",
    (8, 8, 3),
    np.dtype(np.uint8),
    (),
    np.zeros((8, 8, 3), np.uint8),
    np.full((8, 8, 3), 255, np.uint8),
)
SPEED = LeafSpec(
    "box", (2,), FLOAT, (), np.array([-1.0, -np.inf], FLOAT), np.array([0.1, np.inf], FLOAT)
)
COUNTER = LeafSpec(
    "box", (2,), INT, (), np.array([-(2**63), 0], INT), np.array([2**63 - 1, 2**63 - 1], INT)
)
SIGNATURE = Signature(
    obs={
        "camera": IMAGE,
        "inner.speed": SPEED,
        "counter": COUNTER,
        "free": LeafSpec("box", (), FLOAT),
        "room": LeafSpec("discrete", (), INT, (5,)),
        "pair": LeafSpec("multi_discrete", (2,), INT, (3, 4)),
        "lamps": LeafSpec("multi_binary", (2, 2), np.dtype(np.int8)),
    },
    action=LeafSpec("discrete", (), INT, (3,), env_form=EnvForm((), INT, (-1,))),
)


def assert_same_leaf(one: LeafSpec, other: LeafSpec) -> None:
    for field in ("kind", "shape", "dtype", "sizes", "env_form"):
        assert getattr(one, field) == getattr(other, field)
    for mine, theirs in ((one.low, other.low), (one.high, other.high)):
        if mine is None or theirs is None:
            assert mine is None
            assert theirs is None
        else:
            np.testing.assert_array_equal(mine, theirs)
            assert mine.dtype == theirs.dtype


def test_a_signature_survives_json() -> None:
    text = json.dumps(SIGNATURE.to_json())
    assert len(text) < 2000, "the bounds of an image are one number, not one a pixel"
    back = Signature.from_json(json.loads(text))
    assert list(back.obs) == list(SIGNATURE.obs)
    for name, leaf in SIGNATURE.obs.items():
        assert_same_leaf(back.obs[name], leaf)
    assert_same_leaf(back.action, SIGNATURE.action)
    assert SIGNATURE.difference(back) is None


@pytest.mark.parametrize(
    ("obs", "action", "said"),
    [
        ({}, None, "observation leaves ['obs'] against []"),
        ({"eyes": LeafSpec("box", (2,), FLOAT)}, None, "['obs'] against ['eyes']"),
        ({"obs": LeafSpec("box", (3,), FLOAT)}, None, "'obs' box[2] against box[3]"),
        ({"obs": LeafSpec("multi_discrete", (2,), INT, (2, 2))}, None, "of [2, 2]"),
        (None, LeafSpec("discrete", (), INT, (4,)), "action discrete[] of [3] against"),
        (None, LeafSpec("box", (1,), FLOAT), "action discrete[] of [3] against box[1]"),
    ],
)
def test_differences_that_matter_to_a_network(
    obs: dict[str, LeafSpec] | None, action: LeafSpec | None, said: str
) -> None:
    mine = Signature({"obs": LeafSpec("box", (2,), FLOAT)}, LeafSpec("discrete", (), INT, (3,)))
    theirs = Signature(mine.obs if obs is None else obs, action or mine.action)
    difference = mine.difference(theirs)
    assert difference is not None
    assert said in difference


def test_bounds_of_a_float64_action_survive_json_exactly() -> None:
    low, high = np.array([0.1, -0.1]), np.array([0.7, np.inf])
    leaf = LeafSpec("box", (2,), FLOAT, (), low, high, EnvForm((2, 1), np.dtype(np.float64)))
    text = json.dumps(Signature({"obs": SPEED}, leaf).to_json())
    assert_same_leaf(Signature.from_json(json.loads(text)).action, leaf)


def test_bounds_do_not_matter_to_a_network() -> None:
    mine = Signature({"obs": SPEED}, SIGNATURE.action)
    theirs = Signature({"obs": LeafSpec("box", (2,), FLOAT)}, SIGNATURE.action)
    assert mine.difference(theirs) is None


# --- actions ---------------------------------------------------------------------------------


def box(low: list[float] | None, high: list[float] | None) -> LeafSpec:
    least, most = (None if bound is None else np.array(bound, FLOAT) for bound in (low, high))
    return LeafSpec("box", (len(low or high or [0]),), FLOAT, (), least, most)


def test_bounded_actions_are_scaled_from_minus_one_and_one_to_the_bounds() -> None:
    leaf = box([0.0, -2.0], [1.0, 6.0])
    actions = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [-9.0, 9.0]], FLOAT)
    expected = [[0.0, -2.0], [0.5, 2.0], [1.0, 6.0], [0.0, 6.0]]
    found = to_env_units(leaf, actions)
    np.testing.assert_allclose(found, expected)
    assert found.dtype == FLOAT


@pytest.mark.parametrize("low", [None, [-np.inf], [-1e30]])
def test_unbounded_actions_stay_as_they_are(low: list[float] | None) -> None:
    leaf = box(low, None if low is None else [-low[0]])
    actions = np.array([[3.5], [-200.0]], FLOAT)
    np.testing.assert_array_equal(to_env_units(leaf, actions), actions)


def test_actions_bounded_on_one_side_are_kept_within_it() -> None:
    actions = np.array([[3.5], [-200.0]], FLOAT)
    for leaf in (box([-np.inf], [1.0]), box(None, [1.0])):
        np.testing.assert_array_equal(to_env_units(leaf, actions), [[1.0], [-200.0]])
    for leaf in (box([0.0], [np.inf]), box([0.0], None)):
        np.testing.assert_array_equal(to_env_units(leaf, actions), [[3.5], [0.0]])


def test_each_element_goes_by_its_own_bounds() -> None:
    leaf = box([0.0, -np.inf], [4.0, np.inf])
    np.testing.assert_array_equal(to_env_units(leaf, np.array([[0.0, 7.0]], FLOAT)), [[2.0, 7.0]])


def test_actions_in_the_environments_own_form() -> None:
    """Its shape, its dtype, its first choice, and never beyond its own bounds by rounding."""
    double = EnvForm((2, 1), np.dtype(np.float64))
    low, high = np.array([0.1, 0.1]), np.array([0.7, 0.7])
    leaf = LeafSpec("box", (2,), FLOAT, (), low, high, double)
    found = to_env_form(leaf, np.array([[-1.0, 1.0], [5.0, -5.0]], FLOAT))
    assert found.shape == (2, 2, 1)
    assert found.dtype == np.float64
    assert ((found >= 0.1) & (found <= 0.7)).all()
    np.testing.assert_allclose(found[..., 0], [[0.1, 0.7], [0.7, 0.1]], rtol=1e-6)
    shifted = LeafSpec("discrete", (), INT, (3,), env_form=EnvForm((), INT, (-1,)))
    assert to_env_form(shifted, np.array([0, 2])).tolist() == [-1, 1]
    grid = EnvForm((2, 2), np.dtype(np.int32), (5, 6, 7, 8))
    leaf = LeafSpec("multi_discrete", (4,), INT, (3, 3, 3, 3), env_form=grid)
    given = to_env_form(leaf, np.array([[0, 1, 2, 0]]))
    assert given.tolist() == [[[5, 7], [9, 8]]]
    assert given.dtype == np.int32
    assert from_env_form(leaf, given).tolist() == [[0, 1, 2, 0]]
    assert from_env_form(leaf, given[0]).tolist() == [0, 1, 2, 0]


def test_discrete_actions_do_not_differ() -> None:
    actions = np.array([0, 2, 1])
    assert to_env_units(SIGNATURE.action, actions) is actions


# --- rollouts --------------------------------------------------------------------------------

T, B = 3, 2


def spec(num_envs: int) -> dict[str, ArraySpec]:
    return rollout_spec(
        num_steps=T,
        num_envs=num_envs,
        obs={"a.b": ArraySpec((4,), FLOAT), "c/d": ArraySpec((), INT)},
        action=ArraySpec((2,), FLOAT),
        state={"h": ArraySpec((5,), FLOAT)},
        info_keys=("score",),
    )


def numbered(num_envs: int) -> dict[str, Array]:
    """Arrays whose every element tells its place."""
    arrays = zeros(spec(num_envs))
    for array in arrays.values():
        array[...] = (
            np.arange(array.size) % 2 if array.dtype == bool else np.arange(array.size)
        ).reshape(array.shape)
    return arrays


def test_a_rollout_has_the_documented_shapes() -> None:
    rollout = Rollout.from_flat(zeros(spec(B)))
    assert rollout.obs["a.b"].shape == (T + 1, B, 4)
    assert rollout.obs["c/d"].shape == (T + 1, B)
    assert rollout.obs["c/d"].dtype == INT
    assert rollout.reset.shape == rollout.value.shape == (T + 1, B)
    assert rollout.action.shape == (T, B, 2)
    assert rollout.state["h"].shape == (B, 5)
    assert rollout.version.shape == (B,)
    assert rollout.info["score"].shape == (T, B)
    for name in ("log_prob", "reward", "terminated", "truncated", "mask", "final_value"):
        assert getattr(rollout, name).shape == (T, B)


def test_flat_and_from_flat_are_inverse_and_copy_nothing() -> None:
    arrays = numbered(B)
    flat = Rollout.from_flat(arrays).flat()
    assert set(flat) == set(arrays)
    assert all(flat[name] is arrays[name] for name in arrays)


def test_columns_are_views_of_some_environments() -> None:
    arrays = numbered(4)
    rollout = Rollout.from_flat(arrays)
    some = rollout.columns(1, 3)
    for name, array in some.flat().items():
        whole = arrays[name]
        expected = whole[1:3] if name in ("state/h", "version") else whole[:, 1:3]
        np.testing.assert_array_equal(array, expected)
        assert np.shares_memory(array, whole)
    some.reward[:] = -5.0
    assert (rollout.reward[:, 1:3] == -5.0).all()
    assert (rollout.reward[:, [0, 3]] != -5.0).all()


def test_steps_spent_on_resets_are_not_counted() -> None:
    rollout = Rollout.from_flat(zeros(spec(B)))
    rollout.mask[:] = True
    assert rollout.num_steps == T * B
    rollout.mask[1, 0] = False
    assert rollout.num_steps == T * B - 1


# --- blocks ----------------------------------------------------------------------------------


def block(num_actors: int, rounds: int) -> tuple[list[BlockSink], BlockSource]:
    port = BlockPort(spec, num_actors=num_actors, num_envs=B, rounds=rounds)
    return ends(port, replicas=num_actors)


def put(sink: BlockSink, reward: float) -> None:
    assert sink.can_put()
    rollout = sink.reserve()
    rollout.reward[:] = reward
    sink.put(rollout)


def test_a_round_of_a_block() -> None:
    sinks, source = block(num_actors=2, rounds=2)
    assert source.missing() == [0, 1]
    put(sinks[0], 1.0)
    put(sinks[0], 2.0)
    assert not sinks[0].can_put(), "an actor has no room beyond its own slots"
    assert sinks[1].can_put()
    assert not source.can_sample()
    assert source.missing() == [1]
    put(sinks[1], 3.0)
    assert source.missing() == [1]
    put(sinks[1], 4.0)
    assert source.can_sample()
    assert source.missing() == []
    # Columns are [rollout, actor, env].
    assert source.sample().reward[0].tolist() == [1.0, 1.0, 3.0, 3.0, 2.0, 2.0, 4.0, 4.0]
    source.release()
    assert not source.can_sample()
    assert all(sink.can_put() for sink in sinks)


def test_the_batch_is_the_memory_the_actors_wrote() -> None:
    sinks, source = block(num_actors=2, rounds=1)
    rollout, batch = sinks[1].reserve(), source.sample()
    for name, array in rollout.flat().items():
        assert np.shares_memory(array, batch.flat()[name])


def test_reserve_without_room_is_refused() -> None:
    (sink,), _ = block(num_actors=1, rounds=1)
    put(sink, 1.0)
    with pytest.raises(RuntimeError, match="without can_put"):
        sink.reserve()


def test_only_the_reserved_rollout_can_be_put() -> None:
    sinks, source = block(num_actors=2, rounds=1)
    with pytest.raises(RuntimeError, match="was not reserved"):
        sinks[0].put(sinks[1].reserve())
    rollout = sinks[0].reserve()
    sinks[0].put(rollout)
    with pytest.raises(RuntimeError, match="was not reserved"):
        sinks[0].put(rollout)
    assert source.missing() == [1]


def test_in_one_thread_nobody_waits() -> None:
    (sink,), source = block(num_actors=1, rounds=1)
    sink.wait(timeout_secs=1e6)
    source.wait(timeout_secs=1e6)


def test_weights_are_got_once_per_version() -> None:
    cell = weights_cell({})
    assert got(cell) is None
    cell.publish(0, {})
    assert got(cell) == (0, {})
    assert got(cell, newer_than=0) is None
    cell.publish(5, {})
    assert got(cell, newer_than=0) == (5, {})


def offers(end: object, protocol: type) -> bool:
    asked = [name for name in vars(protocol) if not name.startswith("_")]
    found = [getattr(type(end), name, None) for name in asked]
    return bool(asked) and all(callable(each) or isinstance(each, property) for each in found)


def test_ends_are_what_the_protocols_ask_for() -> None:
    (sink,), source = block(num_actors=1, rounds=1)
    assert offers(sink, ExperienceSink)
    assert offers(source, ExperienceSource)
    assert offers(weights_cell({}), ParamSink)
    assert offers(weights_cell({}), ParamSource)


# --- names -----------------------------------------------------------------------------------


def test_refusals_name_the_blocks_that_people_know() -> None:
    with pytest.raises(RunFailed) as told, naming(algo="ppo", formation="sync"):
        raise RunFailed("algo.gamma: see algo.lr, my.algo.x, an algo. formation.num_actors")
    assert str(told.value) == "ppo.gamma: see ppo.lr, my.algo.x, an algo. sync.num_actors"
    with pytest.raises(ValueError, match=r"^algo\.gamma$"), naming(algo="ppo"):
        raise ValueError("algo.gamma")


def test_near_names() -> None:
    assert near_names("cartpol", ["cartpole", "snake"]) == "; did you mean 'cartpole'?"
    assert near_names("xyzzy", ["cartpole", "snake"]) == ""
    assert near_names("a", []) == ""
    both = near_names("conv", ["conv1d", "conv2d"])
    assert "'conv1d'" in both
    assert " or " in both


def test_load_object_finds_what_is_there() -> None:
    assert load_object("rookery.core.names:load_object", "x") is load_object


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_package.inner:Thing", "policy.torso: no module named 'no_such_package.inner'"),
        ("rookery.core.no_such:Thing", "check the spelling or set PYTHONPATH"),
        ("rookery.core.names:load_objekt", "has no 'load_objekt'; did you mean 'load_object'?"),
        ("rookery.core.names", "package.module:attribute"),
        ("rookery.core.names:", "package.module:attribute"),
        (":Thing", "package.module:attribute"),
        (".relative:Thing", "package.module:attribute"),
    ],
)
def test_load_object_says_what_is_wrong(name: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_object(name, "policy.torso")
    assert str(caught.value).startswith("policy.torso: ")
    assert said in str(caught.value)


def test_a_module_that_lacks_a_dependency_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even when the dependency's name begins like its own."""
    (tmp_path / "my_nets_of_mine.py").write_text("import my_nets\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"importing 'my_nets_of_mine' failed.*install"):
        load_object("my_nets_of_mine:Torso", "policy.torso")
    assert "my_nets_of_mine" not in sys.modules


# --- the restart budget ----------------------------------------------------------------------


class Clock:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_budget_counts_deaths_within_its_window() -> None:
    clock = Clock()
    budget = RestartBudget(SuperviseConfig(max_restarts=2, window_secs=10.0), clock)
    assert budget.allow("actor-0")
    clock.now += 4.0
    assert budget.allow("actor-0")
    clock.now += 4.0
    assert not budget.allow("actor-0"), "three deaths in eight seconds"
    assert budget.allow("actor-1"), "each replica has its own budget"
    clock.now += 5.9
    assert not budget.allow("actor-0"), "all but the first are still within the window"
    clock.now += 30.0
    assert budget.allow("actor-0")
    assert budget.total == 6


def test_no_restarts_means_none() -> None:
    assert not RestartBudget(SuperviseConfig(max_restarts=0)).allow("learner-0")


@pytest.mark.parametrize("bad", [{"max_restarts": -1}, {"window_secs": 0.0}])
def test_impossible_budgets_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="supervise"):
        SuperviseConfig(**bad)


def test_exits_as_a_person_reads_them() -> None:
    assert describe_exit(-signal.SIGKILL) == "killed by SIGKILL"
    assert describe_exit(-signal.SIGSEGV) == "killed by SIGSEGV"
    assert describe_exit(-250) == "killed by signal 250"
    assert describe_exit(0) == "exit code 0"
    assert describe_exit(3) == "exit code 3"
