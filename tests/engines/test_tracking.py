"""Real runs told to the real W&B and MLflow packages, offline, and read back."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from rookery.cli.main import main
from rookery.runs.courier_process import Memo, Telling, Tracker
from rookery.runs.directory import RunDirectory
from rookery.runs.metrics import load_sink, read_metrics
from tests.faults.processes import members, start, until
from tests.forks import forked

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
QUIET = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_TRACKING_URI": "",
}
TINY = ["CartPole-v1", "--envs", "4", "--log-every", "256", "--eval.episodes", "2"]
TINY += ["--policy.hidden", "8", "--ppo.rollout_steps", "32"]


def rookery(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    process = forked(
        *words,
        cwd=ROOT,
        env=os.environ | QUIET | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def left_behind(run: Path) -> list[str]:
    """Processes, of ours or of a service, that have to do with ``run``."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            where = (entry / "environ").read_bytes().decode(errors="replace")
        except (OSError, ProcessLookupError):
            continue
        if title and (run.name in title or f"TRACKED_RUN={run.name}\0" in where):
            found.append(title)
    return found


# ---- W&B


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a ``.wandb`` file: blocks of 32 KiB, chunks with a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, position, whole = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        whole += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or the last of several
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def wandb_files(run: Path) -> list[Path]:
    return sorted(run.glob("wandb/offline-run-*/run-*.wandb"))


def history(path: Path) -> dict[int, dict[str, Any]]:
    return {
        record.history.step.num: {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in wandb_records(path)
        if record.WhichOneof("record_type") == "history"
    }


@pytest.mark.slow
def test_wandb_has_settings_and_history_and_goes_on_in_the_same_run(tmp_path: Path) -> None:
    run = tmp_path / "tracked-by-wandb"
    env = {"TRACKED_RUN": run.name}
    flags = ["--steps", "1024", "--metrics.sinks", "jsonl,wandb", "--tags", "red,blue"]
    done = rookery("train", *TINY, *flags, "--run", str(run), env=env)
    assert done.returncode == 0, done.stderr
    assert "metric sink" not in done.stderr
    until(lambda: not left_behind(run), "W&B's processes end", 20)
    (path,) = wandb_files(run)
    (head,) = [r.run for r in wandb_records(path) if r.WhichOneof("record_type") == "run"]
    assert (head.display_name, head.project, head.run_group) == (run.name, "rookery", "CartPole-v1")
    assert set(head.tags) == {"red", "blue"}
    settings = {update.key: json.loads(update.value_json) for update in head.config.update}
    assert settings["env"]["id"] == "CartPole-v1"
    assert settings["total_steps"] == 1024
    told = history(path)
    records = read_metrics(run / "metrics.jsonl")
    assert sorted(told) == sorted({record["steps"] for record in records})
    for record in records:
        if record["steps"] in told:
            for key in ("rollout/return_mean", "eval/return_mean", "updates"):
                if key in record:
                    assert told[record["steps"]][key] == pytest.approx(record[key])

    done = rookery("resume", str(run), "--steps", "2048", env=env)
    assert done.returncode == 0, done.stderr
    again = wandb_files(run)
    assert len(again) == 2
    ids = {r.run.run_id for p in again for r in wandb_records(p) if r.HasField("run")}
    assert ids == {json.loads((run / "wandb.json").read_text())["id"]}
    assert min(history(again[-1])) > 1024
    assert max(history(again[-1])) >= 2048


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", pytest.param("local", marks=pytest.mark.long)])
def test_wandb_leaves_no_process_after_ctrl_c(tmp_path: Path, engine: str) -> None:
    run = tmp_path / f"tracked-until-ctrl-c-{engine}"
    flags = ["--steps", "100000000", "--metrics.sinks", "jsonl,wandb", "--engine", engine]
    process = start(run, *TINY, *flags, env=QUIET | {"TRACKED_RUN": run.name})
    until(lambda: wandb_files(run) and "wandb-0" in members(run), "W&B has begun")
    assert any("wandb-core" in title for title in left_behind(run))  # the gate sees them
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    until(lambda: not left_behind(run), "all processes end", 20)
    assert history(wandb_files(run)[0])


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pytest.param("inline", marks=pytest.mark.long), "local"])
def test_nothing_stays_behind_a_killed_driver(tmp_path: Path, engine: str) -> None:
    run = tmp_path / f"tracked-and-killed-{engine}"
    flags = ["--steps", "100000000", "--metrics.sinks", "jsonl,wandb,mlflow", "--engine", engine]
    process = start(run, *TINY, *flags, env=QUIET | {"TRACKED_RUN": run.name})
    until(lambda: wandb_files(run) and (run / "mlflow.json").exists(), "both have begun")
    process.kill()
    process.communicate(timeout=60)
    until(lambda: not left_behind(run), "all processes end", 45)
    assert mlflow_run(run).info.status == "KILLED"


