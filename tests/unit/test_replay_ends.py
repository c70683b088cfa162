"""Rings of steps, slots of batches, and the process between them, in one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rookery.algos.dqn import DQN, ApeXConfig
from rookery.core.sequence import Steps, StepSpec
from rookery.core.spec import Array, ArraySpec, zeros
from rookery.roles.replay import Replay
from rookery.roles.replay_server import ReplayServer
from rookery.transport.sample_slots import (
    FREE,
    MAX_EPISODES,
    SampleSlots,
    SlotSource,
    sample_slot_specs,
)
from rookery.transport.step_rings import RingSink, RingSource, StepRings, step_ring_specs

SPEC = StepSpec(
    obs={"obs": ArraySpec((2,), np.dtype(np.float32))},
    action=ArraySpec((), np.dtype(np.int64)),
    state={"h": ArraySpec((3,), np.dtype(np.float32))},
    extra={name: ArraySpec((), np.dtype(np.float32)) for name in ("taken", "best")},
)
ENVS, ACTORS, WIDTH = 2, 2, 3
BATCH = 4


def rings(num_slots: int = 4) -> StepRings:
    shape: dict[str, Any] = {"num_actors": ACTORS, "num_envs": ENVS, "episode_width": WIDTH}
    return StepRings(zeros(step_ring_specs(SPEC, num_slots=num_slots, **shape)))


def sink(of: StepRings, actor: int = 0, *, life: int = 0, steps_each: int = 1) -> RingSink:
    return RingSink(of, actor, life=life, steps_each=steps_each)


def step(number: int, actor: int = 0, *, ended: bool = False) -> Steps:
    """A step whose values tell its number."""
    value = np.full(ENVS, number, np.float32)
    last = {"obs": np.full((ENVS, 2), -number, np.float32)} if ended else None
    return Steps(
        stream=np.arange(actor * ENVS, (actor + 1) * ENVS),
        obs={"obs": np.repeat(value[:, None], 2, 1)},
        action=np.full(ENVS, number % 3),
        reward=value,
        terminated=np.full(ENVS, ended),
        truncated=np.zeros(ENVS, np.bool_),
        final_obs=last,
        valid=np.ones(ENVS, np.bool_),
        state={"h": np.repeat(value[:, None], 3, 1)},
        extra={"taken": value, "best": value + 1},
        final_extra={"taken": value, "best": value} if ended else None,
    )


NONE = np.empty((0, WIDTH))


# --- rings ---------------------------------------------------------------------------------------


def test_what_is_taken_is_what_was_put() -> None:
    all_rings = rings()
    put, source = sink(all_rings, 1), RingSource(all_rings, ENVS)
    told = np.arange(WIDTH, dtype=np.float64)[None]
    put.put(step(7, 1, ended=True), told)
    put.put(step(8, 1), NONE)
    assert source.head() == 1
    taken, episodes, renewed = source.take(1)
    wanted = step(7, 1, ended=True)
    assert taken.stream.tolist() == [2, 3]
    for field in ("action", "reward", "terminated", "truncated", "valid"):
        assert np.array_equal(getattr(taken, field), getattr(wanted, field)), field
    for group in ("obs", "final_obs", "state", "extra", "final_extra"):
        mine, theirs = getattr(taken, group), getattr(wanted, group)
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs), group
    assert np.array_equal(episodes, told)
    assert renewed
    source.done(1)
    later, episodes, renewed = source.take(1)
    assert later.final_obs is None
    assert later.final_extra is None
    assert len(episodes) == 0
    assert not renewed


def test_a_full_ring_takes_no_more() -> None:
    all_rings = rings(num_slots=4)
    put, source = sink(all_rings, steps_each=2), RingSource(all_rings, ENVS)
    for number in range(4):
        assert put.can_put() == (number <= 2)
        put.put(step(number), NONE)
    with pytest.raises(RuntimeError, match="put\\(\\) without can_put"):
        put.put(step(4), NONE)
    source.take(0)
    source.done(0)
    assert not put.can_put()
    source.take(0)
    source.done(0)
    assert put.can_put()


def test_actors_have_their_turns() -> None:
    all_rings = rings()
    source = RingSource(all_rings, ENVS)
    for actor in range(ACTORS):
        for number in range(3):
            sink(all_rings, actor).put(step(number, actor), NONE)
    order = []
    while (actor := source.head()) is not None:
        order.append(actor)
        source.take(actor)
        source.done(actor)
    assert order == [0, 1, 0, 1, 0, 1]


def test_another_life_of_an_actor_is_told() -> None:
    all_rings = rings()
    source = RingSource(all_rings, ENVS)
    sink(all_rings, life=0).put(step(0), NONE)
    sink(all_rings, life=1).put(step(1), NONE)
    seen = []
    for _ in range(2):
        seen.append(source.take(0)[2])
        source.done(0)
    assert seen == [True, True]


# --- the server between both ---------------------------------------------------------------------


def server(life: int = 0, **settings: Any) -> tuple[ReplayServer, SlotSource]:
    config = ApeXConfig(
        **{"batch_size": BATCH, "learning_starts": 8, "capacity_steps": 400, "n_step": 1} | settings
    )
    algorithm = DQN(config, recurrent=False, device=torch.device("cpu"))
    rng = np.random.default_rng(0)
    replay = Replay(algorithm, SPEC, num_envs=ENVS, num_actors=ACTORS, rng=rng)
    slots = SampleSlots(
        zeros(
            sample_slot_specs(
                SPEC,
                num_slots=3,
                num_steps=config.sequence.num_steps,
                batch_size=BATCH,
                episode_width=WIDTH,
            )
        )
    )
    built = ReplayServer(replay, RingSource(rings(), ENVS), slots, life=life)
    return built, SlotSource(slots, steps=np.zeros(1))


def feed(of: ReplayServer, numbers: range, episodes: Array = NONE) -> None:
    for number in numbers:
        sink(of.source.rings).put(step(number), episodes)
        of.serve()


def test_every_step_arrives_once() -> None:
    built, _ = server(steps_per_update=None)
    feed(built, range(40))
    assert built.replay.steps == 40 * ENVS
    assert int(built.source.rings.steps[0]) == 40 * ENVS
    rewards = built.replay.table.sample(400, np.random.default_rng(1)).sequences.reward
    assert set(rewards.ravel().tolist()) <= set(map(float, range(40)))
    assert built.replay.table.size == 39 * ENVS, "the last step waits for what follows it"


def test_actors_wait_while_nobody_learns() -> None:
    """The ratio holds: so many steps, then no more until a batch was learned from."""
    built, source = server(steps_per_update=4)
    put = sink(built.source.rings)
    number = 0
    while put.can_put():
        put.put(step(number), NONE)
        built.serve()
        number += 1
        assert number < 1000
    before = built.replay.steps
    learned = 0
    while source.can_sample():
        source.sample()
        source.release(np.ones(BATCH, np.float32))
        built.serve()
        learned += 1
        assert learned < 100
    assert built.replay.steps > before
    limiter = built.replay.limiter
    assert limiter.num_sampled == pytest.approx(
        limiter.num_put * BATCH / 4, abs=2 * limiter.config.least_buffer + BATCH
    )


def test_batches_come_in_order_with_steps_and_episodes() -> None:
    built, source = server(steps_per_update=None)
    told = np.arange(2 * WIDTH, dtype=np.float64).reshape(2, WIDTH)
    feed(built, range(8))
    feed(built, range(8, 9), told)
    found, steps = [], []
    for number in range(6):
        assert source.can_sample()
        source.sample()
        source.release(np.ones(BATCH, np.float32))
        done, episodes = source.progress()
        found.append(episodes)
        steps.append(done)
        feed(built, range(9 + number, 10 + number))
    assert np.array_equal(np.concatenate(found), told), "each episode is told once"
    assert steps == sorted(steps)


def test_more_episodes_than_a_batch_can_tell_wait_for_the_next() -> None:
    built, source = server(steps_per_update=None)
    built.replay.episodes = [np.ones((MAX_EPISODES + 5, WIDTH))]
    feed(built, range(12))
    counts = []
    for _ in range(2):
        source.sample()
        counts.append(len(source.progress()[1]))
        source.release(np.ones(BATCH, np.float32))
    assert counts == [MAX_EPISODES, 5]


def test_priorities_of_another_life_are_left_out() -> None:
    built, source = server(steps_per_update=None)
    feed(built, range(12))
    source.sample()
    source.release(np.full(BATCH, 1000.0, np.float32))
    built.life = 1
    built.serve()
    assert built.replay.table.max_priority < 1000.0
    for _ in range(3):
        source.sample()
        source.release(np.full(BATCH, 500.0, np.float32))
    built.serve()
    assert built.replay.table.max_priority == 500.0
    assert not built.slots.in_state(FREE), "all are filled again"


def test_an_episode_is_not_joined_to_that_of_a_replacement() -> None:
    built, _ = server(steps_per_update=None, n_step=3)
    feed(built, range(5))
    put = sink(built.source.rings, life=1)
    for number in range(100, 105):
        put.put(step(number), NONE)
        built.serve()
    table = built.replay.table
    rewards = table.sample(300, np.random.default_rng(0)).sequences.reward
    spans = {tuple(column) for column in rewards.T.tolist()}
    assert all(max(span) - min(span) < 10 for span in spans)
    assert any(min(span) >= 100 for span in spans)
