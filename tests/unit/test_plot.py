"""``rookery plot`` as a person meets it: real runs, real pictures, one line for an error."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rookery.cli.main import main
from rookery.runs.comparison import read_run
from rookery.runs.curve_picture import Wanted, compose
from rookery.runs.curves import Series, Spread
from rookery.runs.metric_names import human_name, is_named
from rookery.runs.plotting import Curve, Picture, rendered

REPOSITORY = Path(__file__).parents[2]
TINY = [
    *("--steps", "1500", "--envs", "4", "--ppo.rollout_steps", "32", "--ppo.num_epochs", "1"),
    *("--log-every", "125", "--metrics.sinks", "jsonl", "--stop-at", "none", "--quiet"),
    *("--eval.episodes", "3", "--eval.max_steps", "60", "--eval-every", "750"),
]
Plot = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two seeds of two learning rates; do not change it."""
    root = tmp_path_factory.mktemp("runs")
    for lr in ("0.001", "0.01"):
        for seed in ("0", "1"):
            path = root / f"lr{lr}" / f"seed-{seed}"
            flags = ["--lr", lr, "--seed", seed, "--run", str(path)]
            assert main(["train", "cartpole", *TINY, *flags]) == 0
    return root


@pytest.fixture
def plot(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Plot:
    """Runs ``rookery plot`` beside the runs."""
    monkeypatch.chdir(runs)

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["plot", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def picture(path: Path, sized: tuple[int, int, int] = (1152, 650, 1100)) -> np.ndarray[Any, Any]:
    """A picture's pixels, once it is known to be one that shows something; ``sized``: its width,
    its least and its most height."""
    with Image.open(path) as image:
        image.load()
        pixels = np.asarray(image.convert("RGB")).astype(int)
    height, width, _ = pixels.shape
    assert width == sized[0]
    assert sized[1] <= height <= sized[2]
    assert (pixels[[0, -1]] == 255).all(), "a white margin: nothing is cut off"
    return pixels


def share_of(pixels: np.ndarray[Any, Any], colour: str) -> float:
    """Which share of the picture has this colour."""
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return float((np.abs(pixels - wanted).max(axis=2) < 12).mean())


BLUE, ORANGE = "#0072B2", "#D55E00"


@pytest.mark.slow
def test_one_run_is_drawn_into_its_own_directory(plot: Plot, runs: Path) -> None:
    run = runs / "lr0.001" / "seed-0"
    expected = run / "plots" / "return.png"
    assert plot(run) == (0, f"{expected}\n", "")
    pixels = picture(expected)
    assert share_of(pixels, BLUE) > 0.001
    assert share_of(pixels, ORANGE) == 0
    again = expected.read_bytes()
    assert plot(run)[0] == 0, "its own place is written anew"
    assert expected.read_bytes() == again, "the same numbers are the same picture"


def test_two_groups_have_two_colours_and_say_what_differs(plot: Plot, tmp_path: Path) -> None:
    out = tmp_path / "two.png"
    assert plot("lr0.001", "lr0.01", "--out", out) == (0, f"{out}\n", "")
    pixels = picture(out)
    assert share_of(pixels, BLUE) > 0.001
    assert share_of(pixels, ORANGE) > 0.001
    assert plot("lr0.001", "lr0.01", "--out", tmp_path / "two.svg")[0] == 0
    text = (tmp_path / "two.svg").read_text()
    for said in (
        "lr 0.001 (mean of 2 seeds)",
        "lr 0.01 (mean of 2 seeds)",
        "band: lowest to highest seed",
        "evaluation, 95 % interval of its mean",
        "thin: single seeds",
        "steps (thousands)",
        "training return (mean of 100 episodes)",
        "CartPole-v1",
    ):
        assert said in text
    assert str(tmp_path) not in text, "no path is drawn"


def test_the_numbers_behind_the_curve_are_those_of_the_records(runs: Path) -> None:
    composed = compose([runs / "lr0.01"], Wanted(smooth=1))
    (curve,) = composed.picture.curves
    assert (composed.num_runs, composed.keys, composed.window) == (2, ["rollout/return_mean"], 1)
    points = []
    for seed in (0, 1):
        lines = (runs / "lr0.01" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        records = [r for r in map(json.loads, lines) if "rollout/return_mean" in r]
        points.append(([r["steps"] for r in records], [r["rollout/return_mean"] for r in records]))
    assert curve.spread is not None
    assert len(curve.raw) == len(points) == 2
    middle = len(curve.spread.x) // 2
    at = curve.spread.x[middle]
    values = [np.interp(at, steps, returns) for steps, returns in points]
    assert curve.spread.centre[middle] == pytest.approx(sum(values) / 2)
    assert curve.spread.low[middle] == pytest.approx(min(values))
    assert curve.spread.high[middle] == pytest.approx(max(values))
    assert [len(played.x) for played in curve.evaluations] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--x", "wall"], "seconds of training"),
        (["--y", "entropy"], "entropy of the policy (nats)"),
        (["--y", "length"], "training episode length (steps)"),
        (["--y", "eval/return_mean"], "return in evaluation"),
        (["--y", "train/value_loss"], "value loss"),
        (["--y", "learner_wait_share"], "share of time that the learner waits"),
        (["--smooth", "5"], "before smoothing over 5 records"),
        (["--title", "My title"], "My title"),
        (["--labels", "slow"], "slow (mean of 2 seeds)"),
        (["--band", "std"], "band: mean ± standard deviation over seeds"),
        (["--band", "iqr"], "interquartile mean of 2 seeds"),
        (["--no-group"], "seed 1"),
    ],
)
def test_what_is_asked_for_is_drawn(
    flags: list[str], said: str, plot: Plot, tmp_path: Path
) -> None:
    out = tmp_path / "out.svg"
    assert plot("lr0.001", *flags, "--out", out) == (0, f"{out}\n", "")
    assert said in out.read_text()


def test_an_overview_has_a_panel_for_each_of_the_usual_metrics(plot: Plot, runs: Path) -> None:
    run = runs / "lr0.01" / "seed-0"
    expected = run / "plots" / "overview.png"
    assert plot(run, "--y", "overview") == (0, f"{expected}\n", "")
    pixels = picture(expected, (1792, 1000, 1300))
    rows, columns = pixels.shape[0] // 2, pixels.shape[1] // 2
    for down in (slice(None, rows), slice(rows, None)):
        for across in (slice(None, columns), slice(columns, None)):
            assert share_of(pixels[down, across], BLUE) > 0.001
    keys = compose([run], Wanted(y="overview")).keys
    scores = ["rollout/return_mean", "rollout/length_mean"]
    assert keys == [*scores, "train/policy_loss", "train/value_loss"]


def test_several_metrics_are_panels_with_one_legend(plot: Plot, tmp_path: Path) -> None:
    out = tmp_path / "panels.svg"
    words = ("lr0.001", "lr0.01", "--y", "return, entropy,return", "--out", out)
    assert plot(*words) == (0, f"{out}\n", "")
    text = out.read_text()
    for said in ("training return (mean of 100 episodes)", "entropy of the policy (nats)"):
        assert f"<!-- {said} -->" in text
    for once in ("lr 0.01 (mean of 2 seeds)", "band: lowest to highest seed", "CartPole-v1"):
        assert text.count(f"<!-- {once} -->") == 1


def test_panels_have_one_colour_for_a_run_also_where_another_has_nothing(tmp_path: Path) -> None:
    for name, values in (("a", {"train/entropy": 1.0}), ("b", {"train/loss": 2.0})):
        run = tmp_path / name
        run.mkdir()
        (run / "config.yaml").write_text(f"env: {{id: CartPole-v1}}\nalgo: {name}\n")
        lines = [
            json.dumps({"steps": at, "wall_secs": at, "rollout/return_mean": at, **values})
            for at in (1, 2, 3)
        ]
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    composed = compose([tmp_path / "a", tmp_path / "b"], Wanted(y="return,loss,entropy"))
    labels = [[curve.label for curve in panel.curves] for panel in composed.picture.panels]
    assert labels == [labels[0]] * 3
    drawn = [
        [curve.spread is not None for curve in panel.curves] for panel in composed.picture.panels
    ]
    assert drawn == [[True, True], [False, True], [True, False]]
    assert rendered(composed.picture, "png")


def test_the_short_names_of_what_replay_algorithms_tell(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("env: {id: CartPole-v1}\n")
    told = {
        "train/loss": 1.0,
        "window/loss": 2.0,
        "train/value_mean": 3.0,
        "window/value_mean": 4.0,
    }
    line = json.dumps({"steps": 1, "wall_secs": 1.0, "rollout/return_mean": 5.0} | told)
    (run / "metrics.jsonl").write_text(line + "\n")

    def keys(asked: str) -> list[str]:
        return compose([run], Wanted(y=asked)).keys

    assert keys("loss,q") == ["train/loss", "train/value_mean"]
    assert keys("value_mean,window/loss") == ["train/value_mean", "window/loss"]
    assert keys("overview") == ["rollout/return_mean", "train/loss", "train/value_mean"]


def test_pdf(plot: Plot, tmp_path: Path) -> None:
    assert plot("lr0.001", "--out", tmp_path / "a.pdf")[0] == 0
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF-")


def test_length_is_drawn_where_it_is_what_counts(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "lr0.001" / "seed-0", run, symlinks=True)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("score: return", "score: length"))
    assert compose([run]).keys == ["rollout/length_mean"]


def test_a_seed_without_metrics_is_left_out_and_said(
    plot: Plot, runs: Path, tmp_path: Path
) -> None:
    group = tmp_path / "group"
    shutil.copytree(runs / "lr0.001", group, symlinks=True)
    (group / "seed-1" / "metrics.jsonl").unlink()
    code, out, err = plot(group)
    assert (code, out) == (0, f"{group / 'plots' / 'return.png'}\n")
    assert err == f"left out, nothing to draw yet: {group / 'seed-1'}\n"
    (group / "seed-0" / "metrics.jsonl").write_text("")
    code, _, err = plot(group)
    assert code == 2
    assert err.startswith("rookery: ")
    assert "no metrics yet" in err
    assert len(err.splitlines()) == 1


BAD = {
    "": "required: RUN",
    "nothing": "nothing does not exist",
    "lr0.001/seed-0/logs": "is not a run directory",
    "lr0.001/seed-9": "did you mean",
    "lr0.001 lr0.01": "where to? give --out",
    "lr0.001 --y retrun": "did you mean 'return'?",
    "lr0.001 --y return,overveiw": "did you mean 'overview'?",
    "lr0.001 --y nonsense": "(there are: eval/length_mean, eval/length_std, eval/return_max",
    "lr0.001 --out a.gif": "'.gif'; name a file .png or .svg or .pdf",
    "lr0.001 --out a": "no ending",
    "lr0.001 --out lr0.01/seed-0/config.yaml": "'.yaml'",
    "lr0.001 --out no/where/a.png": "there is no directory",
    "lr0.001 --x step": "invalid choice: 'step'",
    "lr0.001 --band rnge": "invalid choice",
    "lr0.001 --smooth 0": "--smooth: '0' is no number of records",
    "lr0.001 --smooth 4": "4 records have no middle; give 5",
    "lr0.001 --smooth much": "give 1 or more, or auto",
    "lr0.001 --labels a,b": "--labels: 2 given for 1 curves",
    "lr0.001 --lable a": "did you mean '--labels'",
    "lr0.001 --group --no-group": "not allowed with",
}


@pytest.mark.parametrize("words", BAD)
def test_what_cannot_be_drawn_is_one_line(words: str, plot: Plot, runs: Path) -> None:
    before = sorted(runs.rglob("*"))
    code, out, err = plot(*words.split())
    assert (code, out) == (2, "")
    assert err.startswith("rookery: ")
    assert len(err.splitlines()) == 1
    assert BAD[words] in err
    assert sorted(runs.rglob("*")) == before


def test_an_existing_file_is_replaced_only_by_force(plot: Plot, tmp_path: Path) -> None:
    out = tmp_path / "mine.png"
    out.write_text("mine")
    code, _, err = plot("lr0.001", "--out", out)
    assert code == 2
    assert "already exists; --force replaces it" in err
    assert out.read_text() == "mine"
    assert plot("lr0.001", "--out", out, "--force")[0] == 0
    picture(out)


def test_damaged_metrics_are_named(plot: Plot, runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "lr0.001" / "seed-0", run, symlinks=True)
    metrics = run / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole + '{"steps": 99')
    assert plot(run)[0] == 0, "a torn last line is that of a run that goes on"
    metrics.write_text("junk\n" + whole)
    code, _, err = plot(run)
    assert code == 2
    assert "line 1, is not JSON" in err


