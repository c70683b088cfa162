"""Engine ``ray`` on a real Ray: runs learn, lose processes, actors and nodes, and end cleanly."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.core.errors import EnvironmentFault, StopRun, UserError
from rookery.runs.metrics import read_metrics
from rookery.runs.versions import versions_here
from tests.engines.test_hosts import ASYNC, REPLAY, SLOW_STEPS, SYNC, WORLD
from tests.faults import processes as p
from tests.faults.counted import accounted
from tests.forks import forked
from tests.learning.test_toys import QUEUED, learn, score
from tests.toy_worlds import MIRROR_STEPS

ray = pytest.importorskip("ray")
engine = importlib.import_module("rookery.engines.ray")
pytestmark = pytest.mark.slow

SERVERS = ("--formation", "paramserver", "--paramserver.num_servers", "2")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray of two nodes on this machine, for all tests of this module."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 4, "resources": {"first": 1}, "include_dashboard": False}
    running = Cluster(initialize_head=True, head_node_args=head)
    running.add_node(num_cpus=4, resources={"second": 1})
    yield running
    running.shutdown()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / p.own_name()
    yield path
    while STARTED:  # those of a test that has failed
        process = STARTED.pop()
        process.kill()
        process.wait()
    p.until(lambda: not of_run(path), "everybody to end", timeout_secs=30)


STARTED: list[subprocess.Popen[str]] = []


class Train:
    """``rookery train --engine ray`` in the background."""

    def __init__(self, cluster: Any, run: Path, *flags: str, what: str = WORLD) -> None:
        self.run, self.log = run, run.with_suffix(".log")
        words = ("train", what) if what != "resume" else ("resume", str(run))
        where = ("--run", str(run), "--address", cluster.address) if what != "resume" else ()
        engine = ("--engine", "ray", "--plain")
        with self.log.open("a") as log:
            self.process = forked(
                *words, *engine, *where, *flags, cwd=p.ROOT, stderr=log, start_new_session=True
            )
        STARTED.append(self.process)

    def said(self) -> str:
        return self.log.read_text()

    def hears(self, words: str, times: int = 1, secs: float = p.PATIENCE_SECS) -> None:
        deadline = time.monotonic() + secs
        while self.said().count(words) < times:
            assert time.monotonic() < deadline, f"no '{words}' in\n{self.said()}"
            assert self.process.poll() is None, self.said()
            time.sleep(0.1)

    def ends(self, code: int = 0, secs: float = p.PATIENCE_SECS) -> str:
        try:
            self.process.wait(secs)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.said()) from None
        assert self.process.returncode == code, self.said()
        return self.said()

    def trains_on(self, steps: int = 200) -> None:
        """Until it has made so many steps more."""
        before = p.steps(self.run)
        deadline = time.monotonic() + p.PATIENCE_SECS
        while p.steps(self.run) < before + steps:
            assert time.monotonic() < deadline, f"{p.steps(self.run)} steps\n{self.said()}"
            assert self.process.poll() is None, self.said()
            time.sleep(0.1)


def of_run(run: Path) -> dict[str, int]:
    """All processes that the run's Ray actors have started, by ``learner-0`` or ``0/actor-1``."""
    found = dict(p.everyone(run))
    for number in range(8):
        host = run.with_name(f"{run.name}-host-{number}")
        found |= {f"{number}/{name}": pid for name, pid in p.everyone(host).items()}
    return found


def ray_actor(run: Path, prefix: str = "") -> int:
    """The process of the Ray actor of the head, or of the host called ``0/``."""
    server = p.until(lambda: of_run(run).get(f"{prefix}fork-server"), "a fork server")
    return int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])


BRIEF = ("allreduce",)
"""Of `make test`; the others are started by other tests, or in `make test-long`."""
FORMATIONS = {
    "sync": (*SYNC, "--actors", "2"),
    "async": (*ASYNC, "--actors", "2"),
    "replay": (*REPLAY, "--actors", "2"),
    "central": (*REPLAY, "--formation", "central", "--actors", "2"),
    "paramserver": (*SYNC, *SERVERS, "--actors", "2"),
    "allreduce": (*SYNC, "--formation", "allreduce", "--actors", "2"),
    "hogwild": (*SYNC, "--formation", "hogwild", "--actors", "2"),
}


@pytest.mark.parametrize(
    "formation",
    [name if name in BRIEF else pytest.param(name, marks=pytest.mark.long) for name in FORMATIONS],
)
def test_every_formation_runs_to_its_end(formation: str, cluster: Any, run: Path) -> None:
    train = Train(cluster, run, *FORMATIONS[formation], "--steps", "2000")
    assert "finished: 2000 steps reached" in train.ends()
    joined = {"allreduce": 1, "hogwild": 0}.get(formation, 2)
    said = re.findall(r"joined with (\d) actors", train.said())
    assert sum(map(int, said)) == joined, train.said()
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    logs = sorted(path.name for path in run.glob("hosts/*/logs/*-[0-9].log"))
    assert len(logs) == joined


