"""The live view on a real terminal, and its parts."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.cli.live.cells import ASCII, UNICODE, Glyphs, Line, clock, number, rounded, width_of
from rookery.cli.live.frame import compose
from rookery.cli.live.plot import plot
from rookery.cli.live.story import MOST_POINTS, Story
from rookery.cli.live.terminal import speaks_unicode
from rookery.cli.main import main
from rookery.recipes.settings import settings_from_flags
from rookery.runs.metrics import read_metrics
from rookery.runs.stage import FIRST_BATCH, Stage
from tests.faults.processes import members, own_name
from tests.forks import forked
from tests.terminal import REPOSITORY, Screen, watch

pytestmark = pytest.mark.slow

TRAIN = ("train", "cartpole", "--run", "run", "--log-every", "500", "--eval.episodes", "4")
SHORT = (*TRAIN, "--steps", "4000")
ENDLESS = (*TRAIN, "--steps", "100000000", "--stop-at", "none", "--lr", "1e-3")


def text_of(lines: list[Line]) -> str:
    return "\n".join("".join(text for text, _ in line) for line in lines)


def has_curve(screen: Screen) -> bool:
    """Whether training has told something, and the picture of it is complete."""
    return screen.cursor_shown and re.search("[\u2801-\u28ff]", screen.text()) is not None


# ---- on a terminal -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "rows"),
    [pytest.param(120, 30, marks=pytest.mark.long), (80, 24), (40, 24), (20, 12)],
)
def test_a_run_on_a_terminal(tmp_path: Path, columns: int, rows: int) -> None:
    with watch(*SHORT, cwd=tmp_path, columns=columns, rows=rows) as terminal:
        assert terminal.end() == 0
    screen = terminal.screen
    seen = screen.everything()
    assert screen.cursor_shown
    place = seen.rindex("finished: ")
    start = seen.rfind("\n", 0, seen.index("cartpole")) + 1  # below what is said before it
    head, closing = seen[start:place], seen[place:].replace("\n", "")
    assert closing.startswith("finished: 4000 steps reached (")
    assert all(len(line) < columns for line in head.splitlines()), "nothing wraps"
    assert head.count("cartpole") == 1, "one picture, replaced in place"
    assert closing.endswith("rookery eval run")
    last = [r for r in read_metrics(tmp_path / "run/metrics.jsonl") if "train/lr" in r][-1]
    assert f"return{number(last['rollout/return_mean'])}" in head.replace(" ", "")
    assert "steps/s" in head
    assert (
        f"{last['steps']:,} / 4,000 steps  100%"
        if columns >= 40
        else f"{rounded(last['steps'])}/4k"
    ) in head
    score = read_metrics(tmp_path / "run/metrics.jsonl")[-1]["eval/return_mean"]
    assert f"{score:.1f} ±" in head
    assert "learner waits" in head
    if columns >= 40:
        assert "┤" in head
        assert "◆" in head, "the evaluation is marked in the curve"
        assert has_curve(screen)
        assert "lr 0.00" in head
    assert ("╭─" in head) == (columns >= 80)


def test_an_evaluation_shows_how_far_it_is(tmp_path: Path) -> None:
    small = {"steps": 64, "envs": 4, "ppo": {"rollout_steps": 16}, "eval": {"episodes": 0}}
    rookery.train("CartPole-v1", run=tmp_path / "run", **small)
    words = ("eval", "run", "--episodes", "40", "--max-steps", "30")
    with watch(*words, cwd=tmp_path, columns=80, rows=20) as terminal:
        assert terminal.end() == 0
    assert re.search(r"\r\d+ of 40 episodes", terminal.raw)
    assert "of 40 episodes" not in terminal.raw.rpartition("\r\x1b[K")[2], "the line is gone"
    assert "over 40 episodes" in terminal.raw


def test_a_low_terminal_without_colours(tmp_path: Path) -> None:
    with watch(*SHORT, cwd=tmp_path, columns=80, rows=10, NO_COLOR="1") as terminal:
        assert terminal.end() == 0
    colours = [
        code for codes in re.findall(r"\x1b\[([0-9;]*)m", terminal.raw) for code in codes.split(";")
    ]
    assert set(colours) <= {"", "0", "1", "2"}, "bold and dim are no colours"
    assert terminal.screen.text().count("\n") < 10
    assert "return" in terminal.screen.text()


@pytest.mark.parametrize(
    "language", [pytest.param({"LANG": "C"}, marks=pytest.mark.long), {"LC_ALL": "C"}]
)
def test_the_c_locale_gets_ascii(tmp_path: Path, language: dict[str, str]) -> None:
    with watch(*SHORT, cwd=tmp_path, columns=80, rows=24, **language) as terminal:
        assert terminal.end() == 0
    assert terminal.raw.isascii()
    assert "+- cartpole ppo - sync - inline" in terminal.screen.everything()
    assert " +- " in terminal.screen.everything()


@pytest.mark.parametrize(
    ("words", "environment"), [((), {"TERM": "dumb"}), ((), {"TERM": None}), (("--plain",), {})]
)
def test_plain_lines_on_a_terminal(
    tmp_path: Path, words: tuple[str, ...], environment: dict[str, str | None]
) -> None:
    with watch(*SHORT, *words, cwd=tmp_path, columns=120, **environment) as terminal:
        assert terminal.end() == 0
    assert "\x1b" not in terminal.raw
    lines = terminal.screen.everything().splitlines()
    assert lines[0].startswith("memory: about ")
    assert lines[1] == "run run"
    assert re.search(r"steps/s$", lines[2])
    assert lines[-1] == "rookery eval run"


def test_plain_lines_into_a_pipe(tmp_path: Path) -> None:
    process = forked(
        *SHORT,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "TERM": "xterm"},
    )
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "")
    assert "\x1b" not in err
    assert err.splitlines()[1] == "run run"
    assert "steps/s" in err


def test_quiet_draws_nothing(tmp_path: Path) -> None:
    with watch(*SHORT, "--quiet", cwd=tmp_path) as terminal:
        assert terminal.end() == 0
    assert terminal.raw == ""


def test_ctrl_c_ends_with_130_and_a_clean_terminal(tmp_path: Path) -> None:
    with watch(*ENDLESS, cwd=tmp_path, columns=100, rows=30) as terminal:
        terminal.until(has_curve)
        terminal.type(b"\x03")
        assert terminal.end() == 130
    assert terminal.screen.cursor_shown
    assert terminal.screen.column == 0
    seen = terminal.screen.everything().splitlines()
    assert seen[1] == "ending with a checkpoint; once more to end at once", "above the picture"
    assert seen[2].startswith("╭─ cartpole")
    assert "interrupted" in seen[2]
    assert seen[-2].startswith("interrupted: SIGINT (")
    assert seen[-1] == "rookery eval run"
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "interrupted"


@pytest.mark.slow
def test_the_view_follows_the_size_of_the_terminal(tmp_path: Path) -> None:
    with watch(*ENDLESS, cwd=tmp_path, columns=100, rows=30) as terminal:
        terminal.until(has_curve)
        for columns, rows in ((40, 12), (1, 1), (70, 9), (120, 40)):
            terminal.resize(columns, rows)
            mark = len(terminal.raw)
            # The second picture after the change is surely of the new size.
            terminal.until(lambda _, mark=mark: terminal.raw.count("\x1b[J\x1b[?25h", mark) >= 3)  # type: ignore[misc]
            assert terminal.screen.text().count("cartpole") == (columns > 1)
            assert all(len(line) < max(columns, 2) for line in terminal.screen.lines)
        assert "╭─ cartpole" in terminal.screen.text()
        terminal.type(b"\x03")
        assert terminal.end() == 130


NOISY = """
import os, sys, warnings
import gymnasium as gym

