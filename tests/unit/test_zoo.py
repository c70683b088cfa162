"""Bundles: what comes with Rookery plays, one's own can be made, and damage is told."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from safetensors import safe_open

import rookery
from rookery.cli.main import main
from rookery.core.errors import UserError
from rookery.nets.rounding import rounded_alike
from rookery.runs.find import load_checkpoint
from rookery.runs.tensorfile import DamagedError, safetensors_chunks
from rookery.runs.trained import find_trained
from rookery.zoo import bundle as bundles
from rookery.zoo.bundle import read_bundle, read_info, write_bundle
from rookery.zoo.catalog import bundle_names, bundle_path, find_bundle
from rookery.zoo.score import versions_of

TINY = ["--steps", "300", "--envs", "4", "--stop-at", "none", "--eval.episodes", "2", "--quiet"]
MEMORY = ["--policy.core", "gru", "--policy.core_size", "8", "--policy.normalize_obs", "true"]
SMALL = ["--ppo.rollout_steps", "16", "--ppo.num_minibatches", "2"]
JUDGED = ["--eval.deterministic", "false", "--eval.score", "length", "--eval.max_steps", "30"]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line of an error."""
        assert self.code == 2
        assert self.err.startswith("rookery: ")
        assert self.err.count("\n") == 1, self.err
        return self.err


Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*words: object) -> Result:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of a policy with memory and statistics, judged by length; do not change it."""
    path = tmp_path_factory.mktemp("trained") / "run"
    words = ["train", "cartpole", *TINY, *MEMORY, *SMALL, *JUDGED, "--run", str(path)]
    assert main(words) == 0
    return path


@pytest.fixture(scope="module")
def made(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of that run; do not change it."""
    path = tmp_path_factory.mktemp("made") / "mine.safetensors"
    words = ["zoo", "add", str(trained), "--name", "mine", "--out", str(path), "--episodes", "5"]
    assert main(words) == 0
    return path


# ---- what comes with Rookery -------------------------------------------------------------------


def test_the_zoo_lists_its_bundles(cli: Cli) -> None:
    done = cli("zoo")
    assert done.code == 0
    head, *rows = done.out.splitlines()
    assert head.split() == ["name", "task", "score", "steps", "time", "size"]
    assert [row.split()[0] for row in rows] == [f"zoo:{name}" for name in bundle_names()]
    cartpole = next(row for row in rows if row.startswith("zoo:cartpole"))
    assert "CartPole-v1" in cartpole
    assert "return 500.0 (95 % 500.0 to 500.0, 100 episodes)" in cartpole
    assert cartpole.endswith(" kB")


def test_the_list_as_json(cli: Cli) -> None:
    rows = {row["name"]: row for row in json.loads(cli("zoo", "--json").out)}
    assert {"cartpole", "lunarlander"} <= set(rows)
    for name, row in rows.items():
        assert row["source"] == f"zoo:{name}"
        assert row["bytes"] == bundle_path(name).stat().st_size
        assert row["score"]["episodes"] >= 100
        low, high = row["score"]["ci95"]
        assert low <= row["score"]["mean"] <= high
        assert row["steps"] > 0
        assert row["secs"] > 0


def test_listing_needs_no_torch() -> None:
    program = "import sys; sys.modules['torch'] = None; from rookery.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "zoo"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "zoo:cartpole" in done.stdout


@pytest.mark.parametrize("name", bundle_names())
def test_every_bundle_is_whole_and_small(name: str) -> None:
    bundle = read_bundle(bundle_path(name))
    assert bundle.info["name"] == name
    policy = bundle.policy()
    sees_images = any(len(leaf.shape) == 3 for leaf in policy.signature.obs.values())
    assert bundle.info["bytes"] < (8_000_000 if sees_images else 500_000)
    assert {leaf: tuple(spec["shape"]) for leaf, spec in bundle.info["state"].items()} == {
        leaf: spec.shape for leaf, spec in policy.state_spec.items()
    }


def test_a_bundle_plays_as_well_as_it_says(cli: Cli) -> None:
    done = cli("eval", "zoo:cartpole", "--episodes", "10", "--json")
    assert done.code == 0
    assert json.loads(done.out)["return_mean"] == 500.0
    steps = read_info(bundle_path("cartpole"))["training"]["steps"]
    assert f"checkpoint {steps}, most likely action" in done.err