COUNTED = (
    "--algo", "dqn", "--formation", "replay", "--envs", "4",
    "--dqn.batch_size", "16", "--dqn.learning_starts", "100", "--dqn.steps_per_update", "16",
    "--dqn.capacity_steps", "200000", "--policy.hidden", "[16]", "--eval.episodes", "0",
    "--stop-at", "none", "--log-every", "200", "--save-every", "500", "--steps", "1000000",
)  # fmt: skip


def counting(run: Path) -> tuple[Path, tuple[str, ...]]:
    """Where a world counts its steps, and the flags that say so."""
    counts = run.with_name(f"{run.name}-counts")
    counts.mkdir()
    return counts, ("--env.kwargs", f"{{counts: {counts}, step_secs: 0.004}}")


def test_whoever_is_killed_comes_back_and_no_step_is_lost(cluster: Any, run: Path) -> None:
    """An actor and a Ray actor of a host: nobody goes back; then Ctrl-C."""
    counts, world = counting(run)
    flags = (*COUNTED, *world, "--actors", "2", "--ray.host_actors", "1")
    train = Train(cluster, run, *flags, what="tests.faults.counted:make_env")
    train.hears("joined with 1 actors", times=2)
    train.trains_on()
    before = of_run(run)
    p.kill(before["0/actor-0"] if "0/actor-0" in before else before["0/actor-1"])
    train.trains_on()
    p.kill(ray_actor(run, "1/"))
    train.hears("joined with 1 actors", times=3)
    train.trains_on()
    train.process.send_signal(signal.SIGINT)
    said = train.ends(130)
    assert "ending with a checkpoint" in said
    assert "interrupted: SIGINT" in said
    accounted(run, counts, at_least=1000)


def test_a_killed_learner_and_a_killed_head_go_on_from_the_checkpoint(
    cluster: Any, run: Path
) -> None:
    flags = (*REPLAY, *SLOW_STEPS, "--actors", "2", "--ray.host_actors", "2")
    train = Train(cluster, run, *flags, "--steps", "1000000")
    train.hears("joined with 2 actors")
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    p.kill(of_run(run)["learner-0"])
    train.hears("the fleet goes back to the checkpoint at step")
    train.hears("joined with 2 actors", times=2)
    train.trains_on()
    p.kill(ray_actor(run))
    train.hears("the head is lost")
    train.hears("from the checkpoint at step")
    train.hears("joined with 2 actors", times=3)
    train.trains_on(1)
    steps = [record["steps"] for record in read_metrics(run / "metrics.jsonl")]
    assert steps == sorted(steps)
    train.process.send_signal(signal.SIGTERM)
    train.ends(143)
    resumed = Train(cluster, run, "--steps", "1000000", what="resume")
    resumed.hears("joined with 2 actors", times=4)
    resumed.trains_on()
    p.kill(resumed.process.pid)  # the driver: nobody outlives it, as the fixture sees


@pytest.mark.long
def test_a_node_is_lost_and_the_run_goes_on_elsewhere(cluster: Any, run: Path) -> None:
    nodes = [cluster.add_node(num_cpus=2, resources={"spare": 1}) for _ in range(2)]
    flags = (*REPLAY, *SLOW_STEPS, "--actors", "1", "--steps", "1000000")
    keep = ("--ray.head_resources", "{spare: 1}", "--ray.host_resources", "{first: 0.1}")
    train = Train(cluster, run, *flags, *keep)
    train.hears("joined with 1 actors")
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    node = next(node for node in nodes if is_above(node, ray_actor(run)))
    cluster.remove_node(node, allow_graceful=False)
    train.hears("the head goes on at")
    train.hears("joined with 1 actors", times=2)
    train.trains_on(1)
    nodes.remove(node)
    train.process.send_signal(signal.SIGINT)
    train.ends(130)
    cluster.remove_node(nodes[0])


def is_above(node: Any, pid: int) -> bool:
    """Whether a process belongs to that node's raylet."""
    raylets = [info.process.pid for info in node.all_processes["raylet"]]
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) in raylets