class Noisy(gym.Wrapper):
    made = 0

    def __init__(self, env):
        super().__init__(env)
        Noisy.made += 1
        self.number, self.episodes = Noisy.made, 0

    def reset(self, **given):
        self.episodes += 1
        if self.number == 3 and self.episodes == 2:
            print("printed by an environment")
            print("\\x1b[31mwritten\\x1b[0m to standard error", file=sys.stderr)
            os.write(2, b"native text, 50%\\rnative text, 100%\\n")
            warnings.warn("warned about something")
            os.system("echo another process >&2")
        return super().reset(**given)

def make_env():
    return Noisy(gym.make("CartPole-v1"))
"""


def test_what_others_write_stands_above_the_view(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    words = ("train", "noisy:make_env", "--name", "cartpole", *TRAIN[2:], "--steps", "3000")
    with watch(*words, "--envs", "4", cwd=tmp_path, columns=100, rows=30) as terminal:
        assert terminal.end() == 0
    lines = terminal.screen.everything().splitlines()
    top = next(place for place, line in enumerate(lines) if line.startswith("╭─ cartpole"))
    above = lines[:top]
    for said in (
        "printed by an environment",
        "written to standard error",
        "native text, 100%",
        "another process",
    ):
        assert above.count(said) == 1, above
    assert any("warned about something" in line for line in above)
    assert "another process" in terminal.screen.text(), "in sight: the picture leaves room"
    assert not any("│" in line for line in above), above


def test_an_error_stands_below_the_view(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        NOISY.replace('print("printed', 'raise ValueError("oh"); print("printed')
    )
    words = ("train", "noisy:make_env", "--name", "cartpole", *TRAIN[2:], "--steps", "3000")
    with watch(*words, "--envs", "4", cwd=tmp_path, columns=100, rows=30) as terminal:
        assert terminal.end() == 3
    seen = terminal.screen.everything()
    assert "failed" in seen.splitlines()[1]
    assert "rookery: " in seen.split("╰─ run")[1]
    assert "Traceback" not in seen


def test_the_run_goes_on_when_the_terminal_is_gone(tmp_path: Path) -> None:
    with watch(*SHORT[:-1], "20000", cwd=tmp_path) as terminal:
        terminal.until(lambda screen: "cartpole" in screen.text())
        terminal.hang_up()
        terminal.process.wait(120.0)
    assert terminal.process.returncode == 0
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "finished"


@pytest.mark.slow
def test_resume_begins_with_the_curve_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SHORT, "--quiet"]) == 0
    with watch("resume", "run", "--steps", "5000", cwd=tmp_path, columns=100, rows=30) as terminal:
        terminal.until(has_curve)
        assert "4," in terminal.screen.lines[1], "steps of the checkpoint, before any new record"
        assert terminal.end() == 0
    assert "/ 5,000 steps" in terminal.screen.everything()
    assert "finished: 5000 steps reached" in terminal.screen.everything()


def test_nothing_to_resume_draws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SHORT, "--quiet"]) == 0
    with watch("resume", "run", cwd=tmp_path, columns=100, rows=30) as terminal:
        assert terminal.end() == 0
    assert terminal.screen.everything().startswith("finished: nothing to do")
    assert "\x1b" not in terminal.raw


@pytest.mark.slow
def test_a_killed_actor_is_told_above_the_view(tmp_path: Path) -> None:
    run = own_name()
    words = (*ENDLESS, "--engine", "local", "--actors", "2")
    words = tuple(run if word == "run" else word for word in words)
    with watch(*words, cwd=tmp_path, columns=100, rows=30) as terminal:
        terminal.until(has_curve)
        assert re.search(r"starting, \d of 4 processes", terminal.raw)
        os.kill(members(tmp_path / run)["actor-1"], signal.SIGKILL)
        terminal.until(lambda screen: re.search(r"restarts +1", screen.text()) is not None)
        terminal.type(b"\x03")
        assert terminal.end() == 130
    lines = terminal.screen.everything().splitlines()
    assert lines[1] == "WARNING: actor-1: killed by SIGKILL; replaced"
    assert re.search(r"evaluator waits .*\d+%", "\n".join(lines))


# ---- its parts -----------------------------------------------------------------------------------


def story(**changes: str) -> Story:
    return Story(settings_from_flags("cartpole", changes), Path("runs/é-日本"), 0.0)


def record(steps: int, **more: Any) -> dict[str, Any]:
    return {
        "steps": steps,
        "updates": 1,
        "wall_secs": steps / 1000,
        "rollout/return_mean": steps / 100,
        "time/env_steps_per_s": 1000.0,
        "fleet/actor_wait_share": 0.25,
        "train/lr": 1e-3,
        "train/policy_loss": math.nan,
    } | more


def evaluation(steps: int, mean: float) -> dict[str, Any]:
    return {
        "steps": steps,
        "wall_secs": steps / 1000,
        "eval/steps": steps,
        "eval/return_mean": mean,
        "eval/return_std": 10.0,
        "eval/episodes": 100,
    }


def full_story() -> Story:
    told = story()
    told.stage = None
    for steps in range(1000, 60_001, 1000):
        told.hear(record(steps, **{"train/lag_mean": 1.5, "fleet/restarts": 2}), steps / 1000)
    told.hear(evaluation(30_000, 410.0), 60.0)
    told.hear(evaluation(60_000, 310.0), 60.0)
    return told


def sizes() -> Iterator[tuple[int, int]]:
    for columns in (*range(1, 50), 66, 67, 80, 100, 200):
        for rows in (1, 2, 3, 5, 8, 10, 14, 15, 20, 24, 60):
            yield columns, rows


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_every_size_is_kept(glyphs: Glyphs) -> None:
    for told in (story(), full_story()):
        for columns, rows in sizes():
            lines = compose(told, 61.0, columns, rows, glyphs)
            assert 1 <= len(lines) <= max(rows - 1, 1)
            assert all(width_of(line) == max(columns - 1, 1) for line in lines), (columns, rows)
            assert glyphs.unicode or text_of(lines).isascii()


def test_what_matters_most_stays_longest() -> None:
    told = full_story()
    facts = ["60k/150k", "return", "steps/s", "eval", "restarts", "actor waits", "┤", "lr", "runs/"]
    shown = []
    for rows in range(1, 24):
        text = text_of(compose(told, 61.0, 40, rows, UNICODE))
        shown.append([fact in text for fact in facts])
    assert all(shown[-1])
    for fewer, more in itertools.pairwise(shown):
        assert all(after or not before for before, after in zip(fewer[:7], more[:7], strict=True))
    assert sum(shown[0]) == 1
    assert shown[0][0]


def test_all_facts_of_a_run() -> None:
    text = text_of(compose(full_story(), 61.0, 100, 30, UNICODE))
    assert re.search(r"best +410\.0 ± 2\.0 at 30k", text)
    assert re.search(r"last +310\.0 ± 2\.0 at 60k", text)
    assert re.search(r"policy lag +1\.5", text)
    assert re.search(r"restarts +2", text)
    assert re.search(r"actor waits +━━─────  25%", text)
    assert "60,000 / 150,000 steps  40%  1:29 left" in text
    assert "running 1:01" in text
    assert "policy loss" not in text, "it was not a number"


def test_what_episodes_told_is_shown_where_there_is_room() -> None:
    long = "how_often_the_agent_has_been_at_the_very_end"
    told = story(**{"metrics.info_keys": f"flag_get,x_max,{long},never"})
    told.stage = None
    means = {"flag_get": 0.25, "x_max": 1402.5, long: 3.0}
    told.hear(record(1000, **{f"rollout/info_{key}_mean": x for key, x in means.items()}), 1.0)
    text = text_of(compose(told, 61.0, 100, 30, UNICODE))
    assert re.search(r"flag get +0\.25", text)
    assert re.search(r"x max +1,40[23]", text)
    assert "never" not in text
    for columns, rows in sizes():
        lines = compose(told, 61.0, columns, rows, UNICODE)
        assert all(width_of(line) == max(columns - 1, 1) for line in lines), (columns, rows)
    low = text_of(compose(told, 61.0, 100, 18, UNICODE))
    assert "return" in low
    assert "how often" not in low


@pytest.mark.parametrize(("columns", "rows"), [(100, 35), (66, 20), (200, 60), (40, 30), (50, 45)])
def test_the_terminal_is_filled(columns: int, rows: int) -> None:
    lines = compose(full_story(), 61.0, columns, rows, UNICODE)
    assert len(lines) == rows - 1
    drawn = [text_of([line]) for line in lines]
    axis = [line for line in drawn if re.search(r"^(│ )? *[\d.k]* [┤│]", line[:10])]
    assert len(axis) > (rows - 1) * 0.5, "most of it by the curve"


def test_what_it_does_besides_training_is_told() -> None:
    told = story()

    def shown(secs: float) -> str:
        return text_of(compose(told, secs, 100, 30, UNICODE))

    assert "starting 0:07" in shown(7.0)
    told.stage = Stage("starting", 2, 4, "processes", brief=True)
    assert shown(7.0).count("starting, 2 of 4 processes") == 2, "at the top and for the curve"
    told.enter(FIRST_BATCH, 8.0)
    assert "collecting the first batch 0:01" in shown(9.0), "training time begins with the session"
    told = story()
    told.stage, told.ahead = Stage("filling replay", 3000, 10_000, "steps", brief=True), (3000, 8.0)
    assert "filling replay, 3,000 of 10,000 steps 0:09" in shown(9.0)
    assert "3,000 / 150,000 steps  2%" in shown(9.0)
    told.stage, told.ahead = None, (4000, 10.0)
    assert "running 0:11" in shown(11.0)
    assert "training, first record at 5,000 steps" in shown(11.0)
    assert re.search(r"mean steps/s +400", shown(11.0))
    assert "4,000 / 150,000 steps  3%" in shown(11.0)
    assert "6:04 left" in shown(11.0), "before the first record"
    told.hear(record(60_000), 60.0)
    assert "running 1:01" in shown(61.0)
    told.ahead = (61_000, 62.0)
    assert "61,000 / 150,000" in shown(62.0), "steps move between records"
    told.stage = Stage("final evaluation", 12, 100, "episodes")
    told.hear(evaluation(60_000, 1.0), 60.0)
    assert "final evaluation, 12 of 100 episodes 1:01" in shown(61.0)
    told.end("finished", steps=60_000, secs=61.0, restarts=0)
    assert "finished 1:01" in shown(61.0)
    assert "60,000 / 150,000" in shown(62.0)


def test_steps_that_were_not_made_are_not_counted_as_done() -> None:
    told = story(time_limit="20")
    told.hear(record(30_000), 10.0)
    assert told.share(10.0) > 0.9, "most of the time is over"
    told.end("finished", steps=30_000, secs=20.5, restarts=0)
    assert "30,000 / 150,000 steps  20%" in text_of(compose(told, 20.0, 100, 30, UNICODE))


def test_time_left_is_by_steps_or_by_the_time_limit() -> None:
    for limit, left, share in ((None, 90.0, 0.4), (70.0, 10.0, 60 / 70), (1e6, 90.0, 0.4)):
        told = story() if limit is None else story(time_limit=str(limit))
        assert told.remaining_secs(0.0) == limit
        told.hear(record(60_000), 0.0)
        assert told.remaining_secs(0.0) == pytest.approx(left)
        assert told.share(0.0) == pytest.approx(share)
        assert told.remaining_secs(1e9) == 0.0


def test_a_learner_that_went_back_takes_the_curve_along() -> None:
    told = full_story()
    told.hear(record(40_000), 70.0)
    assert told.points[-1] == (40_000.0, 400.0)
    assert max(x for x, _ in told.points) == 40_000
    assert [score.steps for score in told.scores] == [30_000]


def test_a_long_curve_is_thinned() -> None:
    told = story()
    for steps in range(1, 20 * MOST_POINTS):
        told.hear(record(steps), 0.0)
    assert len(told.points) <= MOST_POINTS
    xs = [x for x, _ in told.points]
    assert xs == sorted(xs)
    assert xs[-1] == 20 * MOST_POINTS - 1


def test_strange_records_are_survived() -> None:
    told = story()
    for value in (None, math.nan, math.inf, "text", -1e308, 1e308, 1e-320, 5, True):
        told.hear(record(told.steps + 10, **{"rollout/return_mean": value, "train/lr": value}), 0.0)
        told.hear(evaluation(told.steps, 1e308), 0.0)
        for columns in (20, 100):
            assert compose(told, 1.0, columns, 30, UNICODE)


def test_a_rising_line_rises() -> None:
    lines = plot([(0, 0), (100, 10)], [(50, 5)], width=24, height=12, glyphs=ASCII, goal=10)
    rows = [text_of([line]) for line in lines]
    assert rows[0].startswith("10 |")
    assert rows[-2].startswith(" 0 |*")
    assert rows[-1].split() == ["0", "50", "100"]
    columns = [row.find("*") for row in rows[:-1] if "*" in row]
    assert columns == sorted(columns, reverse=True)
    assert "o" in rows[len(rows) // 2 - 1] + rows[len(rows) // 2]
    assert "--" in rows[0], "the goal"


CURVES = {
    "solved": [20.0, 480.0, 500.0, 500.0],
    "pong": [-21.0, -3.0, 20.5, 21.0],
    "close": [1230.1, 1234.9],
    "flat": [7.0, 7.0],
    "below zero": [-0.031, -0.002],
    "wide": [0.0, 1.7e6],
}


@pytest.mark.parametrize("values", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_ticks_are_evenly_spaced_and_true(values: list[float], glyphs: Glyphs) -> None:
    points = [(float(x), y) for x, y in enumerate(values)]
    for height in (4, 5, 6, 8, 11, 14, 19, 26, 40):
        rows = [
            text_of([line]) for line in plot(points, [], width=60, height=height, glyphs=glyphs)
        ]
        assert len(rows) == height
        ticks = {
            row: float(found[1].replace("k", "e3").replace("M", "e6"))
            for row, text in enumerate(rows[:-1])
            if (found := re.match(r" *(-?[\d.]+[kM]?) [┤|]", text))
        }
        assert len(ticks) >= 2
        assert len({b - a for a, b in itertools.pairwise(ticks)}) == 1, "rows between ticks"
        steps = [a - b for a, b in itertools.pairwise(ticks.values())]
        assert steps == pytest.approx([steps[0]] * len(steps))
        assert f"{steps[0]:e}"[0] in "125", "round"
        inside = [tick for tick in ticks.items() if min(values) <= tick[1] <= max(values)]
        for row, value in inside:
            level = [*points, *((float(x), value) for x in range(10, 14))]
            shown = plot(level, [], width=60, height=height, glyphs=glyphs)
            assert text_of([shown[row]])[-2] not in " |┤", "a value at a tick is on its row"


def test_numbers_below_the_curve_stand_at_their_places() -> None:
    xs = [float(x) for x in range(0, 61_440, 512)]
    lines = plot([(x, 1.0) for x in xs], [], width=70, height=8, glyphs=ASCII)
    below = text_of(lines[-1:])
    assert below.split() == ["0", "10k", "20k", "30k", "40k", "50k", "60k"]
    margin = text_of(lines[:1]).index("|") + 1
    for found in re.finditer(r"\d+k", below):
        place = margin + float(found[0].rstrip("k")) * 1000 / xs[-1] * (70 - margin - 1)
        assert abs((found.start() + found.end() - 1) / 2 - place) <= 1.0, found[0]


def test_numbers_are_short() -> None:
    assert [number(x) for x in (0, 312.44, 12_345.6, -0.01234, 1.2e-5, 3.2e9)] == [
        *("0", "312.4", "12,346", "-0.0123", "1.2e-05", "3.2e+09")
    ]
    assert [rounded(x) for x in (0, 950, 61_440, 1.25e6, 3e10)] == [
        "0",
        "950",
        "61.4k",
        "1.25M",
        "30G",
    ]
    assert [clock(x) for x in (-1, 7.9, 760, 11_100, 356_400)] == [
        *("0:00", "0:07", "12:40", "3:05:00", "4d 03:00")
    ]


@pytest.mark.parametrize(
    ("encoding", "environ", "utf8_mode", "expected"),
    [
        ("utf-8", {"LANG": "de_DE.UTF-8"}, False, True),
        ("iso8859-1", {"LANG": "de_DE"}, False, False),
        ("ascii", {"PYTHONIOENCODING": "ascii"}, False, False),
        ("utf-8", {"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True, False),
        ("utf-8", {"LC_ALL": "POSIX"}, True, False),
        ("utf-8", {}, True, True),
        ("utf-8", {"LANG": "C", "PYTHONUTF8": "1"}, True, True),
        ("utf-8", {"LANG": "en_US.UTF-8"}, True, True),
        (None, {}, False, False),
    ],
)
def test_who_gets_more_than_ascii(
    encoding: str | None, environ: dict[str, str], utf8_mode: bool, expected: bool
) -> None:
    assert speaks_unicode(encoding, environ, utf8_mode) is expected
