"""The first episode that is shown is typical of the agent, and can be shown again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

os.environ["SDL_VIDEODRIVER"] = "dummy"

from rookery.cli.main import main
from rookery.play import opening
from rookery.play.opening import chosen_opening, typical
from rookery.runs.trained import Scored, find_trained
from rookery.zoo.bundle import read_info
from rookery.zoo.catalog import bundle_names, bundle_path
from tests.play_runs import train_tiny


def scored(returns: list[float], lengths: list[int]) -> Scored:
    return Scored(7, True, None, tuple(returns), tuple(lengths))


def test_the_episode_nearest_to_the_median_is_typical() -> None:
    found = typical(scored([1.0, 90.0, 55.0, 40.0, 60.0], [9, 8, 7, 6, 5]), "return")
    assert (found.seed, found.episode) == (7, 2)
    assert "episode 3 of seed 7, typical of 5 (return 55, median 55)" in found.why
    assert "--seed 7 --first 3 " in found.why
    assert typical(scored([0.0] * 3, [30, 8000, 20000]), "length").episode == 1


def test_among_equal_returns_the_length_decides() -> None:
    assert typical(scored([1.0] * 5, [10, 900, 300, 310, 20]), "return").episode == 2


def test_what_was_not_over_in_time_counts_as_long() -> None:
    assert typical(scored([1.0, 0, 0, 2.0, 0], [9, 0, 0, 8, 0]), "return").episode == 1
    assert typical(scored([1.0, 0, 3.0, 2.0], [9, 0, 7, 8]), "return").episode == 3


def test_what_was_chosen_is_kept() -> None:
    trained = find_trained("zoo:cartpole")
    how = {"deterministic": None, "max_steps": None}
    chosen = chosen_opening(trained, seed=3, first=None, **how)  # type: ignore[arg-type]
    assert (chosen.seed, chosen.episode, chosen.why) == (3, 0, "")
    chosen = chosen_opening(trained, seed=None, first=4, **how)  # type: ignore[arg-type]
    assert (chosen.seed, chosen.episode, chosen.why) == (0, 4, "")


@pytest.mark.parametrize("name", bundle_names())
def test_bundles_begin_with_an_episode_of_their_score(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(opening, "evaluate")  # nothing need be played
    info = read_info(bundle_path(name))
    trained = find_trained(f"zoo:{name}")
    found = chosen_opening(trained, seed=None, first=None, deterministic=None, max_steps=None)
    scores = np.asarray(info["episodes"][f"{info['score']['by']}s"])
    low, high = np.quantile(scores, [0.4, 0.6])
    assert found.seed == info["score"]["seed"]
    assert low <= scores[found.episode] <= high


@pytest.mark.slow
def test_the_first_snake_that_is_shown_does_not_die_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "snake.gif"
    assert main(["record", "zoo:snake", "--out", str(out), "--max-steps", "100"]) == 0
    made = json.loads(out.with_suffix(".json").read_text())
    (episode,) = made["episodes"]
    assert (episode["length"], episode["cut"]) == (100, True)
    assert made["opening"] in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_begins_with_a_typical_episode_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_tiny("CartPole-v1", tmp_path / "run", quiet=True)
    capsys.readouterr()
    words = ["record", str(run), "--stochastic"]
    assert main([*words, "--out", str(tmp_path / "one.gif")]) == 0
    told = capsys.readouterr().err
    assert "typical of 9 (return " in told
    again = told.rpartition("; ")[2].split()[:4]
    assert again[0::2] == ["--seed", "--first"]
    assert main([*words, *again, "--out", str(tmp_path / "two.gif")]) == 0
    assert "typical" not in capsys.readouterr().err
    first, second = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("one", "two"))
    assert first["episodes"] == second["episodes"]
    trained = find_trained(run)
    tried = opening._tried(trained, False, None)
    assert first["episodes"][0]["return"] == sorted(tried.returns)[4]
