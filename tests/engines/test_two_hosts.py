"""Two hosts, which are network namespaces: the page's walk-through, literally, and a cut cable."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.runs.metrics import read_metrics
from tests.docs.pages import ROOT
from tests.faults import processes as p
from tests.faults.counted import accounted
from tests.namespaces import Network, network

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "many-machines.md"
LEFT_OUT = r"\S+"


def walk() -> dict[str, list[str]]:
    """The page's first commands, by the prompt of who types them."""
    typed = re.findall(r"^(head|node)\$ (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {who: shlex.split(line) for who, line in reversed(typed)}


def answers() -> list[str]:
    """What the page shows as printed, as patterns."""
    shown = re.search(r"^others join by: (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert shown is not None
    return [LEFT_OUT.join(map(re.escape, shown[1].split("...")))]


@pytest.fixture
def hosts() -> Iterator[Network]:
    with network(2) as found:
        yield found


CUT_SECS = 60.0
LEASE_SECS = 4
COUNTED = (
    "--algo", "dqn", "--formation", "replay", "--envs", "4", "--actors", "1", "--places", "2",
    "--dqn.batch_size", "16", "--dqn.learning_starts", "100", "--dqn.steps_per_update", "16",
    "--dqn.capacity_steps", "200000", "--policy.hidden", "[16]", "--eval.episodes", "0",
    "--stop-at", "none", "--log-every", "200", "--save-every", "1000000", "--steps", "1000000",
    "--hosts.lease_secs", str(LEASE_SECS), "--plain",
)  # fmt: skip


def start(hosts: Network, where: int, words: list[str], directory: Path) -> subprocess.Popen[str]:
    """``rookery`` on a host, as a user there types it."""
    assert words[0] == "rookery"
    command = hosts.command(sys.executable, "-m", *words, host=where)
    log = (directory / f"{hosts.names[where]}.log").open("w")
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=directory, stderr=log, text=True, env=env)


def until(condition: Callable[[], Any], log: Path) -> Any:
    """Poll; what stands in ``log`` says more where it never comes."""
    try:
        return p.until(condition, log.name)
    except AssertionError as error:
        raise AssertionError(f"{error}: {log.read_text()}") from None


def test_the_walk_through_of_the_page_and_a_cut_cable(hosts: Network, tmp_path: Path) -> None:
    typed, said = walk(), tmp_path / f"{hosts.names[0]}.log"
    node_said = tmp_path / f"{hosts.names[1]}.log"
    head = start(hosts, 0, [*typed["head"], "--plain"], tmp_path)
    line = until(lambda: re.search(r"others join by: (.*)", said.read_text()), said)[1]
    assert re.fullmatch(answers()[0], line), line
    assert hosts.addresses[0] in line
    count = typed["node"][-2:]
    node = start(hosts, 1, [*shlex.split(line)[:-2], *count], tmp_path)
    until(lambda: f"host {hosts.names[1]} joined with {count[1]} actors" in said.read_text(), said)
    run = tmp_path / "runs" / "first"
    metrics = run / "metrics.jsonl"
    until(lambda: read_metrics(metrics) if metrics.exists() else [], said)
    titles = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    token = (run / "token").read_text().strip()
    assert token not in titles.stdout, "a token is no secret in a process title"
    hosts.cut()
    until(lambda: "left with 2 actors" in said.read_text(), said)
    until(lambda: "waiting to join again" in node_said.read_text(), node_said)
    hosts.mend()
    until(lambda: said.read_text().count(f"host {hosts.names[1]} joined") == 2, said)
    before = read_metrics(metrics)[-1]["steps"]
    until(lambda: read_metrics(metrics)[-1]["steps"] > before + 5000, said)
    for process in (node, head):
        process.send_signal(signal.SIGINT)
        assert process.wait(p.PATIENCE_SECS) == 130, (said.read_text(), node_said.read_text())
    assert read_metrics(metrics)[-1]["steps"] > before
    assert (run / "tls-key.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.long
def test_a_cable_that_is_cut_for_a_minute_costs_what_was_in_flight(
    hosts: Network, tmp_path: Path
) -> None:
    """The lease runs out, others go on, and the host comes back by itself."""
    said, node_said = (tmp_path / f"{name}.log" for name in hosts.names)
    run, counts = tmp_path / "run", tmp_path / "counts"
    metrics = run / "metrics.jsonl"
    counts.mkdir()
    words = ["rookery", "train", "tests.faults.counted:make_env", *COUNTED, "--run", str(run)]
    words += ["--env.kwargs", f"{{counts: {counts}, step_secs: 0.004}}"]
    head = start(hosts, 0, [*words, "--listen", f"{hosts.addresses[0]}:5500"], tmp_path)
    line = until(lambda: re.search(r"others join by: (.*) --actors", said.read_text()), said)[1]
    node = start(hosts, 1, [*shlex.split(line), "--actors", "2"], tmp_path)

    def acting() -> bool:
        records = read_metrics(metrics) if metrics.exists() else []
        return bool(records and records[-1].get("fleet/joined_actors") == 2)

    until(acting, said)
    for turn in (1, 2):
        hosts.cut(1)
        begun, before = time.monotonic(), read_metrics(metrics)[-1]["steps"]
        until(lambda: said.read_text().count("left with 2 actors (1 to 2): ") == turn, said)  # noqa: B023
        time.sleep(max(begun + CUT_SECS - time.monotonic(), 0.0))
        assert read_metrics(metrics)[-1]["steps"] > before + 500, "others go on"
        assert node.poll() is None, node_said.read_text()
        hosts.mend(1)
        joined = f"host {hosts.names[1]} joined with 2 actors"
        until(lambda: said.read_text().count(joined) == turn + 1, said)  # noqa: B023
        until(acting, said)
    assert f"nothing was heard of it for {LEASE_SECS} s" in said.read_text()
    for process in (head, node):
        process.send_signal(signal.SIGINT)
        assert process.wait(p.PATIENCE_SECS) == 130, (said.read_text(), node_said.read_text())
    accounts = accounted(run, counts, at_least=5000)
    assert accounts.lives == 4 + 3 * 8, "the host began anew twice, with other episodes"
