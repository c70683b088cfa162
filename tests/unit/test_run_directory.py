from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.core.errors import UserError
from rookery.runs import directory as directory_module
from rookery.runs.atomic import WriteError
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.checkpoint_files import State
from rookery.runs.directory import RunDirectory, list_runs


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", name="ppo")


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


# ---- making and opening


def test_create_names_the_directory(tmp_path: Path) -> None:
    run = RunDirectory.create(None, name="ppo-ALE/Pong-v5:x", root=tmp_path / "runs")
    assert run.path.parent == tmp_path / "runs"
    assert re.fullmatch(r"ppo-ALE-Pong-v5-x-\d{8}-\d{6}-[0-9a-f]{4}", run.path.name)
    assert run.path.is_dir()
    other = RunDirectory.create(None, name="ppo-ALE/Pong-v5:x", root=tmp_path / "runs")
    assert other.path != run.path


@pytest.mark.parametrize(("name", "stem"), [("../../etc", "etc"), ("", "run"), ("a b", "a-b")])
def test_create_sanitises_names(tmp_path: Path, name: str, stem: str) -> None:
    run = RunDirectory.create(None, name=name, root=tmp_path)
    assert run.path.parent == tmp_path
    assert run.path.name.startswith(f"{stem}-2")


def test_an_id_already_taken_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(["aaaa", "aaaa", "bbbb", "bbbb", "cccc"])
    monkeypatch.setattr(directory_module.secrets, "token_hex", lambda _: next(ids))
    paths = {RunDirectory.create(None, name="x", root=tmp_path).path for _ in range(3)}
    assert len(paths) == 3


def test_explicit_path_may_be_new_or_empty(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path / "a" / "b", name="x").path.is_dir()
    (tmp_path / "empty").mkdir()
    assert RunDirectory.create(tmp_path / "empty", name="x").path.is_dir()


@pytest.mark.parametrize("content", ["config.yaml", "checkpoints/x", "notes.txt"])
def test_used_path_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run"
    (path / content).parent.mkdir(parents=True)
    (path / content).write_text("")
    with pytest.raises(UserError, match="already used") as error:
        RunDirectory.create(path, name="x")
    message = one_line(error)
    assert "choose another --run" in message
    assert (f"`rookery resume {path}`" in message) == (content != "notes.txt")


def test_a_file_is_not_a_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="already used"):
        RunDirectory.create(tmp_path / "file", name="x")
    with pytest.raises(WriteError, match="cannot write"):
        RunDirectory.create(tmp_path / "file" / "below", name="x")
    with pytest.raises(WriteError, match="cannot write"):
        RunDirectory.create(None, name="x", root=tmp_path / "file")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "read-only"
    path.mkdir()
    if os.geteuid() == 0:
        mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", str(path)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("root may write anywhere, and nothing can be mounted here")
        yield path
        subprocess.run(["umount", str(path)], check=True)
    else:
        path.chmod(0o555)
        yield path
        path.chmod(0o755)


def test_unwritable_place_is_one_line(read_only: Path) -> None:
    for make in (
        lambda: RunDirectory.create(read_only / "run", name="x"),
        lambda: RunDirectory.create(read_only, name="x"),
        lambda: RunDirectory.create(None, name="x", root=read_only),
        lambda: RunDirectory(read_only).write_config("a: 1"),
        lambda: RunDirectory(read_only).lock().__enter__(),
    ):
        with pytest.raises(WriteError, match=r"cannot write .*choose another --run") as error:
            make()
        assert str(read_only) in one_line(error)


def test_open_needs_a_run(run: RunDirectory) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        RunDirectory.open(run.path)
    run.write_config("a: 1\n")
    assert RunDirectory.open(run.path).path == run.path
    with pytest.raises(UserError, match=r"does not exist; did you mean 'run'\?") as error:
        RunDirectory.open(run.path.parent / "runn")
    one_line(error)


def test_names_of_everything(run: RunDirectory) -> None:
    path = run.path
    assert run.config_path == path / "config.yaml"
    assert run.meta_path == path / "meta.json"
    assert run.metrics_path == path / "metrics.jsonl"
    assert run.tensorboard_dir == path
    (path / "tensorboard").mkdir()
    assert run.tensorboard_dir == path / "tensorboard", "a run of earlier versions goes on there"
    assert run.checkpoints == path / "checkpoints"
    assert run.videos == path / "videos"
    assert run.plots == path / "plots"
    assert run.log_path("actor", 3) == path / "logs" / "actor-3.log"
    assert run.logs.is_dir()


# ---- what is written


def test_write_config_replaces(run: RunDirectory) -> None:
    run.write_config("a: 1\n")
    run.write_config("a: é\n")
    assert run.config_path.read_text() == "a: é\n"


def test_meta_has_one_session_for_each_start(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["rookery", "train", "a b"])
    run.write_meta({"seed": 5, "recipe": "ppo-cartpole"})
    run.write_meta({"seed": 5})
    first, second = json.loads(run.meta_path.read_text())["sessions"]
    assert first["seed"] == second["seed"] == 5
    assert first["recipe"] == "ppo-cartpole"
    assert first["command"] == "rookery train 'a b'"
    assert first["rookery"]
    assert first["python"].startswith("3.")
    assert first["num_cpus"] == os.cpu_count()
    assert set(first["versions"]) == {"torch", "numpy", "gymnasium"}
    assert first["host"]
    assert first["platform"]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]", first["started"])