QUICK = ("cartpole", "lunarlander")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in QUICK else pytest.mark.long)
        for name in bundle_names()
    ],
)
def test_eval_finds_the_score_of_the_zoo_again(cli: Cli, name: str) -> None:
    """By the command that docs/zoo.md names; to the digit where the same versions compute."""
    info = read_info(bundle_path(name))
    score = info["score"]
    found = json.loads(cli("eval", f"zoo:{name}", "--episodes", score["episodes"], "--json").out)
    assert found["by"] == score["by"]
    policy = read_bundle(bundle_path(name)).policy()
    any_processor = rounded_alike(policy) is not policy  # convolutions round as each of them does
    if any_processor and versions_of(score["versions"]) == score["versions"]:
        assert found["returns"] == info["episodes"]["returns"]
        assert found["lengths"] == info["episodes"]["lengths"]
        assert found[f"{score['by']}_mean"] == score["mean"]
        assert found[f"{score['by']}_ci95"] == score["ci95"]
    low, high = score["ci95"]
    assert low <= found[f"{score['by']}_mean"] <= high


def test_a_score_can_be_measured_anew(cli: Cli, made: Path, tmp_path: Path) -> None:
    path = tmp_path / "again.safetensors"
    shutil.copy(made, path)
    before = read_bundle(path)
    assert cli("zoo", "score", path).code == 0
    assert path.read_bytes() == made.read_bytes(), "as many episodes from the same seeds"
    done = cli("zoo", "score", made, "--episodes", 7, "--out", path, "--force")
    assert done.out.startswith(f"{path}: length ")
    after = read_bundle(path)
    found = json.loads(cli("eval", path, "--episodes", 7, "--json").out)
    assert after.info["episodes"] == {key: found[key] for key in ("returns", "lengths")}
    assert after.info["score"]["ci95"] == found["length_ci95"]
    changed = ("score", "episodes", "sha256", "bytes")
    rest = [{k: v for k, v in it.info.items() if k not in changed} for it in (before, after)]
    assert rest[0] == rest[1]
    for name, array in before.arrays.items():
        np.testing.assert_array_equal(np.asarray(array), np.asarray(after.arrays[name]))
    assert "7 episodes of return" in cli("eval", path, "--episodes", 7).out


def test_only_bundles_are_scored(cli: Cli, trained: Path) -> None:
    assert "is not a bundle; `rookery eval` judges runs" in cli("zoo", "score", trained).line
    few = cli("zoo", "score", "zoo:cartpole", "--episodes", 1).line
    assert "an interval needs at least 2" in few


def test_a_bundle_acts_in_python() -> None:
    agent = rookery.load("zoo:lunarlander")
    env = gym.make("LunarLander-v3")
    obs, _ = env.reset(seed=3)
    state, total, done = None, 0.0, False
    while not done:
        action, state = agent.act(obs, state, deterministic=True)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, done = total + float(reward), terminated or truncated
    assert total > 100


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", pytest.param("local", marks=pytest.mark.slow)])
def test_training_starts_from_a_bundle(cli: Cli, tmp_path: Path, engine: str) -> None:
    words = ["--steps", "128", "--envs", "4", "--ppo.rollout_steps", "32", "--lr", "1e-9"]
    words += ["--eval.episodes", "3", "--engine", engine, "--quiet", "--run", "on"]
    done = cli("train", "cartpole", "--init-from", "zoo:cartpole", *words)
    assert (done.code, done.err) == (0, "")
    result = json.loads(cli("eval", "on", "--episodes", "3", "--json").out)
    assert result["return_mean"] == 500.0


def test_a_bundle_of_another_task_is_no_start(cli: Cli) -> None:
    line = cli("train", "cartpole", "--init-from", "zoo:lunarlander", "--quiet").line
    assert "trained in another environment (observation 'obs' box[8] against box[4])" in line


# ---- one's own ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_bundle_holds_what_the_run_had(trained: Path, made: Path) -> None:
    with safe_open(made, "pt") as file:  # the library itself reads it
        names = set(file.keys())
    weights = load_checkpoint(trained, "best", ["weights"]).parts["weights"]
    assert names == set(weights.arrays)
    assert any("mean" in name for name in names), "statistics of observations"
    info = read_info(made)
    assert info["state"] == {"h": {"shape": [8], "dtype": "float32"}}
    assert info["training"]["recipe"] == "cartpole"
    assert info["training"]["steps"] == load_checkpoint(trained, "best", []).steps
    assert info["training"]["settings"]["ppo"]["gamma"] == 0.98
    assert {"rookery", "torch", "numpy", "gymnasium", "python"} == set(info["versions"])


