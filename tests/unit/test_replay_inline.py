"""Formation replay in one thread: actors take turns, and who begins anew joins no old episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.recipes.settings import settings_from_python
from rookery.replay.store import ReplayStore
from rookery.runs.directory import RunDirectory
from rookery.runs.find import load_checkpoint
from rookery.transport.calls import NUM_QUESTIONS
from tests.wired import Crew

ENVS = 2
SETTINGS: dict[str, Any] = {
    "algo": "dqn",
    "policy": {"hidden": [8]},
    "metrics": {"sinks": ["jsonl"]},
    "eval": {"episodes": 0},
    "env": {"num_envs": ENVS},
    "dqn": {"batch_size": 4, "learning_starts": 20, "capacity_steps": 400, "n_step": 3},
}


class Stage:
    """Actors, replay and a learner that take turns."""

    def __init__(self, num_actors: int = 1, **dqn: Any) -> None:
        given = SETTINGS | {
            "env": {"num_envs": num_actors * ENVS},
            "replay": {"num_actors": num_actors},
            "dqn": SETTINGS["dqn"] | dqn,
        }
        self.crew = Crew(settings_from_python("CartPole-v1", given))
        self.actors = self.crew.roles("actor")
        self.replay, self.learner = self.crew.role("replay"), self.crew.role("learner")
        self.learner.start()
        self.replay.start()

    def act(self, replica: int) -> None:
        """A turn of this actor, and what it put into replay."""
        assert self.actors[replica].ready()
        self.actors[replica].step()
        self.replay.step()

    def anew(self) -> Any:
        """``[slots, B]`` of the first actor: whose episodes were not those put before."""
        return self.crew.memory("steps")["slot/anew"][0]


@pytest.mark.slow
@pytest.mark.parametrize("rollout_steps", [1, 3])
@pytest.mark.parametrize("steps_per_update", [1.0, 4.0, 30.0])
def test_actors_take_turns(rollout_steps: int, steps_per_update: float) -> None:
    stage = Stage(3, rollout_steps=rollout_steps, steps_per_update=steps_per_update)
    turns = []
    while len(turns) < 60:
        ready = [replica for replica, actor in enumerate(stage.actors) if actor.ready()]
        assert len(ready) <= 1
        for replica in ready:
            stage.actors[replica].step()
            turns.append(replica)
        worked = [role.step() for role in (stage.replay, stage.learner) if role.ready()]
        assert ready or worked
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


def test_who_begins_anew_joins_no_old_episode() -> None:
    stage = Stage(2)
    for replica in (0, 1) * 3:
        stage.act(replica)
    saved = stage.actors[0].save_episodes()
    assert saved is not None
    stage.actors[0].load_episodes(saved)
    stage.actors[1] = stage.crew.role("actor", 1, life=1)
    for replica in (0, 1):
        stage.act(replica)
    table = stage.replay.replay.table
    assert table.size == ENVS, "of whoever goes on, a window of three steps each"


def test_episodes_that_cannot_be_repeated_are_left() -> None:
    stage = Stage()
    stage.act(0)
    (actor,) = stage.actors
    saved = actor.save_episodes()
    assert saved is not None
    actor.lane.envs.lost_episodes[:] = [False, True]
    actor.load_episodes(saved)
    stage.act(0)
    assert stage.anew()[:2].tolist() == [[True, True], [False, True]]


def test_every_checkpoint_has_replay_save_itself(tmp_path: Path) -> None:
    """Also after more of them than questions may wait."""
    run = rookery.train(
        "CartPole-v1",
        run=tmp_path / "run",
        steps=240,
        **SETTINGS,
        checkpoint={"every_steps": 20, "keep": 20},
    )
    saved = [path.name for path in (run.path / "checkpoints").iterdir() if path.name.isdigit()]
    assert len(saved) > NUM_QUESTIONS
    for name in saved:
        assert load_checkpoint(run.path, name).parts["replay"].data["snapshot"] == int(name)
    last = ReplayStore(RunDirectory.open(run.path).replay).available()[-1]
    assert last == max(map(int, saved))
