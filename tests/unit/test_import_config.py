"""MarltasCore's configurations as settings of ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rookery.algos.dqn import DQNConfig
from rookery.cli.main import main
from rookery.core.errors import UserError
from rookery.recipes.marltascore import DEFAULTS, NO_COUNTERPART, translate
from rookery.recipes.settings import config_from_tree, settings_from_flags

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from-marltascore.md"


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *path, name = key.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[name] = value
    return tree


def imported(algo: Any = None, **flat: Any) -> Any:
    """The run that a file with these keys (dots as two underscores) becomes."""
    given = nested({key.replace("__", "."): value for key, value in flat.items()})
    return config_from_tree(translate(given, "m.yaml", algo=algo).tree)


def test_an_empty_file_means_the_defaults_of_marltascore() -> None:
    for algo, batch_size in (("dqn", 64), ("r2d2", 32)):
        config = imported(algo)
        assert (config.algo, config.formation, config.env.id) == (
            algo,
            "replay",
            "PongNoFrameskip-v4",
        )
        assert isinstance(config.algo_config, DQNConfig)
        assert config.algo_config.batch_size == batch_size
        assert config.algo_config.gamma == 0.997
        assert config.device == "cpu"


@pytest.mark.slow
def test_the_keys_tell_an_rnn_from_a_cnn() -> None:
    assert imported().algo == "dqn"
    assert imported().policy.core == "none"
    for key in ("seq_len", "actor__window_skip", "model__lstm_hidden_size"):
        config = imported(**{key: 12})
        assert (config.algo, config.policy.core) == ("r2d2", "lstm")


def test_sequences_have_the_same_steps() -> None:
    """16 steps, of which those learn that see three ahead; the next begins eight later."""
    algo = imported(seq_len=16, n_step=3, actor__window_skip=8).algo_config
    assert algo.sequence.num_steps == 16
    assert (algo.length, algo.sequence.period, algo.burn_in) == (14, 8, 0)
    assert algo.capacity_steps == 10_000 * 8
    assert algo.learning_starts == 100 * 8


def test_windows_that_leave_steps_out_follow_each_other() -> None:
    tree = {"seq_len": 4, "n_step": 1, "actor": {"window_skip": 9}}
    found = translate(tree, "m.yaml")
    assert found.tree["r2d2"]["overlap"] == 0
    assert "leave no step out" in found.left_out["actor.window_skip"]


def test_intervals_become_steps() -> None:
    given = nested({"trainer.max_global_step": 1000, "trainer.eval_interval": 50})
    tree = translate(given, "m.yaml", steps_per_update=2.5).tree
    assert tree["total_steps"] == 2500
    assert tree["eval"]["every_steps"] == 125
    assert tree["dqn"]["steps_per_update"] == 2.5


def test_environments_are_those_of_all_actors() -> None:
    found = translate({"n_actor_process": 4, "actor": {"vector_env_size": 5}}, "m.yaml")
    assert (found.tree["version"], found.tree["env"]["num_envs"]) == (2, 20)
    config = config_from_tree(found.tree)
    assert (config.env.num_envs, config.formation_config.num_actors) == (20, 4)


def test_a_synchronous_training_says_its_ratio() -> None:
    given = nested(
        {
            "trainer.learner_step_per_global_step": 2,
            "trainer.max_global_step": 100,
            "actor.vector_env_size": 8,
            "n_actor_process": 3,
        }
    )
    found = translate(given, "m.yaml", steps_per_update=99.0)
    assert found.tree["dqn"]["steps_per_update"] == 4.0
    assert found.tree["total_steps"] == 800
    assert found.tree["replay"] == {"num_actors": 1}
    assert found.tree["env"]["num_envs"] == 8
    assert found.left_out == {"n_actor_process": "a synchronous training has one actor"}


@pytest.mark.parametrize(
    ("flat", "path", "value"),
    [
        ({"learner__gpu_id": 1}, "device", "cuda:1"),
        ({"learner__double_dqn": False}, "algo_config.double", False),
        ({"apply_value_scaling": True}, "algo_config.rescale", True),
        ({"model__dueling": False}, "policy.dueling", False),
        ({"replay_buffer__prioritized_replay": False}, "algo_config.priority_exponent", 0.0),
        ({"replay_buffer__alpha": 0.5}, "algo_config.priority_exponent", 0.5),
        ({"evaluator__eps": 0}, "eval.deterministic", True),
        ({"evaluator__custom_metric_keys": ["x"]}, "metrics.info_keys", ("x",)),
        ({"env__wrap_atari": False}, "env.atari.preprocess", False),
        ({"env__wrap_atari": True}, "env.atari.life_loss", True),
        ({"env__name": "CartPole-v1", "obs_shape": [4]}, "policy.hidden", (32, 64)),
        ({"env__name": "CartPole-v1", "obs_shape": [4]}, "algo_config.reward_min", None),
        ({"trainer__actor_manager__min_eps": 0.1}, "algo_config.epsilon.end", 0.1),
        ({"update_param_interval": 7}, "algo_config.rollout_steps", 7),
    ],
)
def test_where_values_go(flat: dict[str, Any], path: str, value: Any) -> None:
    found: Any = imported(**flat)
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value


def other_text(usual: str) -> str:
    return "10.0.0.9:5555" if ":" in usual else "CartPole-v1"


def test_every_key_goes_somewhere_or_says_why_not() -> None:
    """A changed value of any key changes the settings, or is told as left out."""
    other = {bool: lambda v: not v, str: other_text, list: lambda v: ["x"]}
    told = {"seq_len": 16, "env.wrap_atari": True, "intrinsic_reward.enable": True}
    for key, usual in DEFAULTS.items():
        if key == "intrinsic_reward.enable":
            continue  # the others have a meaning only if it is true
        changed = other.get(type(usual), lambda v: (v or 0) + 1)(usual)
        found = translate(nested(told | {key: changed}), "m")
        same = found.tree == translate(nested(told), "m").tree
        assert same == (key in found.left_out) or key == "evaluator.eps", key


def test_keys_without_a_counterpart_are_known_keys() -> None:
    assert set(NO_COUNTERPART) <= set(DEFAULTS)


def test_intrinsic_rewards_become_those_of_agent57() -> None:
    config = imported(
        seq_len=16,
        intrinsic_reward__enable=True,
        intrinsic_reward__reward_ratio=0.2,
        intrinsic_reward__feature_size=48,
        intrinsic_reward__predictor_train_window_size=3,
        episodic_curiosity__enable=True,
        episodic_curiosity__k=7,
        episodic_curiosity__L=4.0,
        episodic_curiosity__feature_size=24,
    )
    assert (config.algo, config.policy.core) == ("agent57", "lstm")
    algo: Any = config.algo_config
    assert (algo.length, algo.n_step, algo.gamma) == (14, 3, 0.997)
    assert (algo.family.num_arms, algo.family.choice, algo.family.beta_max) == (2, "fixed", 0.2)
    assert algo.family.gammas(algo.gamma).tolist() == pytest.approx([0.997, 0.997])
    new = algo.novelty
    assert (new.episodic, new.life_long, new.num_neighbours, new.limit) == (True, True, 7, 4.0)
    assert (new.distilled_features, new.train_steps, new.embedding_features) == (48, 3, 24)
    assert (new.kernel_eps, new.cluster_distance, new.pseudo_count) == (1e-4, 0.008, 0.001)


def test_a_controller_is_a_bandit() -> None:
    found = imported("dqn", intrinsic_reward__enable=True, intrinsic_reward__use_ucb=True)
    assert (found.algo, found.policy.core, found.algo_config.length) == ("agent57", "none", 1)
    family: Any = found.algo_config.family
    assert (family.choice, family.num_arms, family.window) == ("bandit", 32, 520)
    assert (family.random_share, family.score) == (0.1, "ucb1_tuned")
    assert not found.algo_config.novelty.episodic, "off in MarltasCore unless it is asked for"


def test_intrinsic_rewards_that_are_off_are_told() -> None:
    found = translate({"intrinsic_reward": {"enable": False, "use_ucb": True}}, "m")
    assert found.tree["algo"] == "dqn"
    assert found.left_out == {"intrinsic_reward.use_ucb": "intrinsic_reward.enable is false"}


def test_the_section_of_episodic_curiosity_may_stand_in_either_place() -> None:
    nested_one = {"intrinsic_reward": {"enable": True, "episodic_curiosity": {"k": 5}}}
    alone = {"intrinsic_reward": {"enable": True}, "episodic_curiosity": {"k": 5}}
    assert translate(nested_one, "m").tree == translate(alone, "m").tree


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lerner: {batch_size: 3}", r"unknown key 'lerner'"),
        ("learner: {bach_size: 3}", r"unknown key 'learner.bach_size'; did you mean 'learner.bat"),
        ("trainer: {actor_manager: {min_ep: 1}}", r"did you mean 'trainer.actor_manager.min_eps'"),
        ("gama: 1", r"unknown key 'gama'; did you mean 'gamma'"),
        ("learner: 3", r"learner: must be a mapping of settings, got 3"),
        ("gamma: high", r"gamma: must be a number, got 'high'"),
        ("seq_len: 2.5", r"seq_len: must be a whole number, got 2.5"),
        ("n_step: true", r"n_step: must be a whole number, got True"),
        ("env: {name: 3}", r"env.name: must be text, got 3"),
        ("env: {wrap_atari: 1}", r"env.wrap_atari: must be true or false, got 1"),
        ("obs_shape: 3", r"obs_shape: must be a list, got 3"),
        ("seq_len: 2", r"seq_len: 2 is less than n_step, 3"),
        ("trainer: {learner_step_per_global_step: 0}", r"must be at least 1, got 0"),
        ("[1, 2]", r"must be a mapping of settings, got list"),
        ("a: [", r"not valid YAML"),
        ("gamma: 2", r"dqn.gamma: must be within 0 and 1"),
        ("n_actor_process: 0", r"replay.num_actors"),
    ],
)
def test_bad_files_are_refused_in_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text)
    assert main(["import-config", str(file)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert re.search(message, error)
    assert error.count("\n") == 1


def test_sections_may_be_empty() -> None:
    assert translate({"actor": None}, "m").tree == translate({}, "m").tree


# ---- the command -------------------------------------------------------------------------------


def page_block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found
    return found[1]


def test_the_page_shows_what_the_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "marltas.yaml"
    file.write_text(page_block("yml"))
    assert main(["import-config", str(file)]) == 0
    out, error = capsys.readouterr()
    assert out == page_block("yaml").partition("\n")[2]
    assert "left out actor_manager_url: processes of one machine find each other" in error
    assert "note: MarltasCore leaves to chance" in error


def test_the_page_names_every_key() -> None:
    text = PAGE.read_text("utf-8")
    nested_ones = "intrinsic_reward.episodic_curiosity."
    names = {
        key.removeprefix("intrinsic_reward.") if nested_ones in key else key for key in DEFAULTS
    }
    assert [key for key in sorted(names) if f"`{key}`" not in text] == []


def test_what_is_written_can_be_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "m.yaml", tmp_path / "ours.yaml"
    file.write_text("env: {name: CartPole-v1}\nobs_shape: [4]\nseq_len: 8\n")
    assert main(["import-config", str(file), "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    config = settings_from_flags(None, {"config": str(out)})
    assert (config.algo, config.env.id, config.policy.hidden) == ("r2d2", "CartPole-v1", (32, 128))
    assert yaml.safe_load(out.read_text())["r2d2"]["length"] == 6
    assert main(["import-config", str(file), "--out", str(out)]) == 2
    assert "already exists; --force replaces it" in capsys.readouterr().err
    assert main(["import-config", str(file), "--out", str(out), "--force"]) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--out", "x.txt"], "name a file .yaml or .yml"),
        (["--steps-per-update", "0"], "must be positive"),
        (["--algo", "ppo"], "invalid choice"),
    ],
)
def test_bad_flags(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("")
    assert main(["import-config", str(file), *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-config", "gone.yaml"]) == 2
    assert "gone.yaml: No such file or directory; check the path" in capsys.readouterr().err


def test_a_section_by_itself_is_refused_where_a_value_is_meant() -> None:
    with pytest.raises(UserError, match="must be a number"):
        translate({"gamma": {"a": 1}}, "m")


def test_a_file_of_several_machines_becomes_a_run_that_listens() -> None:
    imported = translate(
        nested({"actor_manager_url": "10.0.0.7:1111", "n_actor_process": 5}), "m.yaml", algo="dqn"
    )
    config = config_from_tree(imported.tree)
    assert (config.engine, config.hosts.listen) == ("local", "0.0.0.0:1111")
    assert "actor_manager_url" not in imported.left_out
    (note,) = [note for note in imported.notes if "several machines" in note]
    assert "rookery join 10.0.0.7:1111 --token" in note
    assert "--actors 5" in note
    everywhere = translate(nested({"actor_manager_url": "0.0.0.0:1111"}), "m.yaml", algo="dqn")
    assert any("rookery join HEAD:1111" in note for note in everywhere.notes)
    alone = translate(nested({"actor_manager_url": "localhost:1111"}), "m.yaml", algo="dqn")
    assert "hosts" not in alone.tree
    with pytest.raises(UserError, match="actor_manager_url head: not of the form HOST:PORT"):
        translate(nested({"actor_manager_url": "head"}), "m.yaml", algo="dqn")
