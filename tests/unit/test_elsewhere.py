"""A policy judged elsewhere than where it was trained: what fits, what is told, what is refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

import rookery
from rookery.cli.arguments import without_section
from rookery.cli.eval import main
from rookery.core.errors import UserError
from rookery.envs.make import EnvConfig
from rookery.runs.checkpoint_files import Checkpoint
from rookery.runs.elsewhere import moved, other_game
from rookery.runs.trained import Trained, env_of, find_trained

PONG = "PongNoFrameskip-v4"


def trained_in(env_id: str, directory: Path, **more: object) -> rookery.Run:
    """A run of a few steps."""
    return rookery.train(
        env_id,
        run=directory,
        engine="inline",
        steps=8,
        env={"num_envs": 2},
        policy={"torso": "conv2d_small", "hidden": [8]},
        ppo={"rollout_steps": 4, "num_minibatches": 1, "num_epochs": 1},
        eval={"episodes": 0, "every_steps": None},
        **more,
    )


@pytest.fixture(scope="module")
def pong(tmp_path_factory: pytest.TempPathFactory) -> rookery.Run:
    return trained_in(PONG, tmp_path_factory.mktemp("elsewhere") / "pong")


@pytest.fixture(scope="module")
def agent(pong: rookery.Run) -> Trained:
    return find_trained(pong.path)


def env(agent: Trained, env_id: str = PONG, **atari: object) -> EnvConfig:
    return replace(agent.env, id=env_id, atari=replace(agent.env.atari, **atari))


def told(agent: Trained, there: EnvConfig, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING):
        assert moved(agent, there).env == there
    return [record.getMessage() for record in caplog.records]


@pytest.mark.slow
def test_the_same_game_is_no_news(agent: Trained, caplog: pytest.LogCaptureFixture) -> None:
    assert told(agent, env(agent), caplog) == []
    assert told(agent, env(agent, "ALE/Pong-v5", sticky=0.0), caplog) == []


def test_sticky_actions_and_frame_skip_are_told(
    agent: Trained, caplog: pytest.LogCaptureFixture
) -> None:
    assert told(agent, env(agent, "ALE/Pong-v5", frame_skip=2), caplog) == [
        "pong was trained with sticky actions 0 and is judged with 0.25",
        "pong was trained with frame skip 4 and is judged with 2",
    ]


def test_lost_lives_of_training_do_not_bind_the_judge(
    agent: Trained, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the native backend tells of lives, and whole games are judged."""
    there = replace(env(agent, life_loss=True), backend="serial")
    assert told(replace(agent, env=env(agent, life_loss=True)), there, caplog) == []


def test_another_game_is_refused_though_its_shapes_fit(agent: Trained) -> None:
    with pytest.raises(UserError, match=r"another game \(PongNoFrameskip-v4\)"):
        moved(agent, env(agent, "SpaceInvadersNoFrameskip-v4"))
    with pytest.raises(UserError, match=r"another game \(ale_py:PongNoFrameskip-v4\)"):
        moved(replace(agent, env=env(agent, f"ale_py:{PONG}")), env(agent, "ALE/SpaceInvaders-v5"))


def test_what_does_not_fit_is_refused(agent: Trained) -> None:
    with pytest.raises(UserError, match=r"action discrete\[\] of \[6\] against .* of \[18\]"):
        moved(agent, env(agent, full_action_space=True))
    with pytest.raises(UserError, match="does not fit CartPole-v1"):
        moved(agent, EnvConfig(id="CartPole-v1"))
    with pytest.raises(UserError, match="does not fit CartPole-v1"):
        moved(agent, env(agent, "CartPole-v1", life_loss=True))


@pytest.mark.slow
def test_a_run_is_judged_elsewhere(pong: rookery.Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        summary = pong.evaluate(2, max_steps=3, env={"id": "ALE/Pong-v5"})
    assert summary["lengths"] == [3, 3]
    assert "sticky actions 0 and is judged with 0.25" in caplog.text
    with pytest.raises(UserError, match=r"env\.frameskip"):
        pong.evaluate(2, env={"frameskip": 2})


def test_flags_of_the_environment_stand_anywhere_and_others_are_refused() -> None:
    words = ["--env.id", "ALE/Pong-v5", "runs/first", "--env.atari.sticky=0", "--json"]
    flags = {"env.id": "ALE/Pong-v5", "env.atari.sticky": "0"}
    assert without_section(words, "env") == (["runs/first", "--json"], flags)
    with pytest.raises(UserError, match=r"--env\.id: give it a value"):
        without_section(["runs/first", "--env.id"], "env")
    with pytest.raises(UserError, match="did you mean '--deterministic'"):
        main(["runs/first", "--determinstic"])


def test_where_weights_were_trained_need_not_be_there_any_more(tmp_path: Path) -> None:
    """A callable of another program, and a checkpoint without its run."""
    now = EnvConfig(id="ALE/Pong-v5")
    assert other_game(EnvConfig(id="gone_module:make"), now) is None
    assert env_of(Checkpoint(path=tmp_path / "a" / "b" / "c", steps=0, parts={})) is None


@pytest.mark.slow
def test_weights_of_another_game_are_named(
    pong: rookery.Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        trained_in("SpaceInvadersNoFrameskip-v4", tmp_path / "other", init_from=pong.path)
    assert "its weights are of another game (PongNoFrameskip-v4)" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        trained_in("ALE/Pong-v5", tmp_path / "same", init_from=pong.path)
    assert "another game" not in caplog.text
