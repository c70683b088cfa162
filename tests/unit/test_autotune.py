"""Autotune: the parts alone, the search, and the command with real trials."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import yaml

from rookery.cli.autotune import _fixed
from rookery.cli.main import main
from rookery.programs.plan import probe
from rookery.recipes.settings import settings_from_flags, tree_of_flags
from rookery.runs.config import RunConfig
from rookery.tune.rates import Rates, measure
from rookery.tune.search import Choice, Flags, search
from rookery.tune.trial import Trial, run_trial


def settings(flags: Flags) -> RunConfig:
    return _settings(tuple(sorted(flags.items())))


@cache
def _settings(flags: tuple[tuple[str, str], ...]) -> RunConfig:
    return settings_from_flags("cartpole", dict(flags))


def test_every_part_is_measured_alone() -> None:
    config = settings({"envs": "4"})
    rates = measure(config, probe(config.env, config.seed), 0.05)
    assert min(rates.env, rates.acting, rates.learning) > 0
    assert rates.one_core < min(rates.env, rates.acting, rates.learning)


def test_an_actor_is_measured_with_its_share_and_the_learner_with_its_batch() -> None:
    flags = {"envs": "4", "actors": "4", "policy.core": "gru", "ppo.num_minibatches": "4"}
    config = settings(flags)
    rates = measure(config, probe(config.env, config.seed), 0.02)
    assert min(rates.env, rates.acting, rates.learning) > 0


def test_one_core_that_does_all_in_turn_adds_up_the_times() -> None:
    assert Rates(env=100.0, acting=100.0, learning=50.0).one_core == pytest.approx(25.0)


def fake(config: RunConfig) -> Trial:
    """Allreduce is fastest, 64 environments are, and threads do not matter."""
    rate = 1000.0 if config.formation == "allreduce" else 400.0
    return Trial(rate * (1.5 if config.env.num_envs == 64 else 1.0), "")


@pytest.mark.slow
def test_the_search_keeps_what_is_faster_and_only_that() -> None:
    told: list[Choice] = []
    best = search(settings, fake, 2, told.append)
    assert best.flags["formation"] == "allreduce"
    assert best.flags["envs"] == "64"
    assert best.trial.steps_per_s == 1500.0
    assert not any("threads" in flag or "minibatches" in flag for flag in best.flags)
    assert {choice.flags.get("formation") for choice in told} >= {"sync", "allreduce", "hogwild"}
    assert all(choice.flags.get("formation") != "async" for choice in told)  # PPO cannot


@pytest.mark.slow
def test_every_formation_is_tried_whichever_was_fastest_before() -> None:
    def local_wins(config: RunConfig) -> Trial:
        return Trial(2.0 if (config.formation, config.engine) == ("sync", "local") else 1.0, "")

    told: list[Choice] = []
    best = search(settings, local_wins, 2, told.append)
    assert best.flags["actors"] == "2"
    assert {choice.flags.get("formation") for choice in told} >= {"sync", "allreduce", "hogwild"}


def test_another_number_of_actors_leaves_the_batch_as_it_is() -> None:
    def fixed_envs(flags: Flags) -> RunConfig:
        return settings(flags | {"envs": "32"})

    tried: list[RunConfig] = []

    def note(config: RunConfig) -> Trial:
        tried.append(config)
        return Trial(1.0, "")

    search(fixed_envs, note, 4, lambda choice: None, {"envs"})
    assert {config.formation_config.num_actors for config in tried} == {1, 4}
    assert {config.env.num_envs for config in tried} == {32}


def test_what_workers_were_given_stays() -> None:
    assert "actors" in _fixed({"workers": "3"})
    assert "actors" in _fixed({"hogwild.num_workers": "3"})
    assert "actors" in _fixed({"sync.num_actors": "3"})


@pytest.mark.slow
def test_replay_is_tried_with_its_own_engines_and_actors() -> None:
    told: list[Choice] = []
    search(
        lambda flags: settings_from_flags("dqn-cartpole", flags),
        lambda config: Trial(1.0 + 0.5 * (config.formation_config.num_actors == 3), ""),
        4,
        told.append,
    )
    tried = {(choice.flags.get("engine"), choice.flags.get("actors")) for choice in told}
    assert {("local", "1"), ("local", "3"), ("local", "4")} <= tried
    assert all("formation" not in choice.flags for choice in told)
    assert any(choice.flags.get("replay.learner_threads") == "2" for choice in told)


def test_replay_is_measured_by_what_its_actor_put() -> None:
    config = settings_from_flags("dqn-cartpole", {"envs": "4"})
    rates = measure(config, probe(config.env, config.seed), 0.05)
    assert min(rates.env, rates.acting, rates.learning) > 0


@pytest.mark.slow
def test_a_gain_within_the_noise_changes_nothing() -> None:
    def nearly(config: RunConfig) -> Trial:
        return Trial(100.0 if config == settings({}) else 102.0, "")

    assert search(settings, nearly, 2, lambda choice: None).flags == {}


@pytest.mark.slow
def test_what_the_user_gave_stays_and_nothing_is_tried_twice() -> None:
    tried: list[RunConfig] = []

    def note(config: RunConfig) -> Trial:
        tried.append(config)
        return Trial(1.0, "")

    told: list[Choice] = []
    search(
        lambda flags: settings_from_flags("cartpole", flags | {"formation": "sync"}),
        note,
        2,
        told.append,
        fixed={"formation"},
    )
    assert {config.formation for config in tried} == {"sync"}
    assert all(tried.count(config) == 1 for config in tried)
    assert all("formation" not in choice.flags for choice in told)  # nor is said to be tried


@pytest.mark.slow
def test_a_trial_trains_and_tells_its_rate() -> None:
    trial = run_trial(settings({"envs": "4", "ppo.rollout_steps": "8"}), 3.0)
    assert trial.steps_per_s > 0
    assert "learning" in trial.remark


@pytest.mark.slow
def test_a_trial_that_fails_tells_why() -> None:
    config = settings_from_flags("CartPole-v1", {"env.wrappers": "[tests.no_such:Wrapper]"})
    trial = run_trial(config, 1.0)
    assert trial.steps_per_s == 0
    assert "tests.no_such" in trial.remark


@pytest.mark.slow
def test_the_command_writes_a_file_that_train_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--formation", "sync", "--engine", "inline", "--envs", "8", "--secs", "0.3"]
    given += ["--ppo.rollout_steps", "8", "--ppo.num_minibatches", "1"]
    given += ["--sync.learner_threads", "1", "--ppo.num_epochs", "1"]
    assert main(["autotune", "cartpole", *given, "--out", "best.yaml", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["best"] in told["trials"]
    assert told["rates"]["env"] > 0
    found = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert (found["formation"], found["engine"], found["env"]) == (
        "sync",
        "inline",
        {"num_envs": 8},
    )
    assert found["ppo"]["rollout_steps"] == 8  # what was given is part of what was found
    words = ["--steps", "600", "--eval.episodes", "0", "--quiet", "--run", "run"]
    assert main(["train", "cartpole", "--config", "best.yaml", *words]) == 0


def test_what_a_file_said_is_part_of_what_was_found(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "algo: a2c\nenv: {id: CartPole-v1, num_envs: 4}\nformations: {sync: {seed: 7}}\n"
    )
    flags = {"config": str(file), "envs": "16"}
    config = settings_from_flags(None, flags)
    again = tmp_path / "found.yaml"
    again.write_text(yaml.safe_dump(tree_of_flags(config, flags)))
    assert settings_from_flags(None, {"config": str(again)}) == config
    assert (config.seed, config.env.num_envs) == (7, 16)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cartpol"], "unknown recipe 'cartpol'"),
        (["cartpole", "--secs", "0"], "--secs: must be positive"),
        (["cartpole", "--out", "best.txt"], "name a file .yaml"),
        (["cartpole", "--nonsense", "1"], "unknown flag --nonsense"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["autotune", *words]) == 2
    assert message in capsys.readouterr().err
