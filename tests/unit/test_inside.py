"""The network's graph and histograms, read back from TensorBoard's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.runs.metrics import read_metrics

SMALL: dict[str, Any] = {
    "envs": 4,
    "steps": 400,
    "log_every": 100,
    "eval": {"episodes": 0},
    "ppo": {"rollout_steps": 10, "num_epochs": 1, "num_minibatches": 1},
}


def events_of(run: rookery.Run) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path), {"histograms": 0, "graph": 1})
    return events.Reload()


@pytest.mark.slow
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_graph_and_histograms_are_there_on_request(core: str, tmp_path: Path) -> None:
    run = rookery.train(
        "CartPole-v1",
        run=tmp_path / "run",
        policy={"core": core, "core_size": 8},
        metrics={"histograms": True, "graph": True},
        **SMALL,
    )
    events = events_of(run)
    names = events.Tags()["histograms"]
    assert "weights/value_head.weight" in names
    assert "gradients/value_head.weight" in names
    told = events.Histograms("weights/value_head.weight")
    records = read_metrics(run.path / "metrics.jsonl")
    assert [event.step for event in told] == [record["steps"] for record in records]
    assert len(told) == 4
    assert told[0].histogram_value.num == (8 if core == "lstm" else 64)
    assert told[0].histogram_value.max > told[0].histogram_value.min
    assert any("value_head" in node.name for node in events.Graph().node)


def test_without_a_request_there_is_neither(tmp_path: Path) -> None:
    events = events_of(rookery.train("CartPole-v1", run=tmp_path / "run", **SMALL))
    tags = events.Tags()
    assert tags["histograms"] == []
    assert tags["graph"] is False


@pytest.mark.slow
def test_hogwild_shows_shared_weights_and_the_first_workers_gradients(tmp_path: Path) -> None:
    run = rookery.train(
        "CartPole-v1",
        run=tmp_path / "run",
        formation="hogwild",
        engine="local",
        workers=2,
        metrics={"histograms": True},
        **{**SMALL, "steps": 4000},
    )
    events = events_of(run)
    gradients = events.Histograms("gradients/value_head.weight")
    assert gradients[-1].histogram_value.sum_squares > 0
    assert events.Histograms("weights/value_head.weight")[-1].histogram_value.num == 64
