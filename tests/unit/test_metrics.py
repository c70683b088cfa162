from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rookery
from rookery.core.errors import UserError
from rookery.runs.atomic import WriteError
from rookery.runs.directory import RunDirectory
from rookery.runs.metrics import (
    EpisodeWindow,
    FanOut,
    JsonlSink,
    MemorySink,
    MetricSink,
    TensorBoardSink,
    cut,
    load_sink,
    read_metrics,
)


def record(steps: int, **values: Any) -> dict[str, Any]:
    return {"steps": steps, "updates": steps // 10, "wall_secs": 0.5, **values}


# ---- jsonl


def test_jsonl_has_one_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write(record(10, **{"rollout/return_mean": 21.5}))
    assert len(path.read_text().splitlines()) == 1  # there at once, without flush
    sink.write(record(20))
    sink.flush()
    sink.close()
    records = read_metrics(path)
    assert [entry["steps"] for entry in records] == [10, 20]
    assert records[0]["rollout/return_mean"] == 21.5


def test_jsonl_converts_scalars_and_non_finite_numbers(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.write(
        {
            "steps": np.int64(3),
            "f32": np.float32(0.5),
            "zero_d": np.array(2),
            "one": np.array([7.0]),
            "tensor": torch.tensor(1.5, requires_grad=True),
            "flag": np.bool_(True),
            "text": "hello",
            "none": None,
            "nan": math.nan,
            "inf": -math.inf,
            "np_nan": np.float32("nan"),
            "torch_inf": torch.tensor(math.inf),
        }
    )
    line = (tmp_path / "m.jsonl").read_text()

    def strict(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(line, parse_constant=strict) == {
        "steps": 3,
        "f32": 0.5,
        "zero_d": 2,
        "one": 7.0,
        "tensor": 1.5,
        "flag": True,
        "text": "hello",
        "none": None,
        "nan": None,
        "inf": None,
        "np_nan": None,
        "torch_inf": None,
    }


@pytest.mark.parametrize("value", [np.ones(3), torch.ones(2, 2), [1.0], {"a": 1}])
def test_jsonl_refuses_what_is_not_a_number(tmp_path: Path, value: Any) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    with pytest.raises(UserError, match=r"metric 'loss' is not one number but a .*its mean"):
        sink.write({"steps": 1, "loss": value})
    assert read_metrics(tmp_path / "m.jsonl") == []


def test_jsonl_appends_and_drops_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with open(path, "w") as file:
        file.write('{"steps": 1}\n{"steps": 2, "los')
    assert read_metrics(path) == [{"steps": 1}]
    sink = JsonlSink(path)
    sink.write({"steps": 3})
    assert path.read_text() == '{"steps": 1}\n{"steps": 3}\n'


@pytest.mark.parametrize("tail", ["x" * 200_000, "x", ""])
@pytest.mark.parametrize("head", ["", '{"steps": 1}\n'])
def test_torn_lines_of_any_length(tmp_path: Path, head: str, tail: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(head + tail)
    assert JsonlSink(path).position() == len(head)
    assert path.read_text() == head


def test_a_bad_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"steps": 1}\nnonsense\n{"steps": 2}\n')
    with pytest.raises(UserError, match=r"line 2, is not JSON"):
        read_metrics(path)


def test_no_metrics_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read metrics .*No such file"):
        read_metrics(tmp_path / "none.jsonl")


def test_resume_cuts_to_the_position_of_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    sink.write({"steps": 1})
    position = sink.position()
    sink.write({"steps": 2})
    sink.close()
    cut(path, position)
    assert read_metrics(path) == [{"steps": 1}]
    again = JsonlSink(path)
    assert again.position() == position
    again.write({"steps": 2})
    assert [entry["steps"] for entry in read_metrics(path)] == [1, 2]


def test_cut_never_makes_a_file_longer(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    cut(path, 100)
    assert not path.exists()
    path.write_text("{}\n")
    cut(path, 100)
    assert path.read_text() == "{}\n"


WRITER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from rookery.runs.metrics import JsonlSink
    sink = JsonlSink(Path(sys.argv[1]))
    for steps in range(10**9):
        sink.write({"steps": steps, "text": "x" * 500})
        print(steps, flush=True)
""")


def test_kill_9_loses_no_record_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    for _ in range(200):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    rest = writer.communicate()[0].split("\n")
    acknowledged = int(rest[-2]) if len(rest) > 1 else 199
    records = read_metrics(path)
    assert [entry["steps"] for entry in records] == list(range(len(records)))
    assert acknowledged + 1 <= len(records) <= acknowledged + 2


def test_full_disk_is_one_line(tmp_path: Path) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("needs /dev/full")
    os.symlink("/dev/full", tmp_path / "m.jsonl")
    sink = JsonlSink(tmp_path / "m.jsonl")
    with pytest.raises(WriteError, match=r"m\.jsonl: the disk is full"):
        sink.write({"steps": 1})
    sink.close()


def test_a_record_written_in_part_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    sink.write({"steps": 1})
    real = os.write
    calls: list[int] = []

    def write(descriptor: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:5])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(WriteError, match="disk is full"):
        sink.write({"steps": 2})
    monkeypatch.undo()
    sink.write({"steps": 3})
    assert [entry["steps"] for entry in read_metrics(path)] == [1, 3]


# ---- tensorboard


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory), purge_orphaned_data=True)
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_our_scalars(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path / "tb")
    sink.write(record(10, loss=np.float32(0.5), text="no", nothing=None))
    sink.write(record(20, loss=torch.tensor(0.25), bad=math.nan))
    found = scalars(tmp_path / "tb")  # readable at once, before close
    assert found["loss"] == [(10, 0.5), (20, 0.25)]
    assert math.isnan(found["bad"][0][1])
    assert not {"steps", "updates", "wall_secs", "text", "nothing"} & found.keys()
    sink.flush()
    sink.close()


def test_tensorboard_has_an_evaluation_where_its_checkpoint_was_saved(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink, begun = TensorBoardSink(tmp_path), time.time()
    sink.write(record(100, loss=1.0) | {"wall_secs": 60.0})
    place = {"eval/steps": 40, "eval/saved_wall_secs": 20.0, "eval/return_max": 7.0}
    sink.write(record(100) | {"wall_secs": 60.0} | place)
    sink.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (score,), (loss,) = events.Scalars("eval/return_max"), events.Scalars("loss")
    assert (score.step, loss.step) == (40, 100)
    assert loss.wall_time - score.wall_time == pytest.approx(40.0, abs=1.0)
    assert loss.wall_time == pytest.approx(begun, abs=5.0)
    assert "eval/saved_wall_secs" not in events.Tags()["scalars"]


def test_tensorboard_has_a_page_of_what_a_run_is_judged_by(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    run = RunDirectory.create(tmp_path / "run", name="run")
    run.write_config("seed: 3\n")
    load_sink("tensorboard", run).close()
    events = EventAccumulator(str(run.tensorboard_dir))
    events.Reload()
    (told,) = events.Tensors(metadata.CONFIG_SUMMARY_TAG)
    layout = layout_pb2.Layout.FromString(told.tensor_proto.string_val[0])
    (category,) = layout.category
    patterns = {chart.title: list(chart.multiline.tag) for chart in category.chart}
    shown = {
        "score": [
            "rollout/return_mean",
            "rollout/return_max",
            "eval/return_mean",
            "eval/return_max",
        ],
        "losses": ["train/loss", "train/policy_loss", "train/value_loss"],
        "data points a second": ["time/env_steps_per_s"],
        "active workers": ["fleet/actors", "fleet/workers"],
        "staleness (updates)": ["train/staleness_min", "train/staleness_max", "train/lag_mean"],
    }
    assert patterns.keys() == shown.keys()
    for title, names in shown.items():
        for name in names:
            assert any(re.search(pattern, name) for pattern in patterns[title]), name
        assert not any(re.search(pattern, "train/lr") for pattern in patterns[title])


def test_tensorboard_forgets_what_a_resumed_run_repeats(tmp_path: Path) -> None:
    first = TensorBoardSink(tmp_path)
    for steps in (10, 20, 30, 40):
        first.write(record(steps, loss=1.0))
    first.close()
    second = TensorBoardSink(tmp_path, purge_step=21)  # from the checkpoint at 20
    second.write(record(30, loss=2.0))
    second.close()
    assert scalars(tmp_path)["loss"] == [(10, 1.0), (20, 1.0), (30, 2.0)]


def test_tensorboard_shows_the_settings(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = RunDirectory.create(tmp_path / "run", name="run")
    run.write_config("seed: 3\nname: a\n")
    load_sink("tensorboard", run).close()
    load_sink("tensorboard", run, purge_step=11).close()
    events = EventAccumulator(str(run.tensorboard_dir))
    events.Reload()
    (text,) = events.Tensors("config")
    assert text.tensor_proto.string_val[0] == b"    seed: 3\n    name: a"


@pytest.mark.slow
def test_what_tensorboard_shows_of_a_run(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from tensorboard.plugins.hparams.metadata import (
        SESSION_START_INFO_TAG,
        parse_session_start_info_plugin_data,
    )

    small: dict[str, Any] = {
        "envs": 4,
        "log_every": 100,
        "eval": {"episodes": 2, "max_steps": 20},
        "ppo": {"rollout_steps": 10, "num_epochs": 1, "num_minibatches": 1},
        "quiet": True,
    }
    rookery.train("CartPole-v1", run=tmp_path / "first", steps=400, **small)
    rookery.resume(tmp_path / "first", steps=800, quiet=True)
    rookery.train("CartPole-v1", run=tmp_path / "group/seed-1", steps=400, lr=1e-4, **small)
    found = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    found.Reload()
    assert set(found.Runs()) == {"first", "group/seed-1"}, "runs are called by their names"
    tags = found.Runs()["first"]
    assert {"rollout/return_mean", "eval/return_mean", "train/lr"} <= set(tags["scalars"])
    assert not {"steps", "updates", "wall_secs", "eval/steps"} & set(tags["scalars"])
    (text,) = found.Tensors("first", "config")
    assert "    num_envs: 4" in text.tensor_proto.string_val[0].decode()
    rates = []
    for run in ("first", "group/seed-1"):
        metadata = found.SummaryMetadata(run, SESSION_START_INFO_TAG)
        info = parse_session_start_info_plugin_data(metadata.plugin_data.content)
        assert info.hparams["env.id"].string_value == "CartPole-v1"
        assert info.hparams["ppo.rollout_steps"].number_value == 10
        assert info.group_name == str(tmp_path / run)
        rates.append(info.hparams["optimizer.lr"].number_value)
    assert rates[1] == 1e-4 != rates[0]


def test_tensorboard_import_is_lazy_and_without_tensorflow(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        sys.modules["tensorflow"] = None      # any attempt to import it would raise
        import rookery.runs.metrics as metrics
        assert "tensorboard" not in sys.modules and "torch" not in sys.modules
        metrics.TensorBoardSink(Path(sys.argv[1])).write({"steps": 1, "loss": 1.0})
        assert "torch" not in sys.modules
        print(sys.modules["tensorflow"])
    """)
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "None\n", done.stderr


def test_tensorboard_in_an_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot write"):
        TensorBoardSink(tmp_path / "file")


# ---- several, and by name


def test_fan_out_reaches_every_sink_and_closes_all() -> None:
    class Broken(MemorySink):
        def close(self) -> None:
            raise RuntimeError("broken")

    class Counted(MemorySink):
        closed = flushed = 0

        def flush(self) -> None:
            self.flushed += 1

        def close(self) -> None:
            self.closed += 1

    sinks = [Counted(), Broken(), Counted()]
    fan = FanOut(sinks)
    fan.write({"steps": 1})
    fan.flush()
    with pytest.raises(RuntimeError, match="broken"):
        fan.close()
    for sink in sinks:
        assert sink.records == [{"steps": 1}]
        if isinstance(sink, Counted):
            assert (sink.flushed, sink.closed) == (1, 1)


def test_memory_sink_keeps_copies() -> None:
    sink = MemorySink()
    entry = {"steps": 1}
    sink.write(entry)
    entry["steps"] = 2
    assert sink.records == [{"steps": 1}]


def test_every_sink_fits_the_protocol(tmp_path: Path) -> None:
    for sink in (MemorySink(), FanOut([]), JsonlSink(tmp_path / "a"), TensorBoardSink(tmp_path)):
        assert isinstance(sink, MetricSink)
        sink.close()


def test_load_sink_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory.create(tmp_path / "run", name="x")
    FanOut([load_sink(name, run) for name in ("jsonl", "tensorboard")]).write(record(10, loss=1.0))
    assert read_metrics(run.metrics_path)[0]["loss"] == 1.0
    assert scalars(run.tensorboard_dir)["loss"] == [(10, 1.0)]
    (tmp_path / "my_sinks.py").write_text(
        "from rookery.runs.metrics import MemorySink\n"
        "class Mine(MemorySink):\n"
        "    def __init__(self, run):\n"
        "        super().__init__()\n"
        "        self.run = run\n"
        "class NotASink:\n"
        "    def __init__(self, run): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sink = load_sink("my_sinks:Mine", run)
    assert getattr(sink, "run") is run  # noqa: B009  not of the protocol
    with pytest.raises(UserError, match=r"has no Mime; did you mean 'Mine'\?"):
        load_sink("my_sinks:Mime", run)
    with pytest.raises(UserError, match="needs the methods write, flush and close"):
        load_sink("my_sinks:NotASink", run)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("jsonll", r"unknown metric sink 'jsonll'; did you mean 'jsonl'\?"),
        ("tensorbord", r"did you mean 'tensorboard'\?"),
        ("prometheus", "use jsonl, tensorboard, wandb, mlflow or module:Class"),
        ("no_such_module_at_all:X", "cannot import the module of metric sink"),
        (":X", "unknown metric sink"),
        ("json:", "unknown metric sink"),
    ],
)
def test_unknown_sinks(tmp_path: Path, spec: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        load_sink(spec, RunDirectory(tmp_path))
    assert "\n" not in str(error.value)


# ---- episodes


def test_no_episode_yet() -> None:
    assert EpisodeWindow().summary() == {"rollout/episodes": 0}


def test_episode_summary() -> None:
    window = EpisodeWindow(size=3)
    window.add([1.0], [10])
    window.add(np.array([2.0, 6.0], np.float32), np.array([20, 30]), {"won": [math.nan, 1.0]})
    window.add(torch.tensor([7.0]).numpy(), [40], {"won": [0.0]})
    assert window.summary() == {
        "rollout/episodes": 4,
        "rollout/return_mean": 5.0,
        "rollout/return_max": 7.0,
        "rollout/return_min": 2.0,
        "rollout/length_mean": 30.0,
        "rollout/info_won_mean": 0.5,
    }
    window.add([], [])
    assert window.summary()["rollout/episodes"] == 4


def test_updates_are_averaged_over_the_episodes_that_they_were_made_in() -> None:
    window = EpisodeWindow(size=2)
    window.add([0.0], [5])  # before the first update
    assert not any(key.startswith("window/") for key in window.summary())
    for loss in (1.0, 3.0):
        window.add_update({"train/loss": loss, "train/value_mean": 10 * loss, "train/lr": 0.1})
    window.add([1.0, 2.0], [5, 5])  # both came with the same update
    window.add_update({"train/loss": 8.0})
    means = {key: value for key, value in window.summary().items() if key.startswith("window/")}
    assert means == {"window/loss": 2.0, "window/value_mean": 20.0}, (
        "8 is of an episode that goes on"
    )
    window.add([3.0], [5])
    assert window.summary()["window/loss"] == 8.0
    assert "window/value_mean" not in window.summary()


def test_a_window_of_before_there_were_means_of_updates_is_read() -> None:
    window = EpisodeWindow()
    window.load_state_dict({"total": 1, "episodes": [[1.0, 2, {}]]})
    assert window.total == 1


def test_infinite_returns_do_not_stop_a_run() -> None:
    window = EpisodeWindow()
    window.add([math.inf, -math.inf, 1e308, 1e308], [1, 1, 1, 1])
    assert not math.isfinite(window.summary()["rollout/return_mean"])


def test_episodes_must_match() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        EpisodeWindow().add([1.0, 2.0], [1])


episodes = st.lists(
    st.tuples(
        st.floats(allow_nan=False, allow_infinity=False, width=32),
        st.integers(1, 10**6),
        st.floats(allow_infinity=False),
    ),
    max_size=8,
)


@pytest.mark.slow
@settings(deadline=None)
@given(before=episodes, after=episodes)
def test_a_resumed_window_goes_on_exactly(before: Any, after: Any) -> None:
    def extend(window: EpisodeWindow, rows: Any) -> None:
        window.add_update({"train/loss": float(len(rows)) / 3})
        window.add([r[0] for r in rows], [r[1] for r in rows], {"x": [r[2] for r in rows]})

    one, other = EpisodeWindow(5), EpisodeWindow(5)
    extend(one, before)
    other.add([9.0], [9])
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    extend(one, after)
    extend(other, after)
    assert one.state_dict() == other.state_dict()
    assert one.summary() == other.summary()