@pytest.mark.slow
def test_wandb_without_a_login_writes_offline_and_says_so_once(tmp_path: Path) -> None:
    run = tmp_path / "tracked-without-login"
    env = {"WANDB_MODE": "online", "WANDB_API_KEY": "", "NETRC": str(tmp_path / "none")}
    env |= {"WANDB_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)}
    flags = ["--steps", "512", "--metrics.sinks", "jsonl,wandb"]
    done = rookery("train", *TINY, *flags, "--run", str(run), env=env)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "metric sink" in line]
    assert len(lines) == 1
    assert "wandb: offline (" in lines[0]
    assert "wandb sync" in lines[0]
    assert history(wandb_files(run)[0])


# ---- MLflow


def mlflow_run(run: Path) -> Any:
    client, run_id = mlflow_client(run)
    return client.get_run(run_id)


def mlflow_client(run: Path) -> tuple[Any, str]:
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient((run / "mlflow").as_uri())
    experiments = [client.get_experiment_by_name("rookery").experiment_id]
    (found,) = client.search_runs(experiments)
    return client, found.info.run_id


@pytest.mark.slow
def test_mlflow_has_settings_and_steps_and_goes_on_in_the_same_run(tmp_path: Path) -> None:
    run = tmp_path / "tracked by mlflow"
    flags = ["--steps", "1024", "--metrics.sinks", "jsonl,mlflow", "--tags", "red"]
    done = rookery("train", *TINY, *flags, "--run", str(run))
    assert done.returncode == 0, done.stderr
    assert "metric sink" not in done.stderr
    first = mlflow_run(run)
    assert first.info.status == "FINISHED"
    assert first.info.run_name == run.name
    assert first.data.params["env.id"] == "CartPole-v1"
    assert first.data.params["total_steps"] == "1024"
    assert first.data.tags["tag.red"] == "true"

    done = rookery("resume", str(run), "--steps", "2048")
    assert done.returncode == 0, done.stderr
    client, run_id = mlflow_client(run)  # there is one run
    assert run_id == first.info.run_id == json.loads((run / "mlflow.json").read_text())["id"]
    assert client.get_run(run_id).data.tags["resumed.total_steps"] == "2048"
    records = [r for r in read_metrics(run / "metrics.jsonl") if "rollout/return_mean" in r]
    told = client.get_metric_history(run_id, "rollout/return_mean")
    wanted = [(r["steps"], r["rollout/return_mean"]) for r in records]
    assert sorted((m.step, m.value) for m in told) == wanted
    assert "steps" not in client.get_run(run_id).data.metrics


@pytest.mark.slow
def test_a_service_out_of_reach_costs_one_warning(tmp_path: Path) -> None:
    run = tmp_path / "tracked-by-nobody"
    env = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    flags = ["--steps", "1024", "--metrics.sinks", "jsonl,mlflow"]
    done = rookery("train", *TINY, *flags, "--run", str(run), env=env)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "metric sink" in line]
    assert len(lines) == 1
    assert "metric sink mlflow: no success" in lines[0]
    assert len(read_metrics(run / "metrics.jsonl")) > 3
    until(lambda: "mlflow-0" not in members(run), "its process ends", 20)


