"""``rookery train --seeds``: real processes, one for each seed, that end together."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from rookery.cli import seeds
from rookery.cli.live.seed_rows import SeedRows
from rookery.cli.main import main
from rookery.cli.seeds import cores_needed, jobs_that_fit
from rookery.cli.side_by_side import Child
from rookery.recipes.settings import settings_from_flags
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.find import load_checkpoint
from tests.faults.processes import ROOT, until
from tests.forks import forked
from tests.terminal import Screen, watch

pytestmark = pytest.mark.slow

TINY = [
    *("--steps", "2000", "--envs", "4", "--ppo.rollout_steps", "32", "--ppo.num_epochs", "1"),
    *("--log-every", "200", "--metrics.sinks", "jsonl", "--stop-at", "none"),
    *("--eval.episodes", "2", "--eval.max_steps", "60"),
]
ENDLESS = [*TINY, "--steps", "1000000000", "--save-every", "1000000000"]


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nobody_stays() -> Iterator[None]:
    """Whatever a test asserts, what it started ends with it."""
    yield
    while STARTED:
        STARTED.pop().kill()


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    """``rookery train``, as from a shell."""
    process = forked(
        "train",
        *words,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    STARTED.append(process)
    return process


def status(run: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((run / "status.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def is_there(pid: int) -> bool:
    """Whether a process is alive; a zombie is not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def trained_a_little(run: Path) -> bool:
    metrics = run / "metrics.jsonl"
    return metrics.exists() and metrics.stat().st_size > 0


# ---- to the end --------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_seeds_end_as_three_runs_a_table_and_a_picture(tmp_path: Path) -> None:
    train = start("cartpole", *TINY, "--seed", "4", "--seeds", "3", "--jobs", "2", cwd=tmp_path)
    out, err = train.communicate(timeout=120)
    assert train.returncode == 0, err
    assert out == ""
    (group,) = (tmp_path / "runs").iterdir()
    assert group.name.startswith("cartpole-")
    assert {path.name for path in group.iterdir()} == {
        *("seed-4", "seed-5", "seed-6"),
        *("logs", "plots"),
    }
    here = Path("runs", group.name)
    lines = err.splitlines()
    assert lines[0] == f"runs {here}: seeds 4 to 6, 2 at a time"
    for seed in (4, 5, 6):
        run = group / f"seed-{seed}"
        assert yaml.safe_load((run / "config.yaml").read_text())["seed"] == seed
        assert status(run)["state"] == "finished"
        assert f"seed {seed} | run {here}/seed-{seed}" in lines
        log = (group / "logs" / f"seed-{seed}.log").read_text().splitlines()
        name = f"seed {seed} | "
        said = [line.removeprefix(name) for line in lines if line.startswith(name)]
        assert said == [line.rstrip() for line in log]
    table = lines[lines.index("  seed  outcome             steps       time  best return") + 1 :]
    for seed, row in zip((4, 5, 6), table, strict=False):
        words = row.split()
        assert words[:2] == [str(seed), "finished"]
        assert int(words[2].replace(",", "")) == status(group / f"seed-{seed}")["steps"] >= 2000
        best = CheckpointStore(group / f"seed-{seed}" / "checkpoints").best_score()
        assert best is not None
        assert words[-1] == f"{best['return_mean']:.1f}"
    assert "over 3 seeds" in table[3]
    assert lines[-1] == f"plot {here}/plots/return.png"
    with Image.open(group / "plots" / "return.png") as image:
        image.load()
        assert image.width == 1152
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 100
    first, second = (group / f"seed-{s}/checkpoints/latest/weights.safetensors" for s in (4, 5))
    assert first.read_bytes() != second.read_bytes()


def rows_of(screen: Screen) -> list[str]:
    """The rows of seeds, wherever they are by now."""
    return [line for line in screen.everything().splitlines() if line.startswith("seed ")]


@pytest.mark.slow
def test_a_terminal_shows_a_row_a_seed(tmp_path: Path) -> None:
    words = ("train", "cartpole", *TINY, "--seeds", "2", "--jobs", "2", "--run", "g")
    with watch(*words, cwd=tmp_path, columns=80, rows=24) as terminal:
        terminal.until(lambda screen: rows_of(screen)[1:] == ["seed 1  starting"])
        terminal.until(lambda screen: "steps/s" in screen.text())  # not cut off
        assert terminal.end() == 0
    lines = terminal.screen.everything().splitlines()
    assert lines[0] == "runs g: seeds 0 to 1, 2 at a time"
    assert [line[: len("seed 0  finished: 2")] for line in lines[1:3]] == [
        f"seed {seed}  finished: 2" for seed in range(2)
    ]
    assert lines[3].startswith("  seed  outcome"), "nothing between rows and table"
    assert lines[-1] == "plot g/plots/return.png"
    assert terminal.screen.cursor_shown
    assert terminal.screen.wrapped == 0