def test_the_score_is_what_eval_finds(cli: Cli, made: Path) -> None:
    score = read_info(made)["score"]
    assert (score["by"], score["deterministic"], score["max_steps"]) == ("length", False, 30)
    seed, episodes = score["seed"], score["episodes"]
    words = ["--seed", seed, "--episodes", episodes, "--json"]
    result = json.loads(cli("eval", made, *words).out)
    assert result["length_mean"] == score["mean"]
    lengths = np.asarray(result["lengths"])
    half = 2.776 * lengths.std(ddof=1) / np.sqrt(5)
    assert score["ci95"] == pytest.approx([lengths.mean() - half, lengths.mean() + half])


def test_the_bundle_plays_as_the_run_does(trained: Path, made: Path) -> None:
    run, packed = find_trained(trained), find_trained(made)
    assert (run.env, run.eval, run.steps) == (packed.env, packed.eval, packed.steps)
    assert packed.name == "mine"
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    ours, theirs = rookery.load(trained), rookery.load(str(made))
    state, other = None, None
    for _ in range(3):
        first, state = ours.act(obs, state)
        second, other = theirs.act(obs, other)
        assert np.array_equal(first, second)


def test_a_bundle_is_named_after_its_name_by_default(
    cli: Cli, trained: Path, tmp_path: Path
) -> None:
    done = cli("zoo", "add", trained, "--name", "tiny", "--episodes", "2")
    assert done.code == 0
    assert done.out.startswith("tiny.safetensors: length ")
    before = (tmp_path / "tiny.safetensors").read_bytes()
    again = ("zoo", "add", trained, "--name", "tiny", "--episodes", "2")
    assert "tiny.safetensors already exists; --force replaces it" in cli(*again).line
    assert cli(*again, "--force").code == 0
    assert (tmp_path / "tiny.safetensors").read_bytes() == before, "the same run, the same bytes"


def test_a_checkpoint_can_be_chosen(cli: Cli, trained: Path) -> None:
    steps = load_checkpoint(trained, "latest", []).steps
    words = ("zoo", "add", trained, "--name", "last", "--episodes", "2", "--checkpoint", "latest")
    assert cli(*words).code == 0
    assert read_info(Path("last.safetensors"))["training"]["steps"] == steps


def test_weights_are_averaged_and_statistics_are_not(
    cli: Cli, trained: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    newest = load_checkpoint(run).parts["weights"].arrays
    last = sorted((run / "history").iterdir())[-1]
    steps = int(last.stem.split("-")[1])
    for file in (run / "history").iterdir():
        file.unlink()
    for share, at in ((9.0, 10), (0.5, steps - 1), (1.5, steps)):
        arrays = {name: np.asarray(array) * share for name, array in newest.items()}
        path = run / "history" / f"{at:010.2f}-{at:012d}.safetensors"
        path.write_bytes(b"".join(safetensors_chunks("history", arrays)))
    words = ["zoo", "add", run, "--name", "mean", "--episodes", "2", "--average-since"]
    done = cli(*words, steps - 1)
    assert done.code == 0, done.err
    made = read_bundle(Path("mean.safetensors"))
    assert read_info(Path("mean.safetensors"))["training"]["averaged"]["steps"] == [
        steps - 1,
        steps,
    ]
    for name, array in made.policy().state_dict().items():
        np.testing.assert_allclose(array, np.asarray(newest[name]), rtol=1e-6)
    assert "has 1 snapshots from there" in cli(*words, steps, "--force").line


def test_a_bundle_outlives_the_settings_it_was_trained_with(made: Path, tmp_path: Path) -> None:
    bundle = read_bundle(made)
    info = json.loads(json.dumps(bundle.info))
    info["training"]["settings"] = {"algo": "forgotten", "forgotten": {"gone": 1}}
    del info["policy"]["log_std_init"], info["env"]["check"], info["eval"]["num_envs"]
    write_bundle(tmp_path / "old.safetensors", info, bundle.arrays)
    assert find_trained(tmp_path / "old.safetensors").policy.recurrent


# ---- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("eval zoo:cartpol", "the zoo has no 'cartpol'; did you mean 'cartpole'?"),
        ("eval zoo:xyzzy", "the zoo has no 'xyzzy'; there are "),
        ("eval zoo:", "the zoo has no ''"),
        ("eval zoo:cartpole --checkpoint best", "leave --checkpoint away"),
        ("eval gone.safetensors", "gone.safetensors does not exist"),
        ("train cartpole --init-from zoo:cartpol", "did you mean 'cartpole'?"),
        ("resume zoo:cartpole", "`rookery train RECIPE --init-from zoo:cartpole`"),
        ("zoo ad x", "unknown word 'ad'; did you mean 'add'?"),
        ("zoo --jsn", "did you mean '--json'?"),
        ("zoo add", "the following arguments are required: RUN, --name"),
        ("zoo add gone --name x", "gone does not exist"),
        ("zoo add zoo:cartpole --name x", "zoo:cartpole is a bundle already"),
        ("zoo add gone --name ../x", "--name ../x: use lower-case letters"),
        ("zoo add gone --name x --out x.pt", "it has '.pt'; name a file .safetensors"),
        ("zoo add gone --name x --out a/x.safetensors", "there is no directory a; make it first"),
        ("zoo add gone --name x --episodes 1", "an interval needs at least 2, got 1"),
        ("zoo add gone --name x --episodes many", "invalid int value: 'many'"),
    ],
)
def test_what_cannot_be_done_is_one_line(cli: Cli, words: str, told: str) -> None:
    assert told in cli(*words.split()).line


