"""Watching: what is shown is the state that was decided on, and every key does what it says."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ["SDL_VIDEODRIVER"] = "dummy"  # before pygame looks for a screen

from rookery.cli.main import main
from rookery.envs.make import make_env
from rookery.envs.snake import CELL_PIXELS
from rookery.envs.snake_world import MOVES
from rookery.play.controls import FASTEST, SLOWEST, Controls
from rookery.play.player import Moment, Player
from rookery.play.status import status_line
from rookery.play.terminal import coloured_text, parse_keys, plain_text
from rookery.roles.evaluator import evaluate
from rookery.runs.trained import Trained, find_trained
from tests.forks import forked
from tests.play_runs import train_snake, train_tiny

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def snake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_snake(tmp_path_factory.mktemp("snake") / "run")


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny("CartPole-v1", tmp_path_factory.mktemp("cartpole") / "run")


@pytest.fixture
def trained(snake: Path) -> Trained:
    return find_trained(str(snake))


def play(trained: Trained, mode: str = "rgb_array", episode: int = 0, **given: int) -> list[Moment]:
    with Player(trained, mode=mode, **given) as player:  # type: ignore[arg-type]
        return list(player.episode(episode))


# ---- moments -----------------------------------------------------------------------------------


def head_of(frame: object) -> tuple[int, int]:
    """Where the head is on a picture of Snake: (x, y)."""
    cells = np.asarray(frame)[::CELL_PIXELS, ::CELL_PIXELS]
    ((y, x),) = np.argwhere((cells == (196, 240, 160)).all(2))
    return int(x), int(y)


def test_the_picture_is_of_the_state_that_was_decided_on(trained: Trained) -> None:
    """Each decision leads from the head on its own picture to the head on the next."""
    moments = play(trained, seed=5, max_steps=60)
    assert len(moments) > 10
    turned = 0
    before = None
    for now, then in pairwise(moments):
        assert now.decision is not None
        dx, dy = MOVES[now.decision.action]
        (x, y), after = head_of(now.frame), head_of(then.frame)
        if after != (x + dx, y + dy):  # the snake does not turn back on itself, but goes on
            assert before is not None
            assert after == (2 * x - before[0], 2 * y - before[1])
            assert (dx, dy) == (before[0] - x, before[1] - y)
        turned += before is not None and after != (2 * x - before[0], 2 * y - before[1])
        before = (x, y)
    assert turned, "a test that sees only straight lines would not see a lag"


def test_what_is_told_belongs_to_the_picture(trained: Trained) -> None:
    """By hand: reset, draw, ask the policy about that observation; then compare, then step."""
    policy, env = trained.policy, make_env(trained.env, render_mode="rgb_array")
    moments = play(trained, seed=5, max_steps=40)
    obs, info = env.reset(seed=moments[0].seed)
    state, score = policy.initial_state(1), 0.0
    for moment in moments[:-1]:
        decision = moment.decision
        assert decision is not None
        np.testing.assert_array_equal(env.render(), moment.frame)
        assert moment.info == info
        assert moment.score == score
        with torch.inference_mode():
            seen = {"obs": torch.from_numpy(obs)[None]}
            reset = torch.tensor([moment.step == 0])
            value = policy.value(seen, state, reset)
            _, state = policy.step(seen, state, reset, None)
            first = policy.torso.layers[:2](policy.encoder(seen)["obs"])
        assert decision.value == pytest.approx(float(value), abs=1e-5)
        assert decision.first_layer is not None
        assert decision.memory is not None
        np.testing.assert_allclose(decision.first_layer, first[0].numpy(), atol=1e-5)
        np.testing.assert_allclose(decision.memory, state["h"][0].numpy(), atol=1e-5)
        obs, reward, _, _, info = env.step(decision.action)
        score += float(reward)
    last = moments[-1]
    assert last.over
    assert last.decision is None
    np.testing.assert_array_equal(env.render(), last.frame)


@pytest.mark.parametrize("deterministic", [True, False, None])
def test_episodes_are_those_of_an_evaluation(trained: Trained, deterministic: bool | None) -> None:
    scored = evaluate(
        trained.policy,
        trained.env,
        episodes=3,
        seed=2,
        deterministic=trained.eval.deterministic if deterministic is None else deterministic,
        max_steps=80,
        num_envs=3,
    )
    with Player(trained, mode="ansi", seed=2, deterministic=deterministic, max_steps=80) as player:
        ends = [list(player.episode(index))[-1] for index in range(3)]
    assert tuple(end.step for end in ends) == scored.lengths
    assert tuple(end.score for end in ends) == scored.returns


# ---- keys --------------------------------------------------------------------------------------


def test_speed_pause_and_single_steps() -> None:
    controls = Controls(fps=10)
    assert controls.take_due(), "the first moment is due at once"
    assert not controls.take_due()
    controls.pass_time(0.1)
    assert controls.take_due()
    controls.press("faster")
    controls.pass_time(0.1)
    assert [controls.take_due() for _ in range(3)] == [True, True, False]
    controls.press("pause")
    controls.pass_time(0.1)
    assert not controls.take_due()
    controls.press("step")
    assert [controls.take_due() for _ in range(2)] == [True, False]
    controls.press("pause")
    controls.press("step")
    assert not controls.take_due(), "single steps are for a pause"
    for _ in range(20):
        controls.press("faster")
    assert controls.speed == FASTEST
    for _ in range(20):
        controls.press("slower")
    assert controls.speed == SLOWEST
    assert controls.words == "1/16x"


class Watcher:
    """Sits at the window: told of every drawing, it presses the keys of its plan in their turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plan: list[int | str]) -> None:
        from rookery.play import window

        self.plan = list(plan)
        self.seen: list[tuple[int, int, float, bool]] = []
        self._show = window.show
        monkeypatch.setattr(window, "show", self.show)

    def show(self, panel: object, moment: Moment, controls: Controls) -> None:
        import pygame

        self._show(panel, moment, controls)  # type: ignore[arg-type]
        self.seen.append((moment.episode, moment.step, controls.speed, controls.paused))
        if self.plan:
            key = self.plan.pop(0)
            if key == "close":
                pygame.event.post(pygame.event.Event(pygame.QUIT))
            elif isinstance(key, int):
                pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key, unicode=""))
        assert len(self.seen) < 5000, "it should have quit"