@pytest.mark.slow
def test_without_a_screen_and_with_a_home_that_cannot_be_written(
    runs: Path, tmp_path: Path
) -> None:
    """As root no directory is read-only; a file in place of a home cannot be written either."""
    home = tmp_path / "home"
    home.write_text("")
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    (tmp_path / "tmp").mkdir()
    environment |= {
        "HOME": str(home),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONPATH": str(REPOSITORY),
    }
    done = subprocess.run(
        [sys.executable, "-m", "rookery", "plot", "lr0.001", "--out", str(tmp_path / "a.png")],
        cwd=runs,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    picture(tmp_path / "a.png")


def seed_run(path: Path, seed: int, steps: int, level: float) -> None:
    """A run on disk that learned for ``steps`` steps."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(f"seed: {seed}\nenv: {{id: World-v0}}\n")
    records = [
        {"steps": at, "wall_secs": at / 100, "rollout/return_mean": level + at / 1000}
        for at in range(1000, steps + 1, 1000)
    ]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))


def test_where_a_seed_ends_the_mean_ends_and_the_others_go_on_alone(tmp_path: Path) -> None:
    for seed, steps, level in ((0, 10_000, 0.0), (1, 16_000, 2.0), (2, 10_000, 5.0)):
        seed_run(tmp_path / f"seed-{seed}", seed, steps, level)
    (curve,) = compose([tmp_path], Wanted(smooth=1)).picture.curves
    assert curve.spread is not None
    assert curve.spread.x[-1] == 10_000
    assert set(curve.spread.count.tolist()) == {3}
    (tail,) = curve.tails
    assert tail.x.tolist() == [10_000, 11_000, 12_000, 13_000, 14_000, 15_000, 16_000]
    assert tail.y[0] == 12.0, "it joins its own line, not the mean"


def test_a_short_rest_is_left_out(tmp_path: Path) -> None:
    for seed, steps in ((0, 50_000), (1, 51_000)):
        seed_run(tmp_path / f"seed-{seed}", seed, steps, 0.0)
    (curve,) = compose([tmp_path]).picture.curves
    assert curve.tails == []


def test_the_legend_is_small(runs: Path) -> None:
    picture = compose([runs / "lr0.001"]).picture
    with Image.open(io.BytesIO(rendered(picture, "png"))) as image:
        assert image.height < 1.12 * 4.2 * 160, "less than an eighth of the picture"


def test_a_legend_of_many_curves_is_not_cut_off() -> None:
    x = np.arange(5.0)
    spread = Spread(x, x, x, x, np.full(5, 3))
    labels = [f"lr 1e-0{n} (mean of 3 seeds)" for n in range(7)]
    curves = [Curve(label, [Series(x, x)], spread) for label in labels]
    reading = {"raw_name": "thin: single seeds, before smoothing over 5 records", "band_name": "b"}
    picture = Picture(curves=curves, x_name="steps", y_name="return", **reading)
    with Image.open(io.BytesIO(rendered(picture, "png"))) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert (pixels[:, [0, 1, 2, -3, -2, -1]] == 255).all()


def test_every_metric_of_a_run_has_a_name_for_people(runs: Path) -> None:
    seen = {
        key for run in runs.glob("lr*/seed-*") for record in read_run(run).records for key in record
    }
    written = re.findall(
        r"`((?:rollout|eval|time|train|window|replay|fleet|record)/[a-z_<>]+)`", pages()
    )
    keys = {key for key in seen | set(written) if "/" in key} - {"eval/steps", "eval/episodes"}
    assert len(keys) > 40
    for key in keys:
        assert is_named(key), key
        assert not re.search("[/_]", human_name(key).replace("<key>", "")), human_name(key)
    assert human_name("train/own_number") == "own number", "a user's own"


def pages() -> str:
    """What the documentation says of metrics."""
    found = [REPOSITORY / "docs/metrics.md", *(REPOSITORY / "docs/formations").glob("*.md")]
    return "\n".join(page.read_text() for page in found)


def test_help_is_quick_to_come_by(plot: Plot) -> None:
    code, out, _ = plot("--help")
    assert code == 0
    assert "--smooth" in out
    probe = "import sys, rookery.cli.main as m; m.main(['--help']); print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert "'matplotlib'" not in done.stdout
    assert io.StringIO(done.stdout).readline().startswith("usage: rookery")


def test_an_overview_over_time_is_of_the_whole_system(tmp_path: Path) -> None:
    records = [
        {
            **{"steps": at * 100, "wall_secs": float(at), "rollout/return_mean": 1.0 * at},
            **{
                "rollout/return_max": 2.0 * at,
                "rollout/length_mean": 5.0,
                "train/policy_loss": 0.1,
            },
            **{"time/env_steps_per_s": 50.0, "fleet/workers": 3, "fleet/worker_env_share": 0.5},
            **{"fleet/restarts": 0, "train/staleness_min": 0, "train/staleness_mean": 1.5},
            "train/staleness_max": 4,
        }
        for at in range(1, 6)
    ]
    place = {"steps": 500, "wall_secs": 5.0, "eval/steps": 200, "eval/saved_wall_secs": 2.0}
    score = {"eval/return_mean": 3.0, "eval/return_max": 4.0, "eval/episodes": 2}
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 0\nenv: {id: Some-v0}\n")
    lines = [json.dumps(record) for record in [*records, place | score]]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    composed = compose([run], Wanted(x="wall", y="overview"))
    assert composed.keys == [
        *("rollout/return_mean", "rollout/return_max", "train/policy_loss"),
        *("time/env_steps_per_s", "fleet/workers"),
        *("train/staleness_min", "train/staleness_mean", "train/staleness_max"),
    ]
    assert composed.stem == "overview-wall"
    for panel, played in zip(composed.picture.panels[:2], (3.0, 4.0), strict=True):
        (curve,) = panel.curves
        (marks,) = curve.evaluations
        assert (marks.x.tolist(), marks.mean.tolist()) == ([2.0], [played])
    over_steps = compose([run], Wanted(y="overview"))
    assert over_steps.keys == ["rollout/return_mean", "rollout/length_mean", "train/policy_loss"]
    assert main(["plot", str(run), "--x", "wall", "--y", "overview"]) == 0
    assert (run / "plots" / "overview-wall.png").stat().st_size > 10_000
