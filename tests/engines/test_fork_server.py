"""The process that forks all others, with real processes."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.engines import fork_server as fork_server_module
from rookery.engines.fork_server import MOST_FDS, Child, ForkServer
from rookery.transport.control import Control
from tests.faults import processes as p

pytestmark = pytest.mark.slow

TELLS = "tests.engines.telling_env:Tells"
PATIENCE_SECS = 60.0
THREADS = "import torch; torch.set_num_threads({}); print(torch.__config__.parallel_info())"


@pytest.fixture(scope="module", autouse=True)
def afresh() -> Iterator[None]:
    """The start of a fork server is looked at here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server_module, "Popen", subprocess.Popen)
        yield


@pytest.fixture(scope="module")
def only_server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture
def server(only_server: ForkServer) -> ForkServer:
    if only_server.code is not None:
        only_server.restart()
    return only_server


def start(server: ForkServer, tmp_path: Path) -> tuple[Child, Control]:
    """A child that waits for its order."""
    ours, theirs = socket.socketpair()
    with theirs, (tmp_path / "log").open("ab") as log:
        child = server.start(theirs, log, num_threads=1)
    p.until(lambda: child.poll() is not None or child.pid, "a child", PATIENCE_SECS)
    return child, Control(ours)


def is_there(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def num_bells(pid: int) -> int:
    return sum("eventfd" in link_of(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())


def link_of(entry: Path) -> str:
    try:
        return os.readlink(entry)
    except OSError:  # closed since
        return ""


def facts_of(tmp_path: Path, **settings: Any) -> list[dict[str, Any]]:
    """What the environments of a short run tell of their processes."""
    told = tmp_path / "told"
    told.mkdir()
    common: Any = {"stop_at": None, "eval": {"episodes": 0}, "envs": 4, "engine": "local"}
    env = {"kwargs": {"folder": str(told)}}
    rookery.train(TELLS, run=tmp_path / "run", steps=400, env=env, **common, **settings)
    (told / f"{os.getpid()}.json").unlink()  # the driver asked what the environment is like
    return [json.loads(path.read_text()) for path in told.iterdir()]


def threads_of(num_threads: int) -> list[str]:
    """Threads of ATen, OpenMP and MKL in a fresh process that is told how many."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS.format(num_threads)],
        env=os.environ | {"OMP_NUM_THREADS": str(num_threads)},
        capture_output=True,
        text=True,
        check=True,
    )
    return re.findall(r"_threads\(\) : (\d+)", done.stdout)


def test_a_child_is_like_a_fresh_process(tmp_path: Path) -> None:
    ppo = {"rollout_steps": 20, "num_epochs": 1, "num_minibatches": 1}
    facts = facts_of(tmp_path, actors=2, ppo=ppo)
    assert sorted(f["title"] for f in facts) == ["rookery actor-0 run", "rookery actor-1 run"]
    for fact in facts:
        assert fact["parent"] == facts[0]["parent"] != os.getpid()
        assert fact["parent_threads"] == 1
        log = tmp_path / "run" / "logs" / f"{fact['title'].split()[1]}.log"
        assert fact["std"] == ["/dev/null", str(log), str(log)]
        # SIGTERM is heard and passed over: only the driver acts on it.
        assert fact["signals"] == [str(signal.SIG_IGN), "heard", str(signal.SIG_DFL)]
        assert fact["blocked"] == 0
        assert fact["threads"] == threads_of(1)
        here = {name: os.environ.get(name) for name in fact["environment"]}
        assert fact["environment"] == here | {"OMP_NUM_THREADS": "1"}
        assert fact["main"].endswith("fork_server_process.py"), "not the user's"
        sockets = [link for link in fact["links"] if link.startswith("socket:")]
        assert len(sockets) == 1, "its own control and nobody else's"
        assert len([link for link in fact["links"] if "eventfd" in link]) == 3, "every wake-up"
        assert fact["memories"] == 1
        assert not [link for link in fact["links"] if link.startswith("pipe:")]
    for ours, theirs in zip(facts[0]["chance"], facts[1]["chance"], strict=True):
        assert ours != theirs, "random numbers of their own"


def test_a_child_has_as_many_threads_as_it_is_told(tmp_path: Path) -> None:
    two = {"num_actors": 1, "worker_threads": 2}
    (fact,) = facts_of(tmp_path, formation="hogwild", algo="a2c", hogwild=two)
    assert fact["title"] == "rookery worker-0 run"
    assert fact["threads"] == threads_of(2)
    assert fact["environment"]["OMP_NUM_THREADS"] == "2"


def test_ends_are_told_as_they_were(server: ForkServer, tmp_path: Path) -> None:
    killed, first = start(server, tmp_path)
    asked, second = start(server, tmp_path)
    hung_up, third = start(server, tmp_path)
    lives, fourth = start(server, tmp_path)
    assert killed.poll() is None
    assert killed.wait(0.05) is None
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGUSR1)
    begun = time.monotonic()
    assert killed.wait(PATIENCE_SECS) == -signal.SIGUSR1
    assert first.drain(PATIENCE_SECS), "nobody else holds its control"
    assert time.monotonic() - begun < 5, "at once"
    asked.kill()
    assert asked.poll() == -signal.SIGKILL
    asked.kill()  # of the dead: nothing
    third.close()
    assert hung_up.wait(PATIENCE_SECS) == 1, "a child without a driver ends by itself"
    assert lives.poll() is None
    assert not fourth.receive()
    assert not fourth.closed
    lives.kill()
    for control in (first, second, fourth):
        control.close()


def test_a_report_wakes_the_driver(server: ForkServer, tmp_path: Path) -> None:
    child, control = start(server, tmp_path)
    assert child.pid is not None
    poll = select.poll()
    poll.register(server.fileno(), select.POLLIN)
    assert not poll.poll(100)
    os.kill(child.pid, signal.SIGKILL)
    assert poll.poll(PATIENCE_SECS * 1000)
    assert child.poll() == -signal.SIGKILL
    control.close()


def test_a_killed_fork_server_takes_its_children_along_and_another_can_follow(
    server: ForkServer, tmp_path: Path
) -> None:
    children = [start(server, tmp_path) for _ in range(2)]
    os.kill(server.pid, signal.SIGKILL)
    assert [child.wait(PATIENCE_SECS) for child, _ in children] == [-signal.SIGKILL] * 2
    assert server.code == -signal.SIGKILL
    for child, control in children:
        assert control.drain(PATIENCE_SECS)
        assert child.pid is not None
        p.until(lambda pid=child.pid: not is_there(pid), "it to be gone", 10)
        control.close()
    late, control = start(server, tmp_path)
    assert late.poll() == -signal.SIGKILL, "it can start nobody any more"
    control.close()
    server.restart()
    child, control = start(server, tmp_path)
    assert child.poll() is None
    control.close()


def test_a_stuck_fork_server_is_killed_in_the_end(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server_module, "ANSWER_SECS", 0.5)
    child, control = start(server, tmp_path)
    os.kill(server.pid, signal.SIGSTOP)
    child.kill()
    assert child.code == -signal.SIGKILL
    assert server.code == -signal.SIGKILL
    assert control.drain(PATIENCE_SECS)
    control.close()


def test_ctrl_c_and_sigterm_are_left_to_the_driver(tmp_path: Path) -> None:
    with ForkServer() as server:
        os.kill(server.pid, signal.SIGINT)  # it is hardly there yet
        os.kill(server.pid, signal.SIGTERM)
        child, control = start(server, tmp_path)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(0.3) is None
        control.close()


def test_many_descriptors_are_shared_and_let_go(server: ForkServer, tmp_path: Path) -> None:
    bells = [os.eventfd(0) for _ in range(MOST_FDS + 20)]
    server.share(bells)
    child, control = start(server, tmp_path)
    assert child.pid is not None
    assert num_bells(child.pid) == num_bells(server.pid) == len(bells)
    server.share(bells[:1])
    late, other = start(server, tmp_path)
    assert late.pid is not None
    assert num_bells(late.pid) == num_bells(server.pid) == 1
    for process, own in ((child, control), (late, other)):
        process.kill()
        own.close()
    for bell in bells:
        os.close(bell)


def test_with_a_thread_in_it_children_are_fresh_interpreters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a debugger or a profiler."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(p.ROOT)]))
    bell = os.eventfd(0)
    with ForkServer() as server:
        server.share([bell])
        child, control = start(server, tmp_path)
        assert child.pid is not None
        line = Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")
        assert b"rookery.engines.child" in line
        run, bad = str(tmp_path), {"formation": "none", "env": {"id": "CartPole-v1"}}
        order: Any = {"run": run, "role": "actor", "replica": 0, "fds": {"bell": bell}}
        control.send("order", **order, num_threads=1, sys_path=sys.path, config=bad)
        assert child.wait(PATIENCE_SECS) == 1
        told = control.receive()
        assert ["unknown 'none'" in message["message"] for message in told] == [True]
        control.close()
    os.close(bell)


def test_a_fork_server_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho there is no torch here >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(rookery.RunFailed, match="exit code 3: there is no torch here"):
        rookery.train("CartPole-v1", run=tmp_path / "run", steps=100, engine="local", envs=2)
