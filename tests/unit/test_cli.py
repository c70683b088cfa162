"""The command line as a person meets it: exit codes, one line for an error, and pure JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from rookery.cli.main import main
from rookery.runs import directory
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.directory import RunDirectory
from rookery.runs.find import load_checkpoint
from tests import toy_envs

TINY = [
    *("--steps", "300", "--envs", "4", "--ppo.rollout_steps", "16"),
    *("--stop-at", "none", "--eval.episodes", "2"),
]


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line of an error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("rookery: ")
        return lines[0]


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
    """A small finished run with several checkpoints; do not change it."""
    path = tmp_path_factory.mktemp("trained") / "run"
    argv = ["train", "cartpole", *TINY, "--save-every", "100", "--tags", "small", "--quiet"]
    assert main([*argv, "--run", str(path)]) == 0
    return path


@pytest.fixture
def run_copy(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run to damage or to go on with."""
    shutil.copytree(trained, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def status_of(run: Path) -> Any:
    return json.loads((run / "status.json").read_text())


# --- train -----------------------------------------------------------------------------------


def test_a_run_leaves_a_directory(cli: Cli, tmp_path: Path) -> None:
    done = cli("train", "cartpole", *TINY)
    assert done.code == 0
    assert done.out == "", "progress goes to standard error"
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("cartpole-")
    assert f"rookery eval runs/{run.name}" in done.err
    files = {path.name for path in run.iterdir()}
    assert {"config.yaml", "meta.json", "metrics.jsonl", "status.json", "checkpoints"} <= files
    assert yaml.safe_load((run / "config.yaml").read_text())["recipe"] == "cartpole"
    (session,) = json.loads((run / "meta.json").read_text())["sessions"]
    assert session["seed"] == 0
    assert {"command", "git", "versions", "host"} <= set(session)
    assert status_of(run)["state"] == "finished"
    store = CheckpointStore(run / "checkpoints")
    assert store.best_score() is not None, "the end is evaluated"
    assert os.readlink(run / "checkpoints" / "latest") == f"{status_of(run)['steps']:012d}"


@pytest.mark.slow
def test_a_runs_own_config_repeats_it(cli: Cli, trained: Path, tmp_path: Path) -> None:
    assert cli("train", "--config", trained / "config.yaml", "--run", "again", "--quiet").code == 0
    for file in ("weights.safetensors", "optimizer.safetensors"):
        first = (trained / "checkpoints" / "latest" / file).read_bytes()
        assert (tmp_path / "again" / "checkpoints" / "latest" / file).read_bytes() == first
    assert (tmp_path / "again" / "config.yaml").read_text() == (trained / "config.yaml").read_text()


def test_another_seed_is_another_run(cli: Cli, trained: Path, tmp_path: Path) -> None:
    config = trained / "config.yaml"
    cli("train", "--seed", "5", "--config", config, "--run", "other", "--quiet")
    file = Path("checkpoints", "latest", "weights.safetensors")
    assert (tmp_path / "other" / file).read_bytes() != (trained / file).read_bytes()


def test_the_next_command_can_be_pasted(cli: Cli) -> None:
    said = cli("train", "cartpole", *TINY, "--run", "a run's").err
    assert said.splitlines()[-1] == """rookery eval 'a run'"'"'s'"""


@pytest.mark.slow
def test_quiet_prints_nothing(cli: Cli) -> None:
    assert cli("train", "cartpole", *TINY, "--quiet") == Result(0, "", "")


def test_help_and_print_config_start_nothing(cli: Cli, tmp_path: Path) -> None:
    assert "usage: rookery train RECIPE" in cli("train", "--help").out
    assert "--gamma 0.5" in cli("train", "cartpole", "--gamma", "0.5", "--help").out
    assert "--ppo.gamma 0.5" in cli("train", "cartpole", "--gamma", "0.5", "--help-all").out
    shown = cli("train", "cartpole", "--gamma", "0.5", "--print_config")
    assert yaml.safe_load(shown.out)["ppo"]["gamma"] == 0.5
    assert shown.err == ""
    for command in ("resume", "eval", "runs", "recipes", "plan"):
        assert cli(command, "--help").code == 0
    assert cli().code == cli("--help").code == 0
    assert cli("--version").out.strip().count(".") == 2
    assert list(tmp_path.iterdir()) == []


BAD_TRAIN = {
    "": "train what?",
    "cartpol": "did you mean 'cartpole'",
    "CartPol-v1": "did you mean 'CartPole-v1'",
    "nomodule:make": "importing 'nomodule' failed",
    "tests.toy_envs:nothing": "has no 'nothing'",
    "tests.toy_envs:not_callable": "it must be callable",
    "tests.toy_envs:not_an_env": "it must return a gymnasium.Env",
    "tests.toy_envs:needs_missing_package": "needs a package that is not installed",
    "tests.unit.test_cli:make_text_world": "is a Text, which is not supported",
    "cartpole extra": "one word too many",
    "cartpole --ppo.gama 1": "did you mean '--ppo.gamma'",
    "cartpole --device cuda:9": "--device cuda:9",
    "cartpole --device toaster": "use --device cpu",
    "cartpole --policy.torso mpl": "did you mean 'mlp'?",
    "cartpole --policy.activation tahn": "did you mean 'tanh'?",
    "cartpole --env.kwargs.foo 3": "check env.kwargs",
    "cartpole --init-from nothing": "nothing does not exist",
    "cartpole --init-from .": "is not a run directory",
    "cartpole --config nothing.yaml": "check the path",
    "cartpole --envs 4 --ppo.rollout_steps 16 --ppo.num_minibatches 65": "more than the 64 samples",
}


def make_text_world() -> Any:
    """An environment whose observations are not supported."""
    import gymnasium as gym

    world = gym.make("CartPole-v1").unwrapped
    world.observation_space = gym.spaces.Text(3)
    return world


@pytest.mark.parametrize("line", BAD_TRAIN)
def test_what_cannot_be_trained_leaves_nothing(line: str, cli: Cli, tmp_path: Path) -> None:
    done = cli("train", *line.split())
    assert done.code == 2
    assert done.out == ""
    assert BAD_TRAIN[line] in done.line
    assert list(tmp_path.iterdir()) == [], "no directory is left behind"


def test_a_used_or_unwritable_run_directory(cli: Cli, run_copy: Path, tmp_path: Path) -> None:
    before = sorted(run_copy.rglob("*"))
    used = cli("train", "cartpole", "--run", "copy")
    assert used.code == 2
    assert "already used; choose another --run or `rookery resume copy`" in used.line
    assert sorted(run_copy.rglob("*")) == before
    (tmp_path / "file").write_text("")
    assert "choose another --run" in cli("train", "cartpole", "--run", "file").line
    assert "choose another --run" in cli("train", "cartpole", "--run", "/proc/no/where").line


@pytest.mark.parametrize(
    "how",
    [
        (),
        ("--env.backend", "process"),
        pytest.param(("--engine", "local"), marks=pytest.mark.slow),
        pytest.param(("--threads", "--actors", "2"), marks=pytest.mark.slow),
    ],
    ids=["inline", "worker processes", "local", "threads"],
)
def test_an_environment_that_raises_is_named_with_its_line_and_a_log(
    cli: Cli, tmp_path: Path, how: tuple[str, ...]
) -> None:
    words = ("train", "tests.toy_envs:FaultyEnv", "--env.kwargs", "{fault: raise}", "--run", "r")
    done = cli(*words, *TINY, *how)
    assert done.code == 3
    said = done.err.splitlines()[-1]
    assert "raised ValueError: the wheels came off in step at " in said
    source = Path(str(toy_envs.__file__))
    line = int(said.split(f"{source}:")[1].split(";")[0])
    assert source.read_text().splitlines()[line - 1].lstrip().startswith("raise ValueError(")
    log = tmp_path / said.rpartition("(log: ")[2].removesuffix(")")
    assert "Traceback (most recent call last)" in log.read_text()
    assert f'toy_envs.py", line {line}, in _act_up' in log.read_text()
    assert status_of(tmp_path / "r")["state"] == "failed"


def test_a_module_beside_the_user_is_found(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "here_only.py").write_text(
        "import gymnasium as gym\ndef make(): return gym.make('CartPole-v1')\n"
    )
    assert cli("train", "here_only:make", *TINY, "--run", "r", "--quiet").code == 0


@pytest.mark.slow
def test_init_from_starts_with_other_weights(cli: Cli, trained: Path, tmp_path: Path) -> None:
    weights = trained / "checkpoints" / "best" / "weights.safetensors"
    shutil.copy(weights, tmp_path / "free.safetensors")
    sources = [trained, trained / "checkpoints" / "best", weights, tmp_path / "free.safetensors"]
    for index, source in enumerate(sources):
        run = tmp_path / f"run{index}"
        argv = ["train", "cartpole", *TINY, "--lr", "0", "--run", run, "--init-from", source]
        assert cli(*argv).code == 0
        # With a learning rate of 0 the weights stay what they were.
        assert (run / "checkpoints/latest/weights.safetensors").read_bytes() == weights.read_bytes()


def test_init_from_something_else(cli: Cli, trained: Path, tmp_path: Path) -> None:
    other = cli("train", "Acrobot-v1", "--init-from", trained)
    assert other.code == 2
    assert "trained in another environment (observation 'obs' box[4] against box[6])" in other.line
    smaller = cli("train", "cartpole", "--policy.hidden", "8", "--init-from", trained)
    assert "another network" in smaller.line
    assert "policy.* settings" in smaller.line
    (tmp_path / "junk").write_text("junk")
    assert "safetensors file" in cli("train", "cartpole", "--init-from", "junk").line
    assert [path.name for path in tmp_path.iterdir()] == ["junk"]


# --- resume ----------------------------------------------------------------------------------


def test_resume_goes_on_to_the_new_total(cli: Cli, run_copy: Path) -> None:
    before = status_of(run_copy)["steps"]
    done = cli("resume", run_copy, "--steps", 600)
    assert done.code == 0
    assert status_of(run_copy)["steps"] >= 600 > before
    assert yaml.safe_load((run_copy / "config.yaml").read_text())["total_steps"] == 600
    assert len(json.loads((run_copy / "meta.json").read_text())["sessions"]) == 2


@pytest.mark.parametrize("flags", [(), ("--steps", "5")])
def test_resume_with_nothing_to_do(flags: tuple[str, ...], cli: Cli, run_copy: Path) -> None:
    before = {path: path.read_bytes() for path in run_copy.rglob("*") if path.is_file()}
    done = cli("resume", run_copy, *flags)
    assert done.code == 0
    assert "nothing to do" in done.err
    assert "a larger --steps" in done.err
    assert {path: path.read_bytes() for path in run_copy.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_solved_run_stays_solved(cli: Cli, tmp_path: Path) -> None:
    argv = [*TINY, "--stop-at", "1", "--metrics.window", "2", "--steps", "5000", "--run", "r"]
    assert "Solved" in cli("train", "cartpole", *argv).err
    run = tmp_path / "r"
    solved = status_of(run)
    assert solved["state"] == "solved"
    again = cli("resume", run, "--steps", 9000)
    assert again.code == 0
    assert "--stop-at none trains it further" in again.err
    assert status_of(run) == solved
    further = cli("resume", run, "--stop-at", "none", "--steps", solved["steps"] + 100)
    assert further.code == 0
    assert status_of(run)["steps"] > solved["steps"]
    assert status_of(run)["state"] == "finished"


def test_resume_from_a_checkpoint_inside_a_run(cli: Cli, run_copy: Path) -> None:
    store = CheckpointStore(run_copy / "checkpoints")
    first = store.steps_available()[0]
    assert first < status_of(run_copy)["steps"]
    done = cli("resume", run_copy / "checkpoints" / f"{first:012d}", "--log-every", "50")
    assert done.code == 0
    assert status_of(run_copy)["state"] == "finished"


def test_resume_of_what_cannot_be_resumed(cli: Cli, run_copy: Path, tmp_path: Path) -> None:
    assert "resume what?" in cli("resume").line
    assert "nothing does not exist" in cli("resume", "nothing").line
    assert "is not a run directory" in cli("resume", tmp_path).line
    assert "did you mean 'steps'" in cli("resume", run_copy, "--stpes", 5).line
    assert "did you mean 'copy'?" in cli("resume", tmp_path / "copyy").line
    shutil.rmtree(run_copy / "checkpoints")
    assert cli("resume", run_copy, "--steps", 900).line.endswith(
        f"{run_copy}: {RunDirectory.open(run_copy).how_to_go_on()}"
    )
    (run_copy / "config.yaml").unlink()
    (run_copy / "checkpoints").mkdir()
    assert "cannot read" in cli("resume", run_copy).line


def test_a_run_in_use_is_left_alone(cli: Cli, run_copy: Path) -> None:
    before = status_of(run_copy)
    with RunDirectory.open(run_copy).lock():
        done = cli("resume", run_copy, "--steps", 900)
    assert done.code == 2
    assert f"in use by process {os.getpid()}" in done.err.splitlines()[-1]
    assert status_of(run_copy) == before


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "truncated":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["truncated", "flipped"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    how: str, cli: Cli, run_copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    latest = (run_copy / "checkpoints" / "latest").resolve()
    damage(latest / "weights.safetensors", how)
    done = cli("resume", run_copy, "--steps", 600)
    assert done.code == 0
    assert "falling back to" in caplog.text
    load_checkpoint(run_copy, "latest")


def test_evaluation_of_damaged_checkpoints(
    cli: Cli, run_copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(run_copy / "checkpoints")
    best = store.find("best")
    damage(best / "weights.safetensors", "flipped")
    asked = cli("eval", run_copy, "--checkpoint", "best")
    assert asked.code == 2
    assert "weights.safetensors was altered (checksum differs)" in asked.line
    assert cli("eval", run_copy, "--episodes", 1).code == 0
    assert "was altered" in caplog.text, "it says which one it could not use"
    for path in (run_copy / "checkpoints").glob("0*/weights.safetensors"):
        if path.parent != best:
            damage(path, "truncated")
    none = cli("eval", run_copy, "--episodes", 1)
    assert none.code == 2
    assert "no valid checkpoint" in none.line


# --- places that cannot be read ------


def test_a_name_that_no_file_can_have_is_one_line(cli: Cli) -> None:
    long = "a" * 300
    for words in (["eval", long], ["resume", long], ["plot", long, "--out", "x.png"]):
        done = cli(*words)
        assert done.code == 2
        assert "Traceback" not in done.err


def test_a_run_that_cannot_be_read_does_not_hide_the_others(
    cli: Cli, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = directory._summary

    def summary(path: Path) -> directory.RunSummary:
        if path.name == "locked":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(directory, "_summary", summary)
    (trained.parent / "locked" / "checkpoints").mkdir(parents=True)
    done = cli("runs", trained.parent)
    shutil.rmtree(trained.parent / "locked")
    assert done.code == 0
    assert trained.name in done.out


def test_a_directory_that_was_removed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("os.getcwd", gone)
    assert cli("--version").code == 0


def test_only_a_reader_that_went_away_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe of the user's own code that breaks is a failure like others."""

    def breaks(args: list[str]) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("rookery.cli.main._dispatch", breaks)
    with pytest.raises(BrokenPipeError):
        main(["runs"])


# --- eval ------------------------------------------------------------------------------------

KEYS = {
    "episodes",
    "return_mean",
    "return_std",
    "return_ci95",
    "length_mean",
    "length_std",
    "returns",
    "lengths",
}


def test_one_episode_has_no_interval(cli: Cli, trained: Path) -> None:
    done = cli("eval", trained, "--episodes", 1)
    assert "in one episode of" in done.out
    assert json.loads(cli("eval", trained, "--episodes", 1, "--json").out)["return_ci95"] is None


def test_eval_as_json_is_json_alone(cli: Cli, trained: Path) -> None:
    done = cli("eval", trained, "--episodes", 3, "--seed", 7, "--json")
    assert done.code == 0
    summary = json.loads(done.out)
    assert set(summary) >= KEYS
    assert summary["episodes"] == len(summary["returns"]) == len(summary["lengths"]) == 3
    assert summary["return_mean"] == pytest.approx(sum(summary["returns"]) / 3)
    low, high = summary["return_ci95"]
    assert low <= summary["return_mean"] <= high
    assert "most likely action" in done.err


def test_eval_says_how_it_acts(cli: Cli, trained: Path) -> None:
    quick = ("eval", trained, "--episodes", 2, "--max-steps", 5)
    assert "sampled actions" in cli(*quick, "--stochastic").err
    assert "most likely action" in cli(*quick, "--deterministic").err
    text = cli(*quick).out
    assert "over 2 episodes of 5.0 steps" in text
    assert len(text.splitlines()) == 1
    assert cli(*quick, "--stochastic", "--deterministic").code == 2


def test_eval_of_one_checkpoint(cli: Cli, trained: Path) -> None:
    steps = CheckpointStore(trained / "checkpoints").steps_available()
    for which in (str(steps[0]), "latest", "best"):
        done = cli("eval", trained, "--episodes", 1, "--checkpoint", which, "--json")
        assert json.loads(done.out)["checkpoint_steps"] in steps
    inside = cli("eval", trained / "checkpoints" / f"{steps[0]:012d}", "--episodes", 1, "--json")
    assert json.loads(inside.out)["checkpoint_steps"] == steps[0]


def test_eval_prefers_the_best(cli: Cli, run_copy: Path) -> None:
    store = CheckpointStore(run_copy / "checkpoints")
    first = store.steps_available()[0]
    store.mark_best(first, {"return_mean": 1e9})
    done = cli("eval", run_copy, "--episodes", 1, "--json")
    assert json.loads(done.out)["checkpoint_steps"] == first


BAD_EVAL = {
    "": "required: run",
    "nothing": "nothing does not exist",
    ".": "is not a run directory",
    "copy --checkpoint 123": "no checkpoint of 123 steps",
    "copy --checkpoint newest": "unknown checkpoint 'newest'; use latest, best or a number",
    "copy --episodes 0": "--episodes: must be at least 1, got 0",
    "copy --episodes x": "invalid int value: 'x'",
    "copy --seed -1": "--seed: must be at least 0, got -1",
    "copy --max-steps -1": "--max-steps: must be at least 1, or 0 for none, got -1",
    "copy --episode 3": "did you mean '--episodes'",
}


@pytest.mark.parametrize("line", BAD_EVAL)
def test_bad_eval(line: str, cli: Cli, run_copy: Path) -> None:
    done = cli("eval", *line.split())
    assert done.code == 2
    assert done.out == ""
    assert BAD_EVAL[line] in done.line


def test_printing_environments_do_not_spoil_the_json(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "loud_world.py").write_text(
        "import gymnasium as gym\n"
        "def make():\n    print('hello from the world')\n    return gym.make('CartPole-v1')\n"
    )
    assert cli("train", "loud_world:make", *TINY, "--run", "r").code == 0
    done = cli("eval", "r", "--episodes", 1, "--json")
    json.loads(done.out)
    assert "hello from the world" in done.err


# --- recipes, runs, plan ---------------------------------------------------------------------


def test_recipes(cli: Cli) -> None:
    names = {"cartpole", "snake", "acrobot", "lunarlander"}
    assert names <= set(json.loads(cli("recipes", "--json").out))
    assert all(name in cli("recipes").out for name in names)


def test_runs(cli: Cli, run_copy: Path, tmp_path: Path) -> None:
    assert cli("runs").code == 0
    assert "`rookery train cartpole` makes one" in cli("runs").err
    assert json.loads(cli("runs", "--json").out) == []
    (row,) = json.loads(cli("runs", tmp_path, "--json").out)
    assert (row["state"], row["name"], row["tags"]) == ("finished", "cartpole", ["small"])
    assert row["best"]["return_mean"] > 0
    assert str(run_copy) in cli("runs", tmp_path).out
    assert json.loads(cli("runs", tmp_path, "--tag", "large", "--json").out) == []
    assert "does not exist" in cli("runs", "nothing").line


def test_plan(cli: Cli, trained: Path) -> None:
    text = cli("plan", "cartpole", "--engine", "local", "--actors", 3).out
    assert "actor x3" in text
    assert "shared_memory" in text
    assert cli("plan", "cartpole", "--mermaid").out.startswith("flowchart LR\n")
    assert "learner" in cli("plan", "--config", trained / "config.yaml").out
    assert "plan what?" in cli("plan").line
    assert "did you mean 'cartpole'" in cli("plan", "cartpol").line


def test_unknown_commands(cli: Cli) -> None:
    assert "unknown command 'trian'; did you mean 'train'?" in cli("trian").line
