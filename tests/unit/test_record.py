"""Recording: the file holds every moment, and the JSON beside it is what was played."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio.v3 as iio
import numpy as np
import pytest
from PIL import Image

os.environ["SDL_VIDEODRIVER"] = "dummy"

import rookery
from rookery.cli.main import main
from rookery.play.past import past_agents, short_count, words_of
from rookery.play.recording import CAPTION, GAP
from rookery.play.video import durations_ms
from rookery.runs.history import History
from rookery.runs.trained import find_trained
from tests.play_runs import train_snake, train_tiny

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
Picture = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture(scope="module")
def snake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_snake(tmp_path_factory.mktemp("snake") / "run")


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny("CartPole-v1", tmp_path_factory.mktemp("cartpole") / "run")


@pytest.fixture
def record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Records, in an empty directory; gives what was written to standard output."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> str:
        assert main(["record", *map(str, words)]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Gives the one line of a recording that is refused, which leaves nothing behind."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object, code: int = 2) -> str:
        before = sorted(tmp_path.iterdir())
        capsys.readouterr()
        assert main(["record", *map(str, words)]) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("rookery: ")
        assert sorted(tmp_path.iterdir()) == before
        return line

    return run


def episodes(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path(path).read_text())["episodes"]
    return found


def gif_frames(path: str) -> list[Picture]:
    image = Image.open(path)
    frames = []
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        frames.append(np.asarray(image.convert("RGB")))
    return frames


def differ(frames: Any) -> bool:
    """Whether pictures are unlike the one before; a cart may stand still for a step."""
    changes = [(frames[i] != frames[i + 1]).any() for i in range(len(frames) - 1)]
    return len(changes) > 0 and bool(np.mean(changes) > 0.7)


def gif_secs(path: str) -> float:
    image = Image.open(path)
    total = 0
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        total += image.info["duration"]
    return total / 1000


# ---- files -------------------------------------------------------------------------------------


def test_an_mp4_holds_every_moment(record: Callable[..., str], cartpole: Path) -> None:
    out = record(cartpole, "--out", "one.mp4", "--seed", 3)
    (episode,) = episodes("one.json")
    frames = iio.imread("one.mp4")
    assert frames.shape == (episode["length"] + 1, 400, 600, 3)
    assert frames.mean() > 100, "CartPole is mostly white"
    assert (frames < 64).all(3).any(), "with a black cart"
    assert differ(frames)
    meta = iio.immeta("one.mp4")
    assert meta["fps"] == 50, "as the environment says"
    assert (meta["codec"], meta["pix_fmt"].partition("(")[0]) == ("h264", "yuv420p")
    assert f"length {episode['length']}" in out
    assert sorted(path.name for path in Path().iterdir()) == ["one.json", "one.mp4"]


def test_a_gif_holds_every_moment(record: Callable[..., str], cartpole: Path) -> None:
    record(cartpole, "--out", "one.gif", "--fps", 20)
    frames = gif_frames("one.gif")
    (episode,) = episodes("one.json")
    assert gif_secs("one.gif") == pytest.approx((episode["length"] + 1) / 20)
    assert 0.7 * episode["length"] < len(frames) <= episode["length"] + 1, "equal ones are joined"
    assert frames[0].shape == (400, 600, 3)
    assert differ(frames)
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=episode["seed"])
    real = np.asarray(env.render())
    assert np.abs(frames[0].astype(int) - real).mean() < 1, "the colours are the environment's"
    assert Path("one.gif").stat().st_size < 4000 * len(frames)


def test_snake_is_recorded_with_its_panel(record: Callable[..., str], snake: Path) -> None:
    record(snake, "--out", "snake.mp4", "--max-steps", 12)
    frames = iio.imread("snake.mp4")
    (episode,) = episodes("snake.json")
    assert frames.shape == (episode["length"] + 1, 594, 930, 3)
    assert differ(frames)
    record(snake, "--out", "small.gif", "--max-steps", 3)
    assert gif_frames("small.gif")[0].shape == (424, 664, 3)


def test_odd_pictures_become_even(
    record: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY))
    run = train_tiny("tests.drawn_envs:Odd", tmp_path / "odd", steps=32)
    record(run, "--out", "odd.mp4")
    frames = iio.imread("odd.mp4")
    assert frames.shape == (11, 34, 22, 3)
    assert frames[0, 16, 18].max() < 40
    assert frames[-1, 16, 18].min() > 150
    record(run, "--out", "panel.gif", "--panel")
    assert gif_frames("panel.gif")[0].shape[0] == 424


@pytest.mark.parametrize("fps", [7.0, 15.0, 50.0])
def test_a_gif_keeps_time(fps: float) -> None:
    stays = durations_ms(300, fps)
    assert sum(stays) == pytest.approx(300_000 / fps, abs=10)
    assert min(stays) >= 20


# ---- numbers -----------------------------------------------------------------------------------


def test_the_rewards_are_those_of_a_replay_by_hand(
    record: Callable[..., str], cartpole: Path
) -> None:
    record(
        *(cartpole, "--out", "two.gif", "--episodes", 2, "--deterministic"),
        *("--seed", 0, "--max-steps", 150),
    )
    agent = rookery.load(cartpole)
    env = gym.make("CartPole-v1")
    found = episodes("two.json")
    assert [it["episode"] for it in found] == [0, 1]
    assert found[0]["seed"] != found[1]["seed"]
    for episode in found:
        obs, _ = env.reset(seed=episode["seed"])
        rewards: list[float] = []
        over = False
        while not over and len(rewards) < 150:
            action, _ = agent.act(obs, deterministic=True)
            obs, reward, over, _, _ = env.step(action)
            rewards.append(float(reward))
        assert episode["rewards"] == rewards
        assert episode["return"] == sum(rewards)
        assert episode["length"] == len(rewards)
        assert episode["terminated"] is over
        assert episode["cut"] is not over
        assert episode["truncated"] is False
        assert episode["checkpoint_steps"] == find_trained(cartpole).steps
    pictures = sum(it["length"] + 1 for it in found) + 2 * 50  # a second is held at each end
    assert gif_secs("two.gif") == pytest.approx(pictures / 50)


def test_the_episodes_are_those_of_eval(
    record: Callable[..., str], snake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--episodes", "3", "--seed", "4", "--max-steps", "60"]
    record(snake, "--out", "three.gif", *argv)
    assert main(["eval", str(snake), *argv, "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert [it["return"] for it in episodes("three.json")] == scored["returns"]
    assert [it["length"] for it in episodes("three.json")] == scored["lengths"]


# ---- side by side ------------------------------------------------------------------------------


def test_times_side_by_side(record: Callable[..., str], snake: Path) -> None:
    last = History(snake / "history").snapshots()[-1]
    record(snake, "--out", "at.mp4", "--at", f"0,{last.wall_secs}s", "--seed", 2)
    frames = iio.imread("at.mp4")
    first, trained = episodes("at.json")
    assert (first["checkpoint_steps"], trained["checkpoint_steps"]) == (0, last.steps)
    assert (first["trained_secs"], trained["trained_secs"]) == (0.0, last.wall_secs)
    assert first["seed"] == trained["seed"]
    assert frames.shape[1:] == (424 + CAPTION, 2 * 664 + GAP, 3)
    length = max(first["length"], trained["length"]) + 1
    assert len(frames) == length + 15, "a second is held at the end"
    for x in (0, 664 + GAP):
        assert (frames[0, :CAPTION, x : x + 664] > 150).any(), "a caption above each"
    if first["length"] != trained["length"]:
        early = min(first, trained, key=lambda it: it["length"])
        x = 0 if early is first else 664 + GAP
        ended, held = (frames[at][CAPTION:, x : x + 664].mean() for at in (early["length"], -1))
        assert held < 0.6 * ended, "who waits is dimmed"


def test_pictures_side_by_side_are_made_to_fit(record: Callable[..., str], cartpole: Path) -> None:
    record(cartpole, "--out", "at.gif", "--at", "0,0,0,0,0", "--max-steps", 2)
    (height, width, _) = gif_frames("at.gif")[0].shape
    assert 1800 < width <= 1920
    assert height < 400
    assert len(episodes("at.json")) == 5


def test_agents_of_other_times_are_other_agents(record: Callable[..., str], cartpole: Path) -> None:
    """The snapshot at the end plays as the run does, the one at the start does not."""
    last = History(cartpole / "history").snapshots()[-1]
    record(cartpole, "--out", "at.gif", "--at", f"{last.wall_secs}", "--stochastic")
    record(cartpole, "--out", "now.gif", "--checkpoint", "latest", "--stochastic")
    (at,), (now,) = episodes("at.json"), episodes("now.json")
    assert at["rewards"] == now["rewards"]
    assert gif_frames("at.gif")[0].shape[0] == 400 + CAPTION


def test_times_and_counts_in_words() -> None:
    assert [words_of(secs) for secs in (0, 4.12, 59, 60, 903, 3600, 5400)] == [
        *("0 s", "4.1 s", "59 s", "1 min", "15 min 3 s", "1 h", "1 h 30 min"),
    ]
    assert [short_count(num) for num in (0, 999, 14_070, 12_345_678)] == [
        *("0", "999", "14.1k", "12.3M"),
    ]


# ---- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--out", "one.avi"], "the name must end in .mp4 or .gif"),
        (["--out", "one"], "the name must end in .mp4 or .gif"),
        (["--out", "gone/one.gif"], "the directory gone does not exist"),
        ([], "--out"),
        (["--out", "one.gif", "--at", "soon"], "'soon' is not a time"),
        (["--out", "one.gif", "--at", ""], "is not a time"),
        (["--out", "one.gif", "--at", "1,-5"], "must not be negative"),
        (["--out", "one.gif", "--at", "inf"], "must not be negative or infinite"),
        (["--out", "one.gif", "--at", "0,0,0,0,0,0,0,0,0"], "at most 8"),
        (["--out", "one.gif", "--at", "0,10h"], "10 h is beyond the end of"),
        (["--out", "one.gif", "--at", "0", "--checkpoint", "best"], "leave --checkpoint out"),
        (["--out", "one.gif", "--fps", "0"], "--fps: must be more than 0"),
        (["--out", "one.gif", "--episodes", "0"], "--episodes: must be at least 1"),
        (["--out", "one.gif", "--ouch", "3"], "did you mean '--out'"),
    ],
)
def test_wrong_flags_are_one_line(
    refused: Callable[..., str], cartpole: Path, flags: list[str], said: str
) -> None:
    assert said in refused(cartpole, *flags)


def test_a_file_is_overwritten_only_by_force(
    record: Callable[..., str], cartpole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (cartpole, "--out", "one.gif", "--max-steps", 2)
    record(*words)
    before = Path("one.gif").read_bytes()
    assert main(["record", *map(str, words)]) == 2
    assert "one.gif is there already; --force" in capsys.readouterr().err
    assert Path("one.gif").read_bytes() == before
    record(*words, "--force", "--seed", 1)
    assert Path("one.gif").read_bytes() != before


@pytest.mark.parametrize("program", ["/bin/false", "/no/such/ffmpeg"])
def test_without_ffmpeg_there_are_gifs(
    refused: Callable[..., str], cartpole: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", program)
    line = refused(cartpole, "--out", "one.mp4")
    assert ".gif" in line
    assert "pip install imageio-ffmpeg" in line


def test_without_its_package_there_are_gifs(
    refused: Callable[..., str], cartpole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert ".gif" in refused(cartpole, "--out", "one.mp4")


def test_an_ffmpeg_that_fails_on_the_way(
    refused: Callable[..., str], cartpole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text('#!/bin/sh\n[ "$1" = -version ] && exit 0\necho no space >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    line = refused(cartpole, "--out", "one.mp4")
    assert "cannot write one.mp4" in line
    assert "no space" in line


def test_an_interrupted_recording_leaves_nothing(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rookery.play import recording

    monkeypatch.chdir(tmp_path)
    calls: list[int] = []
    compose = recording.compose

    def interrupted(*given: Any) -> Any:
        calls.append(1)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return compose(*given)

    monkeypatch.setattr(recording, "compose", interrupted)
    for name in ("one.mp4", "one.gif"):
        calls.clear()
        assert main(["record", str(cartpole), "--out", name]) == 130
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("Bare", 2, "it has no render modes; rgb_array is needed"),
        ("Written", 2, "its render modes are ansi; rgb_array is needed"),
        ("Broken", 3, "no paint left"),
        ("Growing", 2, "changed its size from 30x20 to 30x21"),
    ],
)
def test_what_cannot_be_recorded_is_one_line(
    refused: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY))
    run = train_tiny(f"tests.drawn_envs:{name}", tmp_path / name, steps=32)
    for file in ("one.gif", "one.mp4"):
        assert said in refused(run, "--out", file, code=code)


def test_a_run_without_history_is_one_line(refused: Callable[..., str], tmp_path: Path) -> None:
    run = train_tiny("CartPole-v1", tmp_path / "run", checkpoint={"history": 0})
    assert "has no history" in refused(run, "--out", "one.gif", "--at", "0")


def test_an_unwritable_home_does_not_matter(cartpole: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rookery", "record", str(cartpole)),
            *("--out", str(tmp_path / "one.mp4"), "--max-steps", "3", "--seed", "0"),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"HOME": "/proc/nowhere", "PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "cut at --max-steps 3\n"
    assert len(iio.imread(tmp_path / "one.mp4")) == 4


# ---- what has learned nothing ------------------------------------------------------------------


def test_the_untrained_agent_acts_by_chance(record: Callable[..., str], tmp_path: Path) -> None:
    """Its most likely action balances CartPole for 300 steps, by an accident of seed 0."""
    run = tmp_path / "run"
    flags = {"steps": 1100, "seed": 0, "stop_at": None, "eval": {"episodes": 0}}
    rookery.train("cartpole", run=run, quiet=True, **flags)
    how = ("--seed", 0, "--max-steps", 120)
    end = History(run / "history").snapshots()[-1].wall_secs
    record(run, "--out", "grown.gif", "--at", f"0,{end}", *how)
    untrained, last = episodes("grown.json")
    assert (untrained["deterministic"], last["deterministic"]) == (False, True)
    assert untrained["length"] < 80
    record(run, "--out", "sure.gif", "--at", "0", *how, "--deterministic")
    (sure,) = episodes("sure.json")
    assert sure["deterministic"]
    assert sure["length"] == 120


def test_values_that_nothing_was_learned_for_choose_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    rookery.train("dqn-cartpole", run=run, quiet=True, steps=200, eval={"episodes": 0})
    agents = past_agents(str(run), find_trained(run), [0.0])
    assert [agent.caption for agent in agents] == ["untrained"]
    assert agents[0].trained.policy.play_epsilon == 1.0


def test_weights_of_another_run_are_not_untrained(cartpole: Path, tmp_path: Path) -> None:
    run = train_tiny("CartPole-v1", tmp_path / "run", init_from=cartpole)
    (agent,) = past_agents(str(run), find_trained(run), [0.0])
    assert (agent.untrained, agent.caption) == (False, "0 s · 0 steps")
