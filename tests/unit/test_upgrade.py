"""Configurations of version 1, where environments were counted for each of those who act."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from rookery.core.errors import UserError
from rookery.formations.asynchronous import AsyncConfig
from rookery.recipes import upgrade
from rookery.recipes.settings import config_from_tree, settings_from_flags
from rookery.recipes.upgrade import upgraded
from rookery.runs.config import VERSION
from rookery.runs.directory import RunDirectory
from rookery.runs.trained import load_config

BLOCKS: dict[str, dict[str, Any]] = {
    "allreduce": {"num_workers": 2, "worker_threads": 1, "check_every": 100},
    "async": {
        "num_actors": 3,
        "slots_per_actor": 2,
        "rollouts_per_batch": 4,
        "max_lag": None,
        "learner_threads": 1,
        "threads": True,
    },
    "hogwild": {
        "num_workers": 4,
        "worker_threads": 1,
        "shared_statistics": True,
        "devices": [],
    },
    "replay": {
        "num_actors": 3,
        "num_learners": 1,
        "lockstep": True,
        "learner_threads": 1,
        "save_replay": True,
    },
    "sync": {"num_actors": 2, "learner_threads": 1},
}
"""What version 1 wrote."""

SAYS = {
    "allreduce": "env.num_envs 16 for each of 2 workers is now 32 for the whole run",
    "async": "env.num_envs 16 for each of 3 actors is now 48 for the whole run, "
    "async.rollouts_per_batch 4 is now async.batch_envs 64, async.threads is now threads",
    "hogwild": "env.num_envs 16 for each of 4 workers is now 64 for the whole run",
    "replay": "env.num_envs 16 for each of 3 actors is now 48 for the whole run",
    "sync": "env.num_envs 16 for each of 2 actors is now 32 for the whole run",
}


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    upgrade._tell.cache_clear()


def first_version(formation: str, **block: Any) -> dict[str, Any]:
    """A run's config.yaml as version 1 wrote it."""
    algo = {"async": "impala", "replay": "dqn"}.get(formation, "ppo")
    flags = {"formation": formation, "algo": algo, "envs": "16", "steps": "5000"}
    tree = settings_from_flags("CartPole-v1", flags).to_tree()
    del tree["version"], tree["threads"]
    return tree | {formation: BLOCKS[formation] | block}


@pytest.mark.parametrize("formation", BLOCKS)
def test_a_whole_configuration_is_converted_and_one_line_says_so(
    formation: str, caplog: pytest.LogCaptureFixture
) -> None:
    tree = first_version(formation)
    config = config_from_tree(tree, "old/config.yaml")
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"old/config.yaml of an earlier version: {SAYS[formation]}"]
    actors = tree[formation].get("num_workers") or tree[formation]["num_actors"]
    assert config.env.num_envs == 16 * actors
    assert config.formation_config.num_actors == actors
    assert config.threads == (formation == "async")
    if isinstance(config.formation_config, AsyncConfig):
        assert config.formation_config.batch_envs == 64
    assert config_from_tree(config.to_tree()) == config, "converted once"
    assert len(caplog.records) == 1
    assert "num_workers" not in str(config.to_tree()[formation])


def test_it_is_said_once_however_often_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        config_from_tree(first_version("sync"))
    assert len(caplog.records) == 1


@pytest.mark.parametrize("formation", BLOCKS)
def test_where_one_acted_nothing_is_said(formation: str, caplog: pytest.LogCaptureFixture) -> None:
    count = "num_workers" if "num_workers" in BLOCKS[formation] else "num_actors"
    changes: dict[str, Any] = {count: 1}
    if formation == "async":
        changes |= {"rollouts_per_batch": None, "threads": False}
    config = config_from_tree(first_version(formation, **changes))
    assert (config.env.num_envs, config.formation_config.num_actors) == (16, 1)
    assert not config.threads
    assert caplog.records == []


def test_a_runs_own_file_goes_through_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunDirectory.create(tmp_path / "run", name="x")
    run.write_config(yaml.safe_dump(first_version("hogwild")))
    config = load_config(run)
    assert (config.env.num_envs, config.formation_config.num_actors) == (64, 4)
    assert f"{run.config_path} of an earlier version" in caplog.text


def test_a_file_given_by_hand_goes_through_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, tree = tmp_path / "old.yaml", first_version("allreduce")
    file.write_text(yaml.safe_dump(tree))
    config = settings_from_flags(None, {"config": str(file)})
    assert config.env.num_envs == 32
    assert caplog.text.count("of an earlier version") == 1
    file.write_text(yaml.safe_dump({"version": VERSION} | tree))
    assert settings_from_flags(None, {"config": str(file)}).env.num_envs == 16
    assert settings_from_flags(None, {"config": str(file), "envs": "8"}).env.num_envs == 8


PARTIAL: dict[str, dict[str, Any]] = {
    "no total": {"formation": "sync", "env": {"num_envs": 16}, "sync": {"num_actors": 2}},
    "no block": {"formation": "sync", "env": {"num_envs": 16}, "total_steps": 9},
    "no formation": {"env": {"num_envs": 16}, "sync": {"num_actors": 2}, "total_steps": 9},
    "no environments": {"formation": "sync", "sync": {"num_actors": 2}, "total_steps": 9},
    "a new setting": {
        "formation": "sync",
        "env": {"num_envs": 16},
        "sync": {"num_actors": 2},
        "total_steps": 9,
        "threads": False,
    },
    "a new name": {
        "formation": "hogwild",
        "env": {"num_envs": 16},
        "hogwild": {"num_actors": 2},
        "total_steps": 9,
    },
    "a formation of one's own": {
        "formation": "mine:Gossip",
        "env": {"num_envs": 16},
        "gossip": {"num_actors": 2},
        "total_steps": 9,
    },
    "nothing": {},
}


@pytest.mark.parametrize("case", PARTIAL)
def test_what_has_only_some_settings_is_taken_as_it_stands(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert upgraded(PARTIAL[case], "f.yaml") == PARTIAL[case]
    assert caplog.records == []


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (VERSION + 1, "f.yaml: version: 3 is of a newer Rookery, and this one knows 2; `pip"),
        ("2", "f.yaml: version: must be a whole number from 1, got '2'"),
        (True, "f.yaml: version: must be a whole number from 1, got True"),
        (0, "f.yaml: version: must be a whole number from 1, got 0"),
        (None, "f.yaml: version: must be a whole number from 1, got None"),
    ],
)
def test_versions_that_are_not_ours(version: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        config_from_tree({"version": version, "env": {"id": "CartPole-v1"}}, "f.yaml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_was_trained_stays_what_it_was() -> None:
    """The batch of two actors is as large as it was."""
    tree = first_version("sync")
    config = config_from_tree(tree)
    assert config.formation_config.batch_columns(config.env.num_envs) == 2 * 16
    assert tree["env"]["num_envs"] == 16, "what was given is left alone"
