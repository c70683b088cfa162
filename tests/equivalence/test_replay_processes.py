"""Replay gives the same batches in another process, through shared memory, as in this thread.

One stream of steps, one order of turns: the actor and the learner are here; replay is either here
too, around ordinary memory, or a process of its own that is told when it has its turn. Whatever the
learner does must not tell which: to the bit.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rookery.carriers.heap import allocate
from rookery.carriers.shared_memory import SharedArena
from rookery.core.ports import InTurn
from rookery.core.spec import Array, Arrays
from rookery.engines.assemble import Wired, layouts
from rookery.engines.loop import Member, build_member
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_python

SETTINGS: dict[str, Any] = {
    "envs": 4,
    "seed": 5,
    "policy": {"hidden": [16]},
    "eval": {"episodes": 0},
    "replay": {"save_replay": False},
}
LEARNS = {"batch_size": 8, "learning_starts": 40, "capacity_steps": 300, "steps_per_update": 4}
CASES: dict[str, dict[str, Any]] = {
    "dqn": LEARNS | {"n_step": 3},
    "apex": LEARNS | {"rollout_steps": 2},
    "r2d2": LEARNS | {"length": 8, "burn_in": 4, "overlap": 4, "steps_per_update": 16},
}


@dataclass
class Seen:
    """What the learner was given and made of it."""

    batches: list[Array] = field(default_factory=list)
    keys: list[Array] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


def plan_of(algo: str, engine: str) -> Plan:
    policy = {"hidden": [16]} | ({"core": "lstm", "core_size": 8} if algo == "r2d2" else {})
    given = SETTINGS | {"algo": algo, algo: CASES[algo], "engine": engine, "policy": policy}
    return Plan.of(settings_from_python("CartPole-v1", given))


def member(plan: Plan, arrays: Arrays, name: str) -> Member:
    program = plan.program()
    wakeups = {node.name: [InTurn()] * node.replicas for node in program.nodes}
    wired = Wired(program, arrays, wakeups)
    return build_member(wired, plan, program.node(name), 0, run=Path("nowhere"))


def play(plan: Plan, arrays: Arrays, replay_turn: Callable[[], None], passes: int) -> Seen:
    """Actor, replay and learner in turn."""
    torch.set_num_threads(1)
    actor, learner = (member(plan, arrays, name).role for name in ("actor", "learner"))
    seen = Seen()
    learner.start()
    replay_turn()
    try:
        for _ in range(passes):
            if actor.ready():
                actor.step()
            replay_turn()
            if learner.ready():
                note(seen, learner)
    finally:
        actor.close()
    return seen


def note(seen: Seen, learner: Any) -> None:
    slots = learner.source.slots
    slot = next(slot for slot in slots.in_state(1))
    seen.keys.append(slots.keys[slot].copy())
    seen.batches.append(slots.sequences[slot].obs["obs"].copy())
    seen.steps.append(learner.step().steps)
    seen.weights.append(learner.flat.data.clone())


def here(plan: Plan, passes: int) -> Seen:
    arrays = allocate(layouts(plan.program()))
    replay = member(plan, arrays, "replay").role
    replay.start()
    return play(plan, arrays, lambda: take_turn(replay), passes)


def take_turn(replay: Any) -> None:
    while replay.ready():
        replay.step()


def elsewhere(plan: Plan, passes: int) -> Seen:
    arena = SharedArena.create(layouts(plan.program()))
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=serve, args=(plan, arena.arrays, theirs), daemon=True)
    process.start()

    def turn() -> None:
        ours.send("turn")
        assert ours.poll(60), "replay did not end its turn"
        assert ours.recv() == "done"

    try:
        return play(plan, arena.arrays, turn, passes)
    finally:
        process.kill()
        process.join()
        arena.close()


def serve(plan: Plan, arrays: Arrays, pipe: Connection) -> None:
    """The other process."""
    replay = member(plan, arrays, "replay").role
    replay.start()
    while True:
        pipe.recv()
        take_turn(replay)
        pipe.send("done")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "local"])
@pytest.mark.parametrize("algo", CASES)
def test_replay_in_another_process_equals_replay_here(algo: str, engine: str) -> None:
    """With one batch at a time as ``inline`` has it, and with some ready ahead as ``local`` has."""
    plan = plan_of(algo, engine)
    mine, theirs = here(plan, 150), elsewhere(plan, 150)
    assert len(mine.keys) > 20
    assert mine.steps == theirs.steps
    for name in ("keys", "batches"):
        for a, b in zip(getattr(mine, name), getattr(theirs, name), strict=True):
            assert np.array_equal(a, b), name
    assert all(torch.equal(a, b) for a, b in zip(mine.weights, theirs.weights, strict=True))
    assert not torch.equal(mine.weights[0], mine.weights[-1])
