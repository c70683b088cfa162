"""Two hosts, which are network namespaces: the page's walk-through, literally, and a cut cable."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.runs.metrics import read_metrics
from tests.docs.pages import ROOT
from tests.faults import processes as p
from tests.namespaces import Network, network

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "many-machines.md"
LEFT_OUT = r"\S+"


def walk() -> dict[str, list[str]]:
    """The page's commands, by the prompt of who types them."""
    typed = re.findall(r"^(head|node)\$ (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {who: shlex.split(line) for who, line in typed}


def answers() -> list[str]:
    """What the page shows as printed, as patterns."""
    shown = re.search(r"^others join by: (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert shown is not None
    return [LEFT_OUT.join(map(re.escape, shown[1].split("...")))]


@pytest.fixture
def hosts() -> Iterator[Network]:
    with network(2) as found:
        yield found


def start(hosts: Network, where: int, words: list[str], directory: Path) -> subprocess.Popen[str]:
    """``rookery`` on a host, as a user there types it."""
    assert words[0] == "rookery"
    command = hosts.command(sys.executable, "-m", *words, host=where)
    log = (directory / f"{hosts.names[where]}.log").open("w")
    return subprocess.Popen(command, cwd=directory, stderr=log, text=True)


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
    until(lambda: read_metrics(run / "metrics.jsonl") if run.exists() else [], said)
    titles = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    token = (run / "token").read_text().strip()
    assert token not in titles.stdout, "a token is no secret in a process title"
    hosts.cut()
    until(lambda: "left with 2 actors" in said.read_text(), said)
    until(lambda: "waiting to join again" in node_said.read_text(), node_said)
    hosts.mend()
    until(lambda: said.read_text().count(f"host {hosts.names[1]} joined") == 2, said)
    before = read_metrics(run / "metrics.jsonl")[-1]["steps"]
    until(lambda: read_metrics(run / "metrics.jsonl")[-1]["steps"] > before + 5000, said)
    for process in (node, head):
        process.send_signal(signal.SIGINT)
        assert process.wait(p.PATIENCE_SECS) == 130, (said.read_text(), node_said.read_text())
    assert read_metrics(run / "metrics.jsonl")[-1]["steps"] > before
    assert (run / "tls-key.pem").stat().st_mode & 0o777 == 0o600