# ---- what both share


class Listed:
    """A tracker that keeps what it is told and fails when asked to."""

    def __init__(self, *, failures: int = 0) -> None:
        self.records: list[dict[str, Any]] = []
        self.failures = failures
        self.ending = ""

    def open(self, run: RunDirectory, config: dict[str, Any], memo: Memo) -> str | None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no route\nand more")
        memo.id = memo.id or "one"
        return None

    def log(self, records: list[dict[str, Any]]) -> None:
        self.records += records

    def close(self, ending: str) -> None:
        self.ending = ending


def telling(run: RunDirectory, tracker: Tracker) -> tuple[Telling, Path]:
    reports = run.path / "reports"
    return Telling("wandb", tracker, run, reports.open("a")), reports


def new_run(path: Path) -> RunDirectory:
    run = RunDirectory.create(path, name="x")
    run.write_config("env: {id: CartPole-v1}\n")
    return run


def test_what_a_killed_sitting_told_is_not_told_again(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    first = Listed()
    sitting, _ = telling(run, first)
    for steps in (10, 20, 30):
        sitting.take({"steps": steps})
    assert [record["steps"] for record in first.records] == [10, 20, 30]
    second = Listed()  # from the checkpoint at 10, of which an evaluation was due
    sitting, _ = telling(run, second)
    for record in ({"steps": 20}, {"steps": 30}, {"steps": 30, "eval/steps": 20}, {"steps": 40}):
        sitting.take(record)
    sitting.end("finished")
    assert second.records == [{"steps": 30, "eval/steps": 20}, {"steps": 40}]
    assert Memo.read(run.path / "wandb.json") == Memo("one", "", 40, False)
    assert second.ending == "finished"


def test_records_wait_for_a_service_that_comes_back(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    tracker = Listed(failures=1)
    sitting, reports = telling(run, tracker)
    sitting.start()
    for steps in (10, 20):
        sitting.take({"steps": steps})
    assert tracker.records == []
    sitting.end("failed")
    assert tracker.records == [{"steps": 10}, {"steps": 20}]
    assert tracker.ending == "failed"
    (line,) = reports.read_text().splitlines()
    said = "metric sink wandb: no success (no route); the run goes on"
    assert json.loads(line) == {"warning": said, "works": False}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 3, "more": 1}'])
def test_a_damaged_memo_begins_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "wandb.json").write_text(text)
    assert Memo.read(tmp_path / "wandb.json") == Memo()


def test_a_process_that_ends_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run directory has no config.yaml, and nobody would notice the pipe's end but us."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    run = RunDirectory.create(tmp_path / "run", name="x")
    sink = load_sink("wandb", run)
    for steps in range(3):
        sink.write({"steps": steps})
    sink.close()
    assert [record.getMessage() for record in caplog.records] == [
        "metric sink wandb ended with code 1; see logs/wandb-0.log"
    ]


@pytest.mark.parametrize("service", ["wandb", "mlflow"])
@pytest.mark.parametrize("leftover", [False, True])
def test_a_missing_package_is_one_line_before_anything_starts(
    tmp_path: Path,
    service: str,
    leftover: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A directory that W&B leaves behind looks like a package without an origin.
    found = ModuleSpec(service, None) if leftover else None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    run = tmp_path / "run"
    assert main(["train", *TINY, "--metrics.sinks", service, "--run", str(run)]) == 2
    assert capsys.readouterr().err == (
        f"rookery: metric sink '{service}' needs the package {service}; "
        f'`pip install "rookery[{service}]"` brings it\n'
    )
    assert not run.exists()


def test_a_misspelt_service_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *TINY, "--metrics.sinks", "jsonl,wandbb"]) == 2
    assert "unknown metric sink 'wandbb'; did you mean 'wandb'?" in capsys.readouterr().err
