"""Formation replay in one thread: actors take turns, and who begins anew joins no old episode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.engines.replayed import WithReplay, build_replayed
from rookery.recipes.settings import settings_from_python
from rookery.roles.build import probe
from rookery.roles.explorer import Explorer
from rookery.runs.directory import RunDirectory
from rookery.runs.find import load_checkpoint

ENVS = 2
SETTINGS: dict[str, Any] = {
    "algo": "dqn",
    "policy": {"hidden": [8]},
    "metrics": {"sinks": ["jsonl"]},
    "eval": {"episodes": 0},
    "env": {"num_envs": ENVS},
    "dqn": {"batch_size": 4, "learning_starts": 20, "capacity_steps": 400, "n_step": 3},
}


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., tuple[list[Explorer], WithReplay]]:
    def build(**given: Any) -> tuple[list[Explorer], WithReplay]:
        actors = given.get("replay", {}).get("num_actors", 1)
        given = SETTINGS | given | {"env": {"num_envs": actors * ENVS}}
        config = settings_from_python("CartPole-v1", given)
        run = RunDirectory.create(tmp_path / "run", name="replay")
        signature = probe(config.env, config.seed)
        actors, learner = build_replayed(config, signature, run, start_steps=lambda replica: 0)
        assert isinstance(learner, WithReplay)
        learner.start()
        return actors, learner

    return build


@pytest.mark.parametrize("rollout_steps", [1, 3])
@pytest.mark.parametrize("steps_per_update", [1.0, 4.0, 30.0])
def test_actors_take_turns(
    build: Callable[..., tuple[list[Explorer], WithReplay]],
    rollout_steps: int,
    steps_per_update: float,
) -> None:
    given = {"rollout_steps": rollout_steps, "steps_per_update": steps_per_update}
    actors, learner = build(replay={"num_actors": 3}, dqn=SETTINGS["dqn"] | given)
    turns = []
    while len(turns) < 60:
        ready = [replica for replica, actor in enumerate(actors) if actor.ready()]
        assert len(ready) <= 1
        for replica in ready:
            actors[replica].step()
            turns.append(replica)
        if learner.ready():
            learner.step()
    assert turns == [0, 1, 2] * 20


@pytest.mark.parametrize("actors", [1, 2])
def test_where_neither_side_waits_both_have_their_turn(actors: int, tmp_path: Path) -> None:
    dqn = SETTINGS["dqn"] | {"steps_per_update": None}
    given = SETTINGS | {"dqn": dqn, "replay": {"num_actors": actors}}
    given |= {"env": {"num_envs": actors * ENVS}}
    run = rookery.train("CartPole-v1", run=tmp_path / "run", steps=300, **given)
    last = load_checkpoint(run.path, "latest").parts["learner"].data
    assert 300 <= last["steps"] <= 300 + actors * ENVS
    rounds = (300 - 20) / (actors * ENVS)  # and some in which environments only begin anew
    assert rounds <= last["updates"] <= 1.2 * rounds


def test_who_begins_anew_joins_no_old_episode(
    build: Callable[..., tuple[list[Explorer], WithReplay]],
) -> None:
    actors, learner = build(replay={"num_actors": 2})
    for _ in range(3):
        for actor in actors:
            actor.step()
    saved = actors[0].save_state()
    assert saved is not None
    actors[0].load_state(saved)
    assert not len(actors[0].begun_anew()), "it goes on where it was"
    assert actors[1].begun_anew().tolist() == [2, 3]
    learner.leave_episodes(actors)
    for actor in actors:
        actor.step()
    assert learner.replay.table.size == ENVS, "of whoever goes on, a window of three steps each"


def test_episodes_that_cannot_be_repeated_are_left(
    build: Callable[..., tuple[list[Explorer], WithReplay]],
) -> None:
    (actor,), _ = build()
    actor.step()
    saved = actor.save_state()
    assert saved is not None
    actor.lane.envs.lost_episodes[:] = [False, True]
    actor.load_state(saved)
    assert actor.begun_anew().tolist() == [1]