def test_meta_survives_a_damaged_file(run: RunDirectory) -> None:
    run.meta_path.write_text("{torn")
    run.write_meta({"seed": 1})
    assert [session["seed"] for session in run.read_meta()] == [1]


def test_unknown_version_has_a_fallback(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise directory_module.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(directory_module.importlib.metadata, "version", version)
    run.write_meta({})
    session = run.read_meta()[0]
    assert session["rookery"] == "0+unknown"
    assert session["versions"]["torch"] is None


def git(path: Path, *args: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    command = ["git", *identity, "-C", str(path), *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_meta_has_the_state_of_git(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(repo)
    run.write_meta({})
    git(repo, "init", "-q")
    (repo / "file").write_text("1")
    git(repo, "add", "file")
    git(repo, "commit", "-q", "--no-verify", "-m", "one")
    run.write_meta({})
    (repo / "file").write_text("2")
    run.write_meta({})
    monkeypatch.setenv("PATH", str(tmp_path))  # no git at all
    run.write_meta({})
    states = [session["git"] for session in run.read_meta()]
    monkeypatch.undo()
    commit = git(repo, "rev-parse", "HEAD")
    clean, dirty = ({"commit": commit, "dirty": flag} for flag in (False, True))
    assert states == [None, clean, dirty, None]


def test_git_that_hangs_is_left(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(directory_module, "_GIT_TIMEOUT_SECS", 0.2)
    start = time.monotonic()
    run.write_meta({})
    assert time.monotonic() - start < 5
    assert run.read_meta()[0]["git"] is None


def test_status_comes_back(run: RunDirectory) -> None:
    assert run.read_status() is None
    run.write_status("running", steps=10)
    status = run.read_status()
    assert status is not None
    assert (status.state, status.steps, status.pid) == ("running", 10, os.getpid())
    assert status.alive
    run.write_status("failed", reason="actor 2 died", steps=20)
    status = run.read_status()
    assert status is not None
    assert (status.state, status.reason, status.steps) == ("failed", "actor 2 died", 20)
    assert not status.alive
    assert {"state", "reason", "steps", "pid", "host"} <= set(
        json.loads(run.status_path.read_text())
    )


@pytest.mark.parametrize("text", ["", "{torn", "[]", "{}", '{"state": "dancing"}'])
def test_unreadable_status_is_none(run: RunDirectory, text: str) -> None:
    run.status_path.write_text(text)
    assert run.read_status() is None


def test_status_of_a_newer_version_is_read(run: RunDirectory) -> None:
    run.status_path.write_text('{"state": "solved", "mood": "happy"}')
    status = run.read_status()
    assert status is not None
    assert status.state == "solved"


# ---- the lock

HOLDER = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from rookery.runs.directory import RunDirectory
    with RunDirectory(Path(sys.argv[1])).lock():
        RunDirectory(Path(sys.argv[1])).write_status("running", steps=7)
        print("held", flush=True)
        time.sleep(60)
""")


def test_two_processes_cannot_train_one_run(run: RunDirectory) -> None:
    run.write_config("")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"in use by process {holder.pid} on") as error:
            run.lock().__enter__()
        assert str(run.path) in one_line(error)
        assert list_runs(run.path.parent)[0].state == "running"
        holder.send_signal(signal.SIGKILL)
    finally:
        holder.kill()
        holder.communicate()
    with run.lock():  # the system let go of it
        pass
    assert list_runs(run.path.parent)[0].state == "killed"


def test_lock_is_let_go_and_taken_again(run: RunDirectory) -> None:
    with run.lock(), pytest.raises(UserError, match=f"process {os.getpid()}"):
        run.lock().__enter__()
    with run.lock():
        pass


def test_lock_does_not_rename_the_errors_of_its_block(run: RunDirectory) -> None:
    with pytest.raises(FileNotFoundError), run.lock():
        Path("/no/such/file").read_text()
    with run.lock():
        pass


def test_lock_removes_what_a_killed_writer_left(run: RunDirectory) -> None:
    (run.path / ".tmp-status.json-1-aa").write_text("half")
    with run.lock():
        assert not list(run.path.glob(".tmp-*"))


# ---- listing


def test_list_runs(tmp_path: Path) -> None:
    named = RunDirectory.create(None, name="a2c-Snake", root=tmp_path)
    named.write_config("")
    trained = RunDirectory.create(tmp_path / "mine", name="x")
    trained.write_config("")
    trained.write_meta({"recipe": "ppo-cartpole"})
    store = CheckpointStore(trained.checkpoints, durable=False)
    store.save(500, {"counters": State(data={"updates": 1})})
    store.mark_best(500, {"return_mean": 480.5})
    trained.write_status("solved", steps=600)
    (tmp_path / "unrelated").mkdir()
    (tmp_path / "file").write_text("")
    now = time.time()
    for path in (named.path, named.config_path):
        os.utime(path, (now - 100, now - 100))
    first, second = list_runs(tmp_path)
    assert first.path == trained.path
    assert (first.name, first.state, first.steps) == ("ppo-cartpole", "solved", 600)
    assert first.best_score == {"return_mean": 480.5}
    assert abs(first.last_activity - now) < 10
    assert (second.name, second.state, second.steps) == ("a2c-Snake", "new", 0)
    assert second.best_score is None


def test_list_runs_of_nothing(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    with pytest.raises(UserError, match="does not exist"):
        list_runs(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot list"):
        list_runs(tmp_path / "file")


def test_listing_does_not_import_torch() -> None:
    code = "import rookery.runs.directory, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