def test_warnings_stand_above_the_rows_and_many_seeds_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 6, 40, 0, 0))
    screen = Screen(40, 6)
    children = [Child(f"seed {n}", [], Path(f"{n}.log")) for n in range(9)]
    with os.fdopen(terminal, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(Child, "started", property(lambda child: child.name < "seed 4"))
        with SeedRows(children) as rows:
            children[0].code = 0
            rows.hear(children[1], "       1,000 steps")
            rows.hear(children[1], "run g/seed-1")
            rows.hear(children[2], "WARNING: odd")
    screen.feed(os.read(master, 1 << 16).decode())
    os.close(master)
    assert screen.everything().splitlines() == [
        "seed 2: WARNING: odd",
        "seed 1         1,000 steps",
        "seed 2  starting",
        "seed 3  starting",
        "others: 1 ended, 5 wait",
    ]


@pytest.mark.slow
def test_a_seed_is_the_run_that_it_would_be_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "cartpole", *TINY, "--seeds", "2", "--run", "g", "--quiet"]) == 0
    assert main(["train", "cartpole", *TINY, "--seed", "1", "--run", "alone", "--quiet"]) == 0
    assert capsys.readouterr() == ("", ""), "quiet prints nothing"
    assert "steps" in Path("g/logs/seed-0.log").read_text(), "the log has it all the same"
    file = "checkpoints/latest/weights.safetensors"
    assert Path("g/seed-1", file).read_bytes() == Path("alone", file).read_bytes()

    assert main(["runs", "."]) == 0
    listed = capsys.readouterr().out
    assert {"alone", "g/seed-0", "g/seed-1"} == {row.split()[-1] for row in listed.splitlines()}
    assert main(["runs", "g", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert main(["resume", "g"]) == 2
    assert "holds runs; give one, such as g/seed-0" in capsys.readouterr().err
    assert main(["resume", "g/seed-0", "--steps", "2500", "--quiet"]) == 0
    assert main(["plot", "g", "--out", "g.png"]) == 0


# ---- ended early -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_one_signal_ends_every_seed_with_a_checkpoint(number: int, tmp_path: Path) -> None:
    train = start("cartpole", *ENDLESS, "--seeds", "3", "--jobs", "2", "--run", "g", cwd=tmp_path)
    runs = [tmp_path / "g" / f"seed-{seed}" for seed in (0, 1)]
    until(lambda: all(map(trained_a_little, runs)), "two seeds to train")
    pids = [status(run)["pid"] for run in runs]
    assert all(os.getpgid(pid) == pid for pid in pids), (
        "Ctrl-C in a terminal reaches the first alone"
    )
    train.send_signal(number)
    _, err = train.communicate(timeout=60)
    assert train.returncode == 128 + number, err
    assert "Traceback" not in err
    for run, pid in zip(runs, pids, strict=True):
        assert status(run)["state"] == "interrupted"
        assert load_checkpoint(run, "latest").steps == status(run)["steps"] > 0
        assert not is_there(pid)
    assert not (tmp_path / "g" / "seed-2").exists()
    outcomes = [line.split()[1:3] for line in err.splitlines() if line.startswith("     ")]
    assert [row[0] for row in outcomes[-3:]] == ["interrupted", "interrupted", "not"]
    assert (tmp_path / "g" / "plots" / "return.png").is_file()


@pytest.mark.slow
def test_a_signal_at_the_very_start_is_not_lost(tmp_path: Path) -> None:
    train = start("cartpole", *ENDLESS, "--seeds", "2", "--jobs", "2", "--run", "g", cwd=tmp_path)
    assert train.stderr is not None
    assert train.stderr.readline().startswith("runs g")
    until(lambda: (tmp_path / "g" / "logs" / "seed-1.log").exists(), "the second to start")
    train.send_signal(signal.SIGINT)
    _, err = train.communicate(timeout=60)
    assert train.returncode == 130, err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "twice"])
