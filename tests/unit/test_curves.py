"""The numbers of learning curves against values worked out by hand, and what runs are called."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rookery.core.interval import half_width
from rookery.runs import curves
from rookery.runs.comparison import RunRecords, grouped, seed_labels, short_labels
from rookery.runs.curves import Series, across, auto_window, evaluations, series, smoothed

RETURN = "rollout/return_mean"


def line(*points: tuple[float, float]) -> Series:
    x, y = zip(*points, strict=True)
    return Series(np.array(x, float), np.array(y, float))


# ---- reading -----------------------------------------------------------------------------------


def test_a_series_has_what_can_be_drawn_and_nothing_else() -> None:
    records: list[dict[str, Any]] = [
        {"steps": 10, "wall_secs": 1.0},
        {"steps": 20, "wall_secs": 2.0, RETURN: 5},
        {"steps": 30, "wall_secs": 3.0, RETURN: None},
        {"steps": 30, "wall_secs": 3.5, "eval/steps": 30, "eval/return_mean": 9.0},
        {"steps": 40, "wall_secs": 4.0, RETURN: "text"},
        {"steps": 50, "wall_secs": 5.0, RETURN: True},
        {"steps": 60, "wall_secs": 6.0, RETURN: 7.5},
    ]
    found = series(records, "steps", RETURN)
    assert found.x.tolist() == [20, 60]
    assert found.y.tolist() == [5, 7.5]
    assert series(records, "wall", RETURN).x.tolist() == [2.0, 6.0]
    assert curves.metric_keys(records) == ["eval/return_mean", RETURN]
    assert len(series(records, "steps", "train/none")) == 0


def test_steps_that_were_made_again_replace_the_first_ones() -> None:
    records = [{"steps": s, RETURN: v} for s, v in [(10, 1), (20, 2), (30, 3), (20, 7), (40, 8)]]
    found = series(records, "steps", RETURN)
    assert found.x.tolist() == [10, 20, 40]
    assert found.y.tolist() == [1, 7, 8]


@pytest.mark.parametrize(
    ("num", "factor"), [(2, 12.706), (31, 2.042), (32, 2.040), (61, 2.000), (1001, 1.962)]
)
def test_the_interval_of_a_mean_is_that_of_student(num: int, factor: float) -> None:
    assert half_width(3.0, num) == pytest.approx(factor * 3.0 / num**0.5, rel=1e-3)
    assert half_width(3.0, 1) is None


def test_an_evaluation_lies_at_its_checkpoint_with_its_interval() -> None:
    records: list[dict[str, Any]] = [
        {
            "steps": 25,
            "wall_secs": 3.0,
            "eval/steps": 20,
            "eval/return_mean": 50.0,
            "eval/return_std": 10.0,
            "eval/length_mean": 8.0,
            "eval/episodes": 4,
        },
        {"steps": 30, "wall_secs": 4.0, RETURN: 1.0},
    ]
    played = evaluations(records, "steps", "eval/return_mean")
    assert played.x.tolist() == [20]
    assert played.mean.tolist() == [50]
    assert played.half.tolist() == [pytest.approx(3.182 * 10 / 2)]
    assert evaluations(records, "wall", "eval/return_mean").x.tolist() == [3.0]
    assert math.isnan(evaluations(records, "steps", "eval/length_mean").half[0])


# ---- smoothing ---------------------------------------------------------------------------------


def test_smoothing_is_a_mean_around_each_point_that_shrinks_at_the_ends() -> None:
    raw = line((0, 0), (1, 3), (2, 6), (3, 0), (4, 9), (5, 12), (6, 3))
    assert smoothed(raw, 3).y.tolist() == [0, 3, 3, 5, 7, 8, 3]
    assert smoothed(raw, 5).y.tolist() == pytest.approx([0, 3, 18 / 5, 6, 6, 8, 3])
    assert smoothed(raw, 4).y.tolist() == smoothed(raw, 3).y.tolist()
    assert smoothed(raw, 1).y.tolist() == raw.y.tolist()
    assert smoothed(raw, 999).y.tolist() == pytest.approx([0, 3, 18 / 5, 33 / 7, 6, 8, 3])


def test_smoothing_leaves_a_straight_line_straight() -> None:
    straight = Series(np.arange(50.0), 3 * np.arange(50.0) - 7)
    np.testing.assert_allclose(smoothed(straight, 11).y, straight.y)


@pytest.mark.parametrize(
    ("num", "window"), [(0, 1), (1, 1), (49, 1), (50, 3), (100, 5), (1000, 41)]
)
def test_auto_smooths_long_runs_only(num: int, window: int) -> None:
    short = Series(np.arange(2.0), np.arange(2.0))
    assert auto_window([short, Series(np.arange(float(num)), np.zeros(num))]) == window


# ---- several seeds -----------------------------------------------------------------------------


def test_seeds_are_joined_at_every_point_of_each() -> None:
    spread = across([line((0, 0), (10, 100)), line((0, 20), (5, 20), (10, 40))])
    assert spread.x.tolist() == [0, 5, 10]
    assert spread.centre.tolist() == [10, 35, 70]
    assert spread.low.tolist() == [0, 20, 40]
    assert spread.high.tolist() == [20, 50, 100]
    assert spread.count.tolist() == [2, 2, 2]


def test_a_seed_is_not_continued_beyond_its_end() -> None:
    spread = across([line((0, 0), (10, 10)), line((2, 2), (30, 30)), line((0, 4), (20, 4))])
    assert spread.x.tolist() == [2, 10, 20, 30], "from where all have begun"
    assert spread.count.tolist() == [3, 3, 2, 1]
    assert spread.centre.tolist() == pytest.approx([8 / 3, 24 / 3, 12, 30])
    assert spread.low[:3].tolist() == [2, 4, 4]
    assert spread.high[:3].tolist() == [4, 10, 20]
    assert np.isnan([spread.low[3], spread.high[3]]).all(), "one seed has no band"


def test_deviation_and_quartiles() -> None:
    flat = [line((0, value), (1, value)) for value in (1.0, 2.0, 3.0, 4.0, 90.0)]
    by_std = across(flat, "std")
    assert by_std.centre.tolist() == [20, 20]
    deviation = math.sqrt((19**2 + 18**2 + 17**2 + 16**2 + 70**2) / 4)
    assert by_std.high.tolist() == pytest.approx([20 + deviation] * 2)
    by_quartiles = across(flat, "iqr")
    assert by_quartiles.centre.tolist() == [3, 3], "without the lowest and the highest"
    assert by_quartiles.low.tolist() == [2, 2]
    assert by_quartiles.high.tolist() == [4, 4]


def test_one_run_is_its_own_curve() -> None:
    spread = across([line((1, 5), (2, 6))])
    assert spread.centre.tolist() == [5, 6]
    assert np.isnan(spread.low).all()


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    x = np.arange(5000.0)
    spread = across([Series(x, x), Series(x + 0.5, x)])
    assert len(spread.x) == curves.MAX_POINTS
    assert (spread.x[0], spread.x[-1]) == (0.5, 4999.5)


def test_runs_with_a_gap_between_them() -> None:
    spread = across([line((0, 1), (10, 1)), line((20, 3), (30, 3))])
    assert spread.x.tolist() == [20, 30]
    assert spread.centre.tolist() == [3, 3]


# ---- groups and names --------------------------------------------------------------------------


def run(directory: str = "a", /, **settings: Any) -> RunRecords:
    given = {"recipe": "cartpole", "env.id": "CartPole-v1", "seed": 0, "optimizer.lr": 0.001}
    return RunRecords(
        Path("runs") / directory, given | {k.replace("__", "."): v for k, v in settings.items()}
    )


def test_runs_that_differ_only_in_their_seed_are_one_group() -> None:
    runs = [run(seed=0), run(seed=1, total_steps=5), run(seed=2, checkpoint__keep=9, name="x")]
    assert grouped(runs) == [runs]
    other = run(seed=1, optimizer__lr=0.01)
    assert grouped([runs[0], other, runs[1]]) == [[runs[0], runs[1]], [other]]


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([run()], ["cartpole"]),
        ([run(name="mine")], ["mine"]),
        ([run(name="a"), run(name="b", optimizer__lr=1.0)], ["a", "b"]),
        ([run(name="a"), run(name="a", optimizer__lr=1.0)], ["lr 0.001", "lr 1"]),
        ([run(optimizer__lr=1e-3), run(optimizer__lr=1e-4)], ["lr 0.001", "lr 0.0001"]),
        (
            [run(), run(recipe="snake", env__id="rookery/Snake-v0", optimizer__lr=1.0)],
            ["cartpole", "snake"],
        ),
        ([run(algo="ppo"), run(algo="a2c")], ["ppo", "a2c"]),
        (
            [run(optimizer__lr={"start": 0.002, "end": 0.0, "until_steps": 9}), run()],
            ["lr 0.002 to 0", "lr 0.001"],
        ),
        (
            [run(policy__hidden=[64, 64], ppo__gamma=0.9), run(policy__hidden=[8], ppo__gamma=1.0)],
            ["hidden 64x64, gamma 0.9", "hidden 8, gamma 1"],
        ),
        ([run(env__kwargs="x" * 99), run()], ["kwargs " + "x" * 23 + "…", "kwargs none"]),
    ],
)
def test_labels_name_what_differs(runs: list[RunRecords], labels: list[str]) -> None:
    assert short_labels(grouped(runs)) == labels


def test_many_differences_are_cut_to_what_tells_apart() -> None:
    runs = [run(a__w=i, b__x=i, c__y=i, d__z=0 if i else 9) for i in range(3)]
    assert short_labels(grouped(runs)) == ["w 0", "w 1", "w 2"]


def test_runs_drawn_apart_say_their_seed_and_never_a_path() -> None:
    assert seed_labels([run(seed=3), run(seed=4)]) == ["seed 3", "seed 4"]
    mixed = [run(algo="ppo", seed=0), run(algo="a2c", seed=0), run(algo="ppo", seed=1)]
    assert seed_labels(mixed) == ["ppo, seed 0", "a2c, seed 0", "ppo, seed 1"]
    twins = [run("cartpole-20260101-101010-aaaa"), run("cartpole-20260101-101010-bbbb")]
    assert seed_labels(twins) == [
        "seed 0 (…le-20260101-101010-aaaa)",
        "seed 0 (…le-20260101-101010-bbbb)",
    ]


def test_over_time_an_evaluation_lies_where_its_checkpoint_was_saved() -> None:
    records: list[dict[str, Any]] = [
        {"steps": 30, "wall_secs": 4.0, RETURN: 1.0, "replay/steps": 7, "replay/ratio": 2.0},
        {
            **{"steps": 50, "wall_secs": 9.0, "eval/steps": 20, "eval/saved_wall_secs": 2.5},
            **{"eval/return_mean": 50.0, "eval/return_max": 60.0},
        },
        {"steps": 60, "wall_secs": 9.5, "record/steps": 20, "record/saved_wall_secs": 2.5}
        | {"record/return_mean": 51.0},
    ]
    for key in ("eval/return_mean", "eval/return_max", "record/return_mean"):
        assert series(records, "wall", key).x.tolist() == [2.5]
        assert series(records, "steps", key).x.tolist() == [20]
    assert series(records, "steps", "replay/ratio").x.tolist() == [30]
    assert "eval/saved_wall_secs" not in curves.metric_keys(records)