def test_hosts_come_with_the_cluster(cluster: Any, run: Path) -> None:
    flags = (*REPLAY, *SLOW_STEPS, "--actors", "1:3", "--ray.host_actors", "1")
    train = Train(
        cluster, run, *flags, "--steps", "1000000", "--ray.host_resources", "{elastic: 1}"
    )
    train.hears("waiting for room on the Ray cluster, up to 300 s: asked are 2 CPU and 1 elastic; ")
    first = cluster.add_node(num_cpus=1, resources={"elastic": 1})
    train.hears("2 of 3 hosts come as there is room for them")
    train.hears("joined with 1 actors")
    train.trains_on(1)
    second = cluster.add_node(num_cpus=2, resources={"elastic": 2})
    train.hears("joined with 1 actors", times=3)
    cluster.remove_node(second, allow_graceful=False)
    train.hears("left with 1 actors", times=2)
    train.trains_on()
    train.process.send_signal(signal.SIGINT)
    train.ends(130)
    cluster.remove_node(first)


# ---- in a Ray program ---------------------------------------------------------------------------


@pytest.fixture
def program(cluster: Any) -> Iterator[None]:
    """This process is a Ray program: it has joined the cluster by itself."""
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


TINY = {
    "envs": 4,
    "policy": {"hidden": [16]},
    "ppo": {"rollout_steps": 20, "num_minibatches": 1, "num_epochs": 1},
    "stop_at": None,
    "quiet": True,
}


@pytest.mark.usefixtures("program")
def test_python_trains_on_the_ray_that_is_there(run: Path) -> None:
    records: dict[str, list[dict[str, Any]]] = {"update": [], "episode": [], "evaluation": []}

    def update(record: dict[str, Any]) -> None:
        records["update"].append(record)
        if record["steps"] >= 400:
            raise StopRun("enough")

    done = rookery.train(
        WORLD,
        engine="ray",
        actors=2,
        log_every=80,
        eval={"episodes": 2},
        run=run,
        on_update=update,
        on_episode=records["episode"].append,
        on_evaluation=records["evaluation"].append,
        **TINY,
    )
    assert (done.finish.outcome.state, done.finish.outcome.reason) == ("stopped", "enough")
    assert 400 <= done.finish.steps < 100_000
    assert [len(each) > 0 for each in records.values()] == [True] * 3
    assert {record["length"] for record in records["episode"]} == {10}
    assert ray.is_initialized()
    assert not ray.util.placement_group_table() or all(
        group["state"] == "REMOVED" for group in ray.util.placement_group_table().values()
    )


@pytest.mark.usefixtures("program")
def test_what_cannot_go_on_says_so_in_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little room, other versions on a node, and a host that fails where all are needed."""
    few = {"engine": "ray", "run": run, **TINY}
    with pytest.raises(UserError) as told:
        rookery.train(WORLD, actors=2, ray={"wait_secs": 3, "host_cpus": 500}, **few)
    assert re.fullmatch(
        r"engine ray: no room after 3 s \(ray.wait_secs\): asked are 501 CPU; the cluster has \d+ "
        r"CPU, of which \S+ CPU are free; add nodes, or ask for less by .*",
        str(told.value),
    )
    monkeypatch.setattr(engine, "versions_here", lambda: versions_here() | {"numpy": "0.1"})
    run = few["run"] = run.with_name(f"{run.name}-2")
    with pytest.raises(UserError, match=r"node \S+ \(\S+\) has numpy \S+, and \S+ \(\S+\) has 0.1"):
        rookery.train(WORLD, actors=1, ray={"head_actors": 1}, **few)
    monkeypatch.undo()
    few["run"] = run.with_name(f"{run.name}-3")
    with pytest.raises(EnvironmentFault, match=r"host 0: actor-[01]: environment .* raised"):
        rookery.train("tests.faults.fault_worlds:Raises", actors=2, **few)


# ---- learning -----------------------------------------------------------------------------------

ACTORS: dict[str, Any] = {"engine": "ray", "ray": {"host_actors": 1}}
LEARNED: dict[str, dict[str, Any]] = {
    "sync": {"algo": "ppo", "steps": 8_000, "actors": 2},
    "async": {"algo": "impala", "steps": 12_000, **QUEUED},
    "replay": {"algo": "dqn", "steps": 8_000, "actors": 2},
    "central": {"algo": "dqn", "steps": 8_000, "actors": 2, "formation": "central"},
}


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(
    "formation",
    [name if name == "async" else pytest.param(name, marks=pytest.mark.long) for name in LEARNED],
)
def test_a_toy_is_learned(formation: str, tmp_path: Path) -> None:
    done = learn("Mirror", tmp_path, **LEARNED[formation], **ACTORS)
    assert score(done) > 0.97 * MIRROR_STEPS


@pytest.mark.long
@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(
    ("recipe", "seed"), [("cartpole", 0), ("cartpole", 1), ("cartpole", 2), ("dqn-cartpole", 0)]
)
def test_a_recipe_reaches_its_score(recipe: str, seed: int, run: Path) -> None:
    done = rookery.train(recipe, seed=seed, actors=2, run=run, quiet=True, **ACTORS)
    assert done.solved