def test_no_seed_outlives_the_command(how: str, tmp_path: Path) -> None:
    engine = ["--engine", "local", "--actors", "1"]
    train = start(
        "cartpole", *ENDLESS, *engine, "--seeds", "2", "--jobs", "2", "--run", "g", cwd=tmp_path
    )
    runs = [tmp_path / "g" / f"seed-{seed}" for seed in (0, 1)]
    until(lambda: all(map(trained_a_little, runs)), "two seeds to train")
    pids = [pid for run in runs for pid in family(status(run)["pid"])]
    assert len(pids) >= 6, "a driver, an actor and a learner each"
    if how == "killed":
        train.kill()
    else:
        train.send_signal(signal.SIGINT)
        until(lambda: "ending every seed" in read_line(train), "the first to be heard")
        train.send_signal(signal.SIGINT)
    train.communicate(timeout=60)
    assert train.returncode in (130, -signal.SIGKILL)
    until(lambda: not any(map(is_there, pids)), "all processes to be gone")
    for run in runs:
        assert status(run)["state"] in ("running", "interrupted")


def read_line(train: subprocess.Popen[str]) -> str:
    assert train.stderr is not None
    return train.stderr.readline()


def family(pid: int) -> list[int]:
    """A process, those that it started, and those that they did."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(member for child in children for member in family(int(child)))]


@pytest.mark.slow
def test_one_failing_seed_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "picky.py").write_text(
        "import sys, gymnasium as gym\n"
        "class Picky(gym.Wrapper):\n"
        "    def step(self, action):\n"
        "        if 'g/seed-1' in sys.argv:\n"
        "            raise ValueError('not with this seed')\n"
        "        return super().step(action)\n"
        "def make(): return Picky(gym.make('CartPole-v1'))\n"
    )
    train = start("picky:make", *TINY, "--seeds", "2", "--jobs", "2", "--run", "g", cwd=tmp_path)
    _, err = train.communicate(timeout=120)
    assert train.returncode == 3, err
    states = [status(tmp_path / "g" / f"seed-{seed}")["state"] for seed in range(2)]
    assert states == ["finished", "failed"]
    last = err.splitlines()[-1]
    assert last.startswith("rookery: seed 1 failed: ")
    assert "not with this seed" in last
    assert last.endswith("1 of 2 seeds ended well; its log is g/logs/seed-1.log")
    assert "not with this seed" in (tmp_path / "g" / "logs" / "seed-1.log").read_text()
    assert "Traceback" not in err
    assert (tmp_path / "g" / "plots" / "return.png").is_file()


# ---- what is refused ---------------------------------------------------------------------------

BAD = {
    "cartpole --seeds 0": "--seeds: '0' is no number of seeds",
    "cartpole --seeds many": "--seeds: 'many' is no number of seeds; give 1 or more",
    "cartpole --seeds 2 --jobs 0": "--jobs: '0'",
    "cartpole --jobs 2": "--jobs: it says how many of several --seeds",
    "cartpole --seeds": "--seeds: give it a value",
    "cartpol --seeds 2": "did you mean 'cartpole'",
    "CartPol-v1 --seeds 2": "did you mean 'CartPole-v1'",
    "cartpole --seeds 2 --stepz 3": "unknown flag --stepz",
    "cartpole --seeds 2 --init-from nothing": "nothing does not exist",
}


@pytest.mark.parametrize("words", BAD)
def test_what_cannot_be_trained_leaves_nothing(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rookery: ")
    assert len(err.splitlines()) == 1
    assert BAD[words] in err
    assert list(tmp_path.iterdir()) == []


def test_a_used_directory_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("g").mkdir()
    Path("g", "mine").write_text("")
    assert main(["train", "cartpole", "--seeds", "2", "--run", "g"]) == 2
    assert "g is already used" in capsys.readouterr().err
    assert [path.name for path in Path("g").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("flags", "cores"),
    [
        ({}, 1),
        ({"sync.learner_threads": "3"}, 3),
        ({"env.backend": "process", "env.num_workers": "4"}, 4),
        ({"engine": "local", "actors": "2"}, 3),
        ({"engine": "local", "actors": "2", "env.backend": "process", "env.num_workers": "4"}, 9),
        ({"formation": "allreduce", "engine": "local", "workers": "2"}, 2),
        ({"formation": "hogwild", "engine": "local", "workers": "3"}, 3),
        ({"algo": "impala", "formation": "async", "threads": "true", "actors": "2"}, 3),
        ({"algo": "dqn", "formation": "replay", "engine": "local", "learners": "2"}, 4),
    ],
)
def test_how_many_cores_a_run_keeps_busy(
    flags: dict[str, str], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings_from_flags("cartpole", flags)
    assert cores_needed(config) == cores
    monkeypatch.setattr(seeds, "usable_cores", lambda: (8, ""))
    assert jobs_that_fit(config) == max(1, 8 // cores)