def test_a_run_without_a_checkpoint_says_so(cli: Cli, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copy(trained / "config.yaml", tmp_path / "empty")
    assert "no checkpoint in empty/checkpoints" in cli("zoo", "add", "empty", "--name", "x").line
    assert not list(tmp_path.glob("*.safetensors"))


def test_every_damaged_byte_is_noticed(made: Path, tmp_path: Path) -> None:
    whole, path = made.read_bytes(), tmp_path / "bad.safetensors"
    for position in [*range(0, 200), *range(200, len(whole), 97), len(whole) - 1]:
        data = bytearray(whole)
        data[position] ^= 1
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"bad\.safetensors"):
            read_bundle(path)


def test_every_cut_is_noticed(made: Path, tmp_path: Path) -> None:
    whole, path = made.read_bytes(), tmp_path / "bad.safetensors"
    for length in [0, 3, 8, 9, 500, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedError, match=r"bad\.safetensors"):
            read_bundle(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(DamagedError, match="checksum differs"):
        read_bundle(path)


def test_a_damaged_bundle_is_refused_by_name(cli: Cli, made: Path, tmp_path: Path) -> None:
    data = bytearray(made.read_bytes())
    data[-1] ^= 1
    (tmp_path / "bad.safetensors").write_bytes(data)
    told = "bundle bad.safetensors is damaged (checksum differs)"
    assert told in cli("eval", "bad.safetensors").line
    words = ("train", "cartpole", "--init-from", "bad.safetensors", "--quiet")
    assert told in cli(*words).line


def test_arrays_alone_are_no_bundle(cli: Cli, trained: Path, tmp_path: Path) -> None:
    weights = trained / "checkpoints" / "latest" / "weights.safetensors"
    assert "is not a bundle: it holds arrays only" in cli("eval", weights).line
    (tmp_path / "text.safetensors").write_text("hello, this is not what the name says")
    told = "text.safetensors is damaged or not a bundle: it has no safetensors header"
    assert told in cli("eval", "text.safetensors").line


def test_a_bundle_of_a_later_version_says_which(made: Path, tmp_path: Path) -> None:
    bundle = read_bundle(made)
    path = tmp_path / "later.safetensors"
    newer = bundle.info | {"versions": {"rookery": "9.0"}}
    write_bundle(path, newer | {"version": 2}, bundle.arrays)
    with pytest.raises(UserError, match=r"format version 2, .* Rookery 9\.0: install that"):
        read_bundle(path)
    write_bundle(path, newer | {"policy": {"wings": 2}}, bundle.arrays)
    with pytest.raises(UserError, match=r"the setting policy\.wings, .* Rookery 9\.0"):
        read_bundle(path).policy()
    write_bundle(path, newer | {"network": "oracle"}, bundle.arrays)
    with pytest.raises(UserError, match="a network of the kind 'oracle'"):
        read_bundle(path).policy()


def test_the_checksum_is_what_the_docs_say(made: Path) -> None:
    data, seal = made.read_bytes(), read_info(made)["sha256"]
    assert hashlib.sha256(data.replace(seal.encode(), b"0" * 64, 1)).hexdigest() == seal


def test_only_what_ends_like_a_bundle_is_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "odd.safetensors").mkdir()
    assert find_bundle(tmp_path / "odd.safetensors") is None
    assert find_bundle("runs/first") is None
    assert find_bundle(Path("zoo:cartpole")) == find_bundle("zoo:cartpole")


def test_plain_files_are_as_before() -> None:
    arrays: Any = {"a": np.zeros(2, np.float32)}
    assert b"__metadata__" not in b"".join(safetensors_chunks("x", arrays))
    assert not bundles.is_bundle(Path("nowhere"))