def test_the_keys_of_the_window(snake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pygame

    plan: list[int | str] = [
        *(pygame.K_SPACE, "", pygame.K_RIGHT, "", pygame.K_RIGHT, "", pygame.K_KP_PLUS, ""),
        *(pygame.K_EQUALS, "", pygame.K_KP_MINUS, "", pygame.K_RETURN, "", pygame.K_ESCAPE),
    ]
    watcher = Watcher(monkeypatch, plan)
    assert main(["watch", str(snake), "--seed", "1"]) == 0
    assert not watcher.plan, "every key was pressed before it quit"
    paused = [it for it in watcher.seen if it[3]]
    start = paused[0][1]
    steps = [step for (episode, step, _, _) in paused if episode == 0]
    assert [step for step, _ in groupby(steps)] == [start, start + 1, start + 2]
    assert [speed for speed, _ in groupby(it[2] for it in paused)] == [1.0, 2.0, 4.0, 2.0]
    assert paused[-1][:3] == (1, 0, 2.0), "Return began the next episode"


@pytest.mark.parametrize("how", ["q", "close"])
def test_quitting_is_success(how: str, cartpole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Watcher(monkeypatch, ["", ord("q") if how == "q" else "close"])
    assert main(["watch", str(cartpole)]) == 0


def test_it_ends_after_its_episodes(cartpole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher(monkeypatch, [])
    argv = ["--episodes", "2", "--max-steps", "3", "--speed", "64"]
    assert main(["watch", str(cartpole), *argv]) == 0
    assert {episode for episode, *_ in watcher.seen} <= {0, 1}
    assert watcher.seen[-1][0] == 1


def test_control_c_is_130(cartpole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rookery.play import window

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(window, "show", interrupted)
    assert main(["watch", str(cartpole)]) == 130


# ---- pictures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1200, 700), (700, 900), (330, 210), (1, 1)])
def test_a_window_of_any_size_is_drawn(trained: Trained, size: tuple[int, int]) -> None:
    from rookery.play import paint, window
    from rookery.play.panel import panel_for

    panel, controls = panel_for(trained), Controls(15)
    for moment in play(trained, max_steps=3):
        picture = paint.surface_picture(window.compose(panel, moment, controls, size))
        assert picture.shape[:2] == (max(size[1], 200), max(size[0], 320))
        assert len(np.unique(picture.astype(np.uint32) @ [65536, 256, 1])) > 20


def test_the_snake_panel_shows_map_stores_value_and_units(trained: Trained) -> None:
    from rookery.play import paint
    from rookery.play.panel import panel_for

    panel = panel_for(trained)
    moments = play(trained, seed=5, max_steps=20)
    pictures = []
    for moment in moments:
        assert not isinstance(moment.frame, str)
        size = panel.size(moment.frame)
        pictures.append(paint.surface_picture(panel.draw(moment, size)))
    assert pictures[0].shape == (424, 664, 3)
    moment, picture = moments[5], pictures[5]
    x, y = head_of(moment.frame)
    middle = (12 + 10 * y + 5, 12 + 10 * x + 5)
    assert tuple(picture[middle]) == (196, 240, 160), "the head is in its cell of ten pixels"
    side = picture[:, 424:]
    for name, colour in (("food", (226, 88, 62)), ("water", (58, 134, 255))):
        width = (side == colour).all(2).sum(1).max()
        assert width == pytest.approx(216 * moment.info[name] / 200, abs=6), name
    assert moment.decision is not None
    share = (moment.decision.value + 2) / 2
    swatch = np.array(paint.good_or_bad(min(max(share, 0), 1)))
    assert (side == swatch).all(2).sum() > 1000, "a swatch in the colour of the value"
    assert (pictures[5][300:] != pictures[6][300:]).any(), "units change from step to step"


def test_values_go_from_red_to_green() -> None:
    from rookery.play.paint import HIGH, LOW, good_or_bad, near_square

    assert good_or_bad(0.0) == LOW
    assert good_or_bad(1.0) == HIGH
    assert [near_square(num) for num in (64, 60, 128, 1, 512)] == [
        *((8, 8), (8, 8), (11, 12), (1, 1), (23, 23)),
    ]


# ---- text --------------------------------------------------------------------------------------


def run(*words: str, **changes: str) -> subprocess.Popen[str]:
    return forked(
        *words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=screenless() | changes,
    )


def screenless() -> dict[str, str]:
    gone = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "COLUMNS", "LINES", "NO_COLOR", "TERM")
    kept = {name: value for name, value in os.environ.items() if name not in gone}
    return kept | {"PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color"}


def test_without_a_screen_it_draws_text(snake: Path) -> None:
    with run("watch", str(snake), "--max-steps", "2", HOME="/proc/nowhere") as child:
        out, err = child.communicate()
    assert child.returncode == 0, err
    why, typical = err.splitlines()
    assert why == "no window (neither DISPLAY nor WAYLAND_DISPLAY is set); drawing in the terminal"
    assert typical.startswith("begins with episode 1 of seed 0, typical of 9 (length 2, ")
    assert "\x1b" not in out
    frames = [frame.splitlines() for frame in out.strip("\n").split("\n\n")]
    assert len(frames) == 3, "one episode of two steps"
    for number, lines in enumerate(frames):
        assert lines[0] == "#" * 40
        assert sum(line.count("@") for line in lines[:40]) == 1
        assert f"step {number}" in lines[40]


def test_a_reader_that_goes_away_ends_it(snake: Path) -> None:
    with run("watch", str(snake), "--ansi", "--episodes", "1000", "--seed", "0") as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "#" * 40 + "\n"
        child.stdout.close()
        assert child.wait() == 0
        assert child.stderr.read() == ""


def test_control_c_ends_it_at_once(snake: Path) -> None:
    with run("watch", str(snake), "--ansi", "--seed", "0", "--episodes", "1000000") as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        assert child.returncode == 130
        assert err == ""


def in_terminal(columns: int, lines: int, *words: str, keys: str = "") -> tuple[int, str]:
    """Exit code and everything written to a terminal of this size."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    child = forked(
        *words,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=screenless(),
        start_new_session=True,
    )
    os.close(slave)
    written = b""
    sent = False
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        written += piece
        if keys and not sent and b"\x1b[H" in written:
            os.write(master, keys.encode())
            sent = True
    os.close(master)
    return child.wait(), written.decode()


@pytest.mark.parametrize("what", ["snake", "cartpole"])
def test_forty_columns_are_enough(what: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(what)
    argv = ("watch", str(path), "--ansi", "--episodes", "1", "--max-steps", "2", "--speed", "64")
    code, out = in_terminal(40, 24, *argv)
    assert code == 0, out
    assert "▀" in out, "40 lines of text do not fit, so it is the picture"
    assert out.endswith("\x1b[?25h\x1b[?1049l"), "cursor and screen are given back"
    frames = out.split("\x1b[H")[1:]
    assert frames
    for frame in frames:
        lines = CODES.sub("", frame).rstrip("\r\n").split("\r\n")
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 40
        assert lines[-1].startswith("ep"), "the last line tells where it is"


def test_text_where_it_fits_and_keys_in_the_terminal(snake: Path) -> None:
    code, out = in_terminal(80, 50, "watch", str(snake), "--ansi", keys="q")
    assert code == 0
    assert "#" * 40 in out
    assert "▀" not in out
    assert parse_keys("q +\x1b[C\x1bOC\x1b-x\r") == [
        *("quit", "pause", "faster", "step", "step", "quit", "slower", "start"),
    ]


def test_pictures_as_text() -> None:
    picture = np.full((100, 200, 3), 255, np.uint8)
    picture[40:60, 90:110] = 0
    plain = plain_text(picture, (40, 24))
    assert max(map(len, plain)) <= 40
    assert {letter for line in plain for letter in line} == {" ", "@"}, "the ground is blank"
    coloured = coloured_text(picture, (40, 24))
    assert {len(CODES.sub("", line)) for line in coloured} == {40}
    assert "38;2;255;255;255" in coloured[0]


@pytest.mark.parametrize("columns", [10, 20, 40, 80])
def test_the_last_line_fits(trained: Trained, columns: int) -> None:
    for moment in play(trained, max_steps=2):
        line = status_line(moment, Controls(15), columns)
        assert 0 < len(line) <= columns


# ---- what cannot be watched --------------------------------------------------------------------


@pytest.fixture
def drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[object]:
    """Watches a new agent of one of the environments in tests/drawn_envs.py."""
    monkeypatch.syspath_prepend(str(REPOSITORY))

    def watch(name: str, *words: str) -> tuple[int, str, str]:
        train_tiny(f"tests.drawn_envs:{name}", tmp_path / name, steps=32)
        capsys.readouterr()
        code = main(["watch", str(tmp_path / name), *words])
        return (code, *capsys.readouterr())

    return watch  # type: ignore[return-value]


@pytest.mark.parametrize("flags", [(), ("--ansi",)])
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("Bare", 2, "tests.drawn_envs:Bare cannot be drawn: it has no render modes"),
        ("Human", 2, "its render modes are human; "),
        ("Broken", 3, "raised RuntimeError: no paint left in render"),
        ("Nothing", 3, "it should be uint8[height, width, 3], it is NoneType"),
        ("deaf", 2, "takes no render_mode"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    drawn: object, name: str, code: int, said: str, flags: tuple[str, ...]
) -> None:
    got, out, err = drawn(name, *flags)  # type: ignore[operator]
    (line,) = err.splitlines()
    assert (got, out) == (code, "")
    assert line.startswith("rookery: ")
    assert said in line


def test_an_environment_of_text_goes_to_the_terminal(drawn: object) -> None:
    code, out, err = drawn("Written", "--max-steps", "1")  # type: ignore[operator]
    assert code == 0
    assert "has no render mode rgb_array" in err
    assert out.startswith("count 0\n==========\nepisode 1  step 0")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--episodes", "0"], "--episodes: must be at least 1, got 0"),
        (["--max-steps", "0"], "--max-steps: must be at least 1"),
        (["--speed", "0"], "--speed: must be more than 0"),
        (["--speed", "nan"], "--speed: must be more than 0"),
        (["--seed", "-1"], "--seed: must be at least 0"),
        (["--speedy", "2"], "did you mean '--speed'"),
        (["--checkpoint", "17"], "no checkpoint of 17 steps"),
    ],
)
def test_wrong_flags_are_one_line(
    cartpole: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(cartpole), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rookery: ")
    assert said in line


def test_a_run_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in (str(tmp_path / "gone"), "zoo:nosuchagent"):
        assert main(["watch", source]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("rookery: ")
