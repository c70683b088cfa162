"""Settings: recipe < --config < flags, what each source may say, and how wrong ones are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rookery.algos.a2c import A2CConfig
from rookery.algos.ppo import PPOConfig
from rookery.cli.arguments import split_words
from rookery.cli.explain import all_settings_help, settings_help
from rookery.core.errors import UserError
from rookery.core.schedule import LinearSchedule
from rookery.recipes import catalog, foreign_names
from rookery.recipes.catalog import load_recipe, recipe_names, resolve, seconds
from rookery.recipes.foreign_names import own_names
from rookery.recipes.schema import Schema, describe
from rookery.recipes.settings import (
    config_from_tree,
    revised,
    settings_from_flags,
    settings_from_python,
)

RECIPE = load_recipe("cartpole")


def write(path: Path, tree: Any) -> str:
    path.write_text(yaml.safe_dump(tree))
    return str(path)


# --- precedence ------------------------------------------------------------------------------


def test_flags_win_over_the_file_and_the_file_over_the_recipe(tmp_path: Path) -> None:
    file = write(tmp_path / "f.yaml", {"ppo": {"gamma": 0.5, "clip": 0.3}, "seed": 4})
    config = settings_from_flags("cartpole", {"config": file, "gamma": "0.25"})
    assert isinstance(config.algo_config, PPOConfig)
    assert config.algo_config.gamma == 0.25
    assert config.algo_config.clip == 0.3
    assert config.seed == 4
    assert config.algo_config.gae_lambda == RECIPE["ppo"]["gae_lambda"]
    assert config.env.id == "CartPole-v1"


def test_a_file_alone_is_enough(tmp_path: Path) -> None:
    file = write(tmp_path / "f.yaml", {"env": {"id": "Acrobot-v1"}, "algo": "a2c"})
    config = settings_from_flags(None, {"config": file})
    assert (config.env.id, config.algo) == ("Acrobot-v1", "a2c")


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_a_configuration_survives_being_written_down(name: str) -> None:
    config = settings_from_flags(name, {"seed": "3", "tags": "a,b", "time_limit": "2h"})
    text = yaml.safe_dump(config.to_tree(), sort_keys=False)
    assert config_from_tree(yaml.safe_load(text)) == config


def test_an_environment_has_the_defaults_of_the_algorithm() -> None:
    assert settings_from_flags("Acrobot-v1", {}).algo == "ppo"
    config = settings_from_flags("Acrobot-v1", {"algo": "a2c"})
    assert config.algo_config == A2CConfig()
    assert settings_from_flags("package.module:make", {}).env.id == "package.module:make"


def test_another_algorithm_leaves_the_recipes_block_behind() -> None:
    config = settings_from_flags("cartpole", {"algo": "a2c"})
    assert config.algo_config == A2CConfig()
    assert config.env.num_envs == RECIPE["env"]["num_envs"]


def test_a_recipes_block_for_the_formation_is_laid_over_it() -> None:
    tree = {"about": "x", "seed": 1, "formations": {"sync": {"seed": 2}, "async": {"seed": 3}}}
    assert resolve(tree, "sync") == {"seed": 2}
    assert resolve(tree, "async") == {"seed": 3}
    assert resolve(tree, "other") == {"seed": 1}


def test_the_formation_decides_before_the_file_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two.yaml").write_text(
        "env: {id: CartPole-v1}\nseed: 1\nformations: {sync: {seed: 2, total_steps: 5}}\n"
    )
    monkeypatch.setattr(catalog.resources, "files", lambda _: tmp_path)
    assert settings_from_flags("two", {}).seed == 2
    file = write(tmp_path / "f.yml", {"seed": 9})
    config = settings_from_flags("two", {"config": file, "formation": "sync"})
    assert (config.seed, config.total_steps) == (9, 5)


# --- flags -----------------------------------------------------------------------------------

SHORT = {
    "--algo a2c": ("algo", "a2c"),
    "--formation sync": ("formation", "sync"),
    "--engine local": ("engine", "local"),
    "--actors 3": ("formation_config.num_actors", 3),
    "--envs 5": ("env.num_envs", 5),
    "--device cpu": ("device", "cpu"),
    "--steps 1e4": ("total_steps", 10_000),
    "--steps 1_000": ("total_steps", 1_000),
    "--time-limit 15m": ("time_limit_secs", 900.0),
    "--time-limit none": ("time_limit_secs", None),
    "--seed 3": ("seed", 3),
    "--gamma 0.5": ("algo_config.gamma", 0.5),
    "--lr 1e-3": ("optimizer.lr", 1e-3),
    "--log-every 7": ("metrics.every_steps", 7),
    "--log-episodes 7": ("metrics.every_episodes", 7),
    "--save-every 7": ("checkpoint.every_steps", 7),
    "--eval-every 7": ("eval.every_steps", 7),
    "--eval-every none": ("eval.every_steps", None),
    "--stop-at 475.5": ("stop_at", 475.5),
    "--stop-at none": ("stop_at", None),
    "--stop-at=-100": ("stop_at", -100.0),
    "--stop-at -100": ("stop_at", -100.0),
    "--name 007": ("name", "007"),
    "--tags a,b": ("tags", ("a", "b")),
    "--tags [a]": ("tags", ("a",)),
    "--policy.core none": ("policy.core", "none"),
    "--policy.hidden 32,16": ("policy.hidden", (32, 16)),
    "--env.kwargs {gravity: 3}": ("env.kwargs", {"gravity": 3}),
    "--env.kwargs.gravity 3": ("env.kwargs", {"gravity": 3}),
    "--env.num-envs 4": ("env.num_envs", 4),
    "--ppo.normalize_reward true": ("algo_config.normalize_reward", True),
    "--lr.start 0.5": (
        "optimizer.lr",
        LinearSchedule(**(RECIPE["optimizer"]["lr"] | {"start": 0.5})),
    ),
    "--lr {start: 1, end: 0, until_steps: 9}": (
        "optimizer.lr",
        LinearSchedule(start=1.0, end=0.0, until_steps=9),
    ),
    "--lr {start: 1, via: [[2, 0.5]], end: 0, until_steps: 9}": (
        "optimizer.lr",
        LinearSchedule(start=1.0, end=0.0, until_steps=9, via=((2, 0.5),)),
    ),
}


@pytest.mark.parametrize("line", SHORT)
def test_flags(line: str) -> None:
    words = split_words(line.split(" ", 1))
    value: Any = settings_from_flags("cartpole", words.flags)
    path, expected = SHORT[line]
    for name in path.split("."):
        value = getattr(value, name)
    assert value == expected
    assert type(value) is type(expected)


def test_words_are_names_flags_and_switches() -> None:
    words = split_words(["--seed", "-1", "cartpole", "--quiet", "--lr=3", "-h"], {"quiet"})
    assert words.names == ["cartpole"]
    assert words.flags == {"seed": "-1", "lr": "3"}
    assert words.switches == {"quiet", "help"}
    assert words.take("lr") == "3"
    assert words.take("lr") is None


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--steps"], "--steps: give it a value"),
        (["--steps", "--seed", "1"], "--steps: give it a value"),
        (["--steps="], "--steps: give it a value"),
        (["-x", "1"], "unknown flag -x"),
    ],
)
def test_words_that_are_none(argv: list[str], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        split_words(argv)


@pytest.mark.parametrize(("text", "secs"), [("90", 90), ("1.5s", 1.5), ("15m", 900), ("2h", 7200)])
def test_times(text: str, secs: float) -> None:
    assert seconds(text) == secs


# --- Python ----------------------------------------------------------------------------------


def test_python_takes_short_flags_sections_and_dotted_names() -> None:
    given: dict[str, Any] = {
        "seed": 3,
        "steps": 5000,
        "lr": 1e-3,
        "ppo": {"clip": 0.1},
        "env": {"num_envs": 4},
        "policy.core": "gru",
    }
    config = settings_from_python("cartpole", given)
    assert isinstance(config.algo_config, PPOConfig)
    assert (config.seed, config.total_steps, config.optimizer.lr) == (3, 5000, 1e-3)
    assert (config.algo_config.clip, config.algo_config.gamma) == (0.1, RECIPE["ppo"]["gamma"])
    assert (config.env.id, config.env.num_envs, config.policy.core) == ("CartPole-v1", 4, "gru")


def test_a_callable_is_an_environment_with_its_own_name() -> None:
    def make_world() -> None: ...

    config = settings_from_python(make_world, {})
    assert config.name == "make_world"
    assert config.recipe == ""


def test_a_configuration_can_be_revised() -> None:
    config = settings_from_flags("cartpole", {})
    changed = revised(config, {"steps": 7, "stop_at": None})
    assert (changed.total_steps, changed.stop_at, changed.seed) == (7, None, 0)


# --- what is refused, in one line that names the culprit -------------------------------------

BAD_FLAGS = {
    "--ppo.gama 0.9": "unknown flag --ppo.gama; did you mean '--ppo.gamma'",
    "--gama 0.9": "unknown flag --gama; did you mean '--gamma'",
    "--stpes 3": "did you mean '--steps'",
    "--clip 0.1": "did you mean '--ppo.clip'",
    "--a2c.gamma 0.9": "this run uses algo ppo; choose algo a2c",
    "--lr.strat 3": "unknown flag --lr.strat",
    "--algo pp0": "--algo: unknown 'pp0'; did you mean 'ppo'?",
    "--formation snyc": "--formation: unknown 'snyc'; did you mean 'sync' or 'async'?",
    "--engine locla": "--engine: must be one of inline, local, mpi, ray, got 'locla'; did you mean",
    "--policy.core grru": "policy.core: must be one of none, gru, lstm, got 'grru'; did you mean",
    "--steps abc": "--steps: must be a whole number, got 'abc'",
    "--steps 1.5": "--steps: must be a whole number, got 1.5",
    "--steps 0": "--steps: must be at least 1, got 0",
    "--steps -5": "--steps: must be at least 1, got -5",
    "--seed -1": "--seed: must not be negative, got -1",
    "--seed x": "--seed: must be a whole number, got 'x'",
    "--envs 0": "env.num_envs is 0; it must be at least 1",
    "--actors 0": "sync.num_actors: must be at least 1, got 0",
    "--gamma 1.5": "ppo.gamma: must be within 0 and 1, got 1.5",
    "--gamma nan": "ppo.gamma: must be a number, got 'nan'",
    "--gamma .nan": "ppo.gamma: must be within 0 and 1, got nan",
    "--lr -1": "optimizer.lr: -1.0 is below 0",
    "--lr abc": "optimizer.lr: must be a number or a schedule {start, end, until_steps}, got 'abc'",
    "--lr .inf": "optimizer.lr: must be finite",
    "--lr {start: 1, end: 0}": "optimizer.lr: a schedule needs start, end, until_steps; add",
    "--lr {start: 1, end: 0, until_steps: 0}": "optimizer.lr: schedule: until_steps (0)",
    "--lr {start: 1, end: 0, until_steps: 9, via: [[9, 1]]}": "the steps of via must rise between",
    "--lr {start: 1, end: 0, until_steps: 9, via: [[3, -1]]}": "optimizer.lr: -1.0 is below 0",
    "--lr {start: 1, end: 0, until_steps: 9, via: [3]}": "a schedule is made of numbers",
    "--lr {start: 1, end: 0, until: 5}": "optimizer.lr.until: unknown setting; did you mean",
    "--lr.start x": "optimizer.lr: must be a number or a schedule",
    "--time-limit 0": "--time-limit: must be positive, got 0",
    "--time-limit soon": "'soon' is not a time; write 90, 90s, 15m or 2h",
    "--stop-at high": "--stop-at: must be a number or null, got 'high'",
    "--log-episodes 0": "metrics.every_episodes: must be at least 1, got 0",
    "--save-every 0": "checkpoint.every_steps: must be at least 1, got 0",
    "--log-every 0": "metrics.every_steps: must be at least 1, got 0",
    "--eval-every 0": "eval.every_steps: must be at least 1",
    "--ppo.rollout_steps 0": "ppo.rollout_steps: must be at least 1, got 0",
    "--ppo.num_minibatches 99999": "ppo.num_minibatches: 99999 is more than the",
    "--ppo.clip -1": "ppo.clip: -1.0 is below 0",
    "--ppo.normalize_reward maybe": "ppo.normalize_reward: must be true or false, got 'maybe'",
    "--optimizer.eps -1": "optimizer.eps: must be positive, got -1",
    "--optimizer.betas [0.9]": "optimizer.betas: must be a list of 2, each a number, got [0.9]",
    "--policy.hidden [0]": "policy.hidden: sizes must be positive",
    "--policy.hidden big": "policy.hidden: must be a list, each a whole number, got ['big']",
    "--env.wrappers [x]": "env.wrappers has the entry 'x'",
    "--env.kwargs 3": "env.kwargs: must be a mapping, got 3",
    "--metrics.sinks jsnl": "unknown metric sink 'jsnl'; did you mean 'jsonl'?",
    "--ppo 3": "unknown flag --ppo",
}


@pytest.mark.parametrize("line", BAD_FLAGS)
def test_bad_flags(line: str) -> None:
    words = split_words(line.split(" ", 1))
    with pytest.raises(UserError) as caught:
        settings_from_flags("cartpole", words.flags)
    assert BAD_FLAGS[line] in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_FILES: dict[str, tuple[Any, str]] = {
    "nested key": ({"ppo": {"gama": 1}}, "ppo.gama: unknown setting; did you mean 'ppo.gamma'"),
    "section": ({"pppo": {"gamma": 1}}, "pppo: unknown setting; did you mean 'ppo'?"),
    "top key": ({"sede": 1}, "sede: unknown setting; did you mean 'seed'?"),
    "type": ({"ppo": {"gamma": "much"}}, "ppo.gamma: must be a number, got 'much'"),
    "no mapping": ({"ppo": 3}, "ppo: must be a mapping of settings, got 3"),
    "list": ([1, 2], "must be a mapping of settings, got list"),
    "formations": ({"formations": 3}, "formations: must be a mapping"),
    "unknown algorithm": ({"algo": "pp0"}, "--algo: unknown 'pp0'; did you mean 'ppo'?"),
    "text for a list": ({"tags": 3}, "--tags: must be a list, each text, got 3"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files(case: str, tmp_path: Path) -> None:
    tree, says = BAD_FILES[case]
    with pytest.raises(UserError, match=re.escape(says)) as caught:
        settings_from_flags("cartpole", {"config": write(tmp_path / "f.yaml", tree)})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b": : [", "not valid YAML"),
        (b"\xff\xfe\x00\x01", "not a text file; it must be YAML"),
        (None, "No such file or directory; check the path"),
    ],
)
def test_files_that_cannot_be_read(content: bytes | None, says: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "f.yaml").write_bytes(content)
    with pytest.raises(UserError, match=re.escape(says)) as caught:
        settings_from_flags("cartpole", {"config": str(tmp_path / "f.yaml")})
    assert "\n" not in str(caught.value)


def test_an_empty_file_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("")
    with pytest.raises(UserError, match=r"env\.id is missing"):
        settings_from_flags(None, {"config": str(tmp_path / "f.yaml")})
    assert settings_from_flags("cartpole", {"config": str(tmp_path / "f.yaml")}).seed == 0


@pytest.mark.parametrize(
    ("what", "given", "says"),
    [
        ("cartpol", {}, "unknown recipe 'cartpol'; did you mean 'cartpole'"),
        ("cartpole", {"stpes": 3}, "unknown setting 'stpes'; did you mean 'steps'"),
        ("cartpole", {"gama": 3}, "unknown setting 'gama'; did you mean 'gamma'"),
        ("cartpole", {"ppo": {"gama": 1}}, "ppo.gama: unknown setting; did you mean 'ppo.gamma'"),
        ("cartpole", {"ppo": 3}, "ppo: must be a mapping of settings, got 3"),
        ("cartpole", {"a2c": {"gamma": 1}}, "this run uses algo ppo; choose algo a2c"),
        ("cartpole", {"seed": "x"}, "--seed: must be a whole number, got 'x'"),
        ("cartpole", {"engine": "locla"}, "did you mean 'local'?"),
        (
            "dqn-cartpole",
            {"dqn": {"learning_starts": 600_000}},
            "dqn.learning_starts: 600000 is more than dqn.capacity_steps, 200000",
        ),
    ],
)
def test_bad_python_settings(what: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        settings_from_python(what, given)


def test_recurrent_policies_are_split_by_environments() -> None:
    flags = {"policy.core": "gru", "envs": "4", "ppo.num_minibatches": "5"}
    with pytest.raises(UserError, match="5 is more than the 4 environments"):
        settings_from_flags("cartpole", flags)


def test_a_block_within_a_block_is_given_as_a_mapping() -> None:
    flags = {"dqn.epsilon": "{start: 0.5, end: 0.05}"}
    epsilon = settings_from_flags("dqn-cartpole", flags).to_tree()["dqn"]["epsilon"]
    before = settings_from_flags("dqn-cartpole", {}).to_tree()["dqn"]["epsilon"]
    assert epsilon == before | {"start": 0.5, "end": 0.05}
    for value, said in (
        ("0.1", "dqn.epsilon: must be a mapping of settings, got 0.1"),
        ("{begin: 1}", "dqn.epsilon.begin: unknown setting"),
        ("{start: much}", "dqn.epsilon.start: must be"),
    ):
        with pytest.raises(UserError, match=said):
            settings_from_flags("dqn-cartpole", {"dqn.epsilon": value})


FOREIGN = {
    "cartpole": {
        "learning_rate": "--lr",
        "n_steps": "--ppo.rollout_steps",
        "total_timesteps": "--steps",
        "ent_coef": "--ppo.entropy_coef",
        "clip_range": "--ppo.clip",
        "n_epochs": "--ppo.num_epochs",
        "update_epochs": "--ppo.num_epochs",
        "batch_size": "--ppo.num_minibatches",
        "num_env_runners": "--actors",
        "num_sgd_iter": "--ppo.num_epochs",
        "replays-in-batch": "--ppo.rollouts_per_update",
        "tau": "--ppo.gae_lambda",
        "gpu-ids": "--device",
        "logdir": "--run",
    },
    "dqn-cartpole": {
        "buffer_size": "--dqn.capacity_steps",
        "batch_size": "--dqn.batch_size",
        "tau": "--dqn.target_tau",
        "target_update_interval": "--dqn.target_every",
        "train_frequency": "--dqn.steps_per_update",
        "exploration_final_eps": "--dqn.epsilon.end",
    },
}


@pytest.mark.parametrize(
    ("recipe", "theirs", "ours"),
    [(recipe, *pair) for recipe, names in FOREIGN.items() for pair in names.items()],
)
def test_names_from_other_libraries_are_known(recipe: str, theirs: str, ours: str) -> None:
    with pytest.raises(UserError, match=f": it is {ours} here$"):
        settings_from_flags(recipe, {theirs.replace("-", "_"): "1"})


@pytest.mark.parametrize("theirs", foreign_names.KNOWN)
def test_every_foreign_name_leads_to_a_setting(theirs: str) -> None:
    """Of one algorithm or the other, and none is a name of our own."""
    schemas = {"ppo": Schema("ppo", "sync"), "dqn": Schema("dqn", "replay")}
    found = [
        name in ("run", "init_from") or schema.path_of(name)
        for algo, schema in schemas.items()
        for name in own_names(theirs, algo)
    ]
    assert any(found)
    assert not any(schema.path_of(theirs) for schema in schemas.values())


@pytest.mark.parametrize("flag", ["zebra", "rate_of_change", "gradient_penalty"])
def test_what_is_like_nothing_gets_no_suggestion(flag: str) -> None:
    with pytest.raises(UserError, match="--help-all` lists all"):
        settings_from_flags("cartpole", {flag: "1"})


# --- help ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["cartpole", "snake", "dqn-cartpole", "pong", "agent57-maze"])
def test_help_shows_the_thirty_settings_that_matter(what: str) -> None:
    config = settings_from_flags(what, {"lr": "0.125"})
    text = settings_help(config, what, prog="rookery train")
    shown = re.findall(r"^  (--[a-z]\S*) ", text.split("Settings of")[1], re.M)
    assert 25 <= len(shown) <= 36
    assert len(set(shown)) == len(shown)
    assert len(text.splitlines()) <= 110
    assert "--lr 0.125" in text
    assert "--help-all" in text.splitlines()[-1]
    schema = Schema(config.algo, config.formation)
    assert all(schema.path_of(flag[2:].replace("-", "_")) for flag in shown)


def test_help_explains_every_setting_and_shows_its_value() -> None:
    config = settings_from_flags("cartpole", {"gamma": "0.5"})
    text = all_settings_help(config, "cartpole", prog="rookery train")
    schema = Schema("ppo", "sync")
    assert "atari" not in text
    for path, setting in schema.settings.items():
        assert setting.about, f"{path} has no explanation"
        if path.startswith("env.atari."):
            continue
        assert f"--{path} " in text or f"--{path.replace('_', '-')} " in text
    assert "--gamma, --ppo.gamma 0.5" in text
    assert f"--steps, --total-steps {RECIPE['total_steps']}" in text
    assert "a2c." not in text, "only what applies"
    assert "--recipe" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_types_in_words() -> None:
    assert describe(int | None) == "a whole number or null"
    assert describe(tuple[str, ...]) == "a list, each text"
    assert describe(dict[str, Any]) == "a mapping"


@pytest.mark.parametrize("tags", ["2024", "v1,007", "no", "2024-05-01", "2024-13-01"])
def test_tags_are_words_whatever_they_look_like(tags: str) -> None:
    assert settings_from_flags("cartpole", {"tags": tags}).tags == tuple(tags.split(","))


def test_a_recipe_is_no_setting() -> None:
    with pytest.raises(UserError, match="recipe: name it as what to train"):
        settings_from_flags("CartPole-v1", {"recipe": "pong"})
    with pytest.raises(UserError, match="recipe: name it as what to train"):
        settings_from_python("CartPole-v1", {"recipe": "pong"})


def test_a_date_that_is_none_is_not_valid_yaml(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: 2024-13-01\n")
    with pytest.raises(UserError, match="not valid YAML"):
        settings_from_flags("cartpole", {"config": str(file)})
