"""Rings of steps, slots of batches, and the process between them, in one thread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rookery.algos.dqn import DQN, ApeXConfig
from rookery.core.sequence import Steps, StepSpec
from rookery.core.spec import Array, ArraySpec
from rookery.roles.replay import Replay
from rookery.roles.replay_server import ReplayServer
from rookery.transport.calls import CallPort
from rookery.transport.sample_slots import FREE, MAX_EPISODES, SequencesPort, SlotSource
from rookery.transport.step_rings import RingSink, RingSource, StepsPort
from tests.wired import ends

SPEC = StepSpec(
    obs={"obs": ArraySpec((2,), np.dtype(np.float32))},
    action=ArraySpec((), np.dtype(np.int64)),
    state={"h": ArraySpec((3,), np.dtype(np.float32))},
    extra={name: ArraySpec((), np.dtype(np.float32)) for name in ("taken", "best")},
)
ENVS, ACTORS, WIDTH = 2, 2, 3
BATCH = 4


def rings(num_slots: int = 4, steps_each: int = 1) -> tuple[list[RingSink], RingSource]:
    """The ends of a ring that is all granted."""
    port = StepsPort(
        SPEC,
        num_actors=ACTORS,
        num_envs=ENVS,
        num_slots=num_slots,
        steps_each=steps_each,
        episode_width=WIDTH,
    )
    sinks, source = ends(port, replicas=ACTORS)
    source.grant_all()
    return sinks, source


def put(sink: RingSink, steps: Steps, episodes: Array | None = None, *, anew: Any = None) -> None:
    """Copy ``steps`` into the next slot and hand it over."""
    into = sink.reserve()
    for name in ("action", "reward", "terminated", "truncated", "valid"):
        getattr(into, name)[...] = getattr(steps, name)
    for group in ("obs", "final_obs", "state", "extra", "final_extra"):
        for name, leaf in (getattr(steps, group) or {}).items():
            getattr(into, group)[name][...] = leaf
    ended, valued = steps.final_obs is not None, steps.final_extra is not None
    told = NONE if episodes is None else episodes
    sink.put(into, told, ended=ended, valued=valued, anew=anew)


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
    sinks, source = rings()
    told = np.arange(WIDTH, dtype=np.float64)[None]
    put(sinks[1], step(7, 1, ended=True), told, anew=[True, False])
    put(sinks[1], step(8, 1))
    assert source.head() == 1
    slot = source.take(1)
    taken, episodes = slot.read()
    wanted = step(7, 1, ended=True)
    assert taken.stream.tolist() == [2, 3]
    for field in ("action", "reward", "terminated", "truncated", "valid"):
        assert np.array_equal(getattr(taken, field), getattr(wanted, field)), field
    for group in ("obs", "final_obs", "state", "extra", "final_extra"):
        mine, theirs = getattr(taken, group), getattr(wanted, group)
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs), group
    assert np.array_equal(episodes, told)
    assert slot.anew.tolist() == [True, False]
    source.done(1, ahead=True)
    slot = source.take(1)
    later, episodes = slot.read()
    assert later.final_obs is None
    assert later.final_extra is None
    assert len(episodes) == 0
    assert not slot.anew.any()


def test_a_full_ring_takes_no_more() -> None:
    (sink, _), source = rings(num_slots=4, steps_each=2)
    for number in range(4):
        assert sink.can_put() == (number <= 2)
        put(sink, step(number))
    with pytest.raises(RuntimeError, match="reserve\\(\\) without can_put"):
        sink.reserve()
    for room in (False, True):
        source.take(0)
        source.done(0, ahead=True)
        assert sink.can_put() == room


def test_whoever_is_woken_may_put() -> None:
    """Room is granted before the wake-up: who looks too early would sleep on."""
    (sink, _), source = rings(num_slots=1)
    put(sink, step(0))
    seen = []

    class Notified:
        def notify(self) -> None:
            seen.append(sink.can_put())

    source.end = replace(source.end, peers=[Notified(), Notified()])
    source.take(0)
    assert not sink.can_put()
    source.done(0, ahead=True)
    assert seen == [True]


def test_only_the_reserved_steps_can_be_put() -> None:
    (sink, _), _ = rings()
    sink.reserve()
    with pytest.raises(RuntimeError, match="not reserved"):
        sink.put(step(1), NONE, ended=False, valued=False)


def test_nobody_puts_what_was_not_granted() -> None:
    sinks, source = rings(steps_each=2)
    source.rings.counts[:] = 0
    assert not source.granted()
    assert not any(sink.can_put() for sink in sinks)
    for turn, actor in enumerate((0, 1, 0)):
        source.grant_next(num_puts=2 * turn)
        assert [sink.can_put() for sink in sinks] == [actor == 0, actor == 1]
        for number in range(2):
            put(sinks[actor], step(number, actor))
        with pytest.raises(RuntimeError, match="without can_put"):
            sinks[actor].reserve()
        assert source.granted()
        while (head := source.head()) is not None:
            source.take(head)
            source.done(head, ahead=False)
        assert not source.granted()


def test_actors_have_their_turns() -> None:
    sinks, source = rings()
    for actor, sink in enumerate(sinks):
        for number in range(3):
            put(sink, step(number, actor))
    order = []
    while (actor := source.head()) is not None:
        order.append(actor)
        source.take(actor)
        source.done(actor, ahead=True)
    assert order == [0, 1, 0, 1, 0, 1]


def test_another_life_of_an_actor_is_told() -> None:
    """It says so itself, of the first step that it puts; a slot does not say it again."""
    (sink, _), source = rings(num_slots=2)
    seen = []
    for number, anew in enumerate((np.ones(ENVS, np.bool_), None, np.ones(ENVS, np.bool_), None)):
        put(sink, step(number), anew=anew)
        seen.append(bool(source.take(0).anew.all()))
        source.done(0, ahead=True)
    assert seen == [True, False, True, False]


# --- the server between both ---------------------------------------------------------------------


def server(life: int = 0, **settings: Any) -> tuple[ReplayServer, SlotSource, RingSink]:
    config = ApeXConfig(
        **{"batch_size": BATCH, "learning_starts": 8, "capacity_steps": 400, "n_step": 1} | settings
    )
    algorithm = DQN(config, recurrent=False, device=torch.device("cpu"))
    rng = np.random.default_rng(0)
    replay = Replay(algorithm, SPEC, num_envs=ENVS, num_actors=ACTORS, rng=rng)
    port = SequencesPort(
        SPEC,
        num_slots=3,
        num_steps=config.sequence.num_steps,
        batch_size=BATCH,
        episode_width=WIDTH,
    )
    (learner_end,), batches = ends(port)
    sinks, source = rings()
    _, snapshots = ends(CallPort("snapshots", "", {}))
    built = ReplayServer(replay, source, batches, snapshots, life=life)
    built.start()
    return built, learner_end, sinks[0]


def feed(
    of: ReplayServer, sink: RingSink, numbers: range, episodes: Array | None = None, **how: Any
) -> None:
    for number in numbers:
        put(sink, step(number), episodes, **how)
        of.step()


def test_every_step_arrives_once() -> None:
    built, _, sink = server(steps_per_update=None)
    feed(built, sink, range(40))
    assert built.replay.steps == 40 * ENVS
    assert built.source.counted() == 40 * ENVS
    rewards = built.replay.table.sample(400, np.random.default_rng(1)).sequences.reward
    assert set(rewards.ravel().tolist()) <= set(map(float, range(40)))
    assert built.replay.table.size == 39 * ENVS, "the last step waits for what follows it"


def test_actors_wait_while_nobody_learns() -> None:
    """The ratio holds: so many steps, then no more until a batch was learned from."""
    built, source, sink = server(steps_per_update=4)
    number = 0
    while sink.can_put():
        put(sink, step(number))
        built.step()
        number += 1
        assert number < 1000
    before = built.replay.steps
    learned = 0
    while source.can_sample():
        source.sample()
        source.release(np.ones(BATCH, np.float32))
        built.step()
        learned += 1
        assert learned < 100
    assert built.replay.steps > before
    limiter = built.replay.limiter
    assert limiter.num_sampled == pytest.approx(
        limiter.num_put * BATCH / 4, abs=2 * limiter.config.least_buffer + BATCH
    )


def test_batches_come_in_order_with_steps_and_episodes() -> None:
    built, source, sink = server(steps_per_update=None)
    told = np.arange(2 * WIDTH, dtype=np.float64).reshape(2, WIDTH)
    feed(built, sink, range(8))
    feed(built, sink, range(8, 9), told)
    found, steps = [], []
    for number in range(6):
        assert source.can_sample()
        source.sample()
        source.release(np.ones(BATCH, np.float32))
        done, episodes = source.progress()
        found.append(episodes)
        steps.append(done)
        feed(built, sink, range(9 + number, 10 + number))
    assert np.array_equal(np.concatenate(found), told), "each episode is told once"
    assert steps == sorted(steps)


def test_more_episodes_than_a_batch_can_tell_wait_for_the_next() -> None:
    built, source, sink = server(steps_per_update=None)
    built.replay.episodes = [np.ones((MAX_EPISODES + 5, WIDTH))]
    feed(built, sink, range(12))
    counts = []
    for _ in range(2):
        source.sample()
        counts.append(len(source.progress()[1]))
        source.release(np.ones(BATCH, np.float32))
    assert counts == [MAX_EPISODES, 5]


def test_priorities_of_another_life_are_left_out() -> None:
    built, source, sink = server(steps_per_update=None)
    feed(built, sink, range(12))
    source.sample()
    source.release(np.full(BATCH, 1000.0, np.float32))
    built.life = 1
    built.step()
    assert built.replay.table.max_priority < 1000.0
    for _ in range(3):
        source.sample()
        source.release(np.full(BATCH, 500.0, np.float32))
    built.step()
    assert built.replay.table.max_priority == 500.0
    assert not built.slots.in_state(FREE), "all are filled again"


def test_an_episode_is_not_joined_to_that_of_a_replacement() -> None:
    built, _, sink = server(steps_per_update=None, n_step=3)
    feed(built, sink, range(5))
    feed(built, sink, range(100, 101), anew=True)
    feed(built, sink, range(101, 105))
    table = built.replay.table
    rewards = table.sample(300, np.random.default_rng(0)).sequences.reward
    spans = {tuple(column) for column in rewards.T.tolist()}
    assert all(max(span) - min(span) < 10 for span in spans)
    assert any(min(span) >= 100 for span in spans)
