"""What a run asks of a Ray cluster, and what is refused before it begins. No Ray is started."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rookery.cli.main import main
from rookery.core.errors import UserError
from rookery.engines.carries import carries
from rookery.engines.interrupt import Interrupt, Stop
from rookery.engines.ray_actors import MOST_EVENTS, Events
from rookery.engines.ray_bundles import asked_of, in_words, shortage, together
from rookery.programs.plan import Plan
from rookery.programs.validate import validate
from rookery.recipes.on_nodes import at_head_of, over_hosts
from rookery.recipes.settings import (
    config_from_tree,
    revised,
    revised_by_flags,
    settings_from_flags,
    settings_from_python,
)
from rookery.runs.config import RunConfig
from rookery.runs.versions import check_versions, versions_here
from rookery.training import check
from tests.docs.pages import ROOT


def settings(what: str = "dqn-cartpole", **flags: str) -> RunConfig:
    return settings_from_flags(what, {"engine": "ray", "envs": "8"} | flags)


def test_a_range_is_the_number_that_is_needed_and_all() -> None:
    config = settings(actors="2:8")
    assert (config.ray.min_actors, config.formation_config.num_actors) == (2, 8)
    assert (
        settings_from_python("dqn-cartpole", {"engine": "ray", "actors": "2:8"}).ray == config.ray
    )
    assert config_from_tree(config.to_tree()) == config
    assert revised_by_flags(config, {"actors": "4"}).ray.min_actors is None
    assert revised(config, {"actors": "1:4"}).ray.min_actors == 1
    assert revised(config, {"steps": 5}).ray.min_actors == 2


REFUSED = {
    "dqn-cartpole --engine local --actors 2:8": "--actors 2:8: actors come and go under --engine "
    "ray; give one number under local",
    "dqn-cartpole --actors 8:2": "--actors: 8:2 must begin with at least 1, and not with more",
    "dqn-cartpole --actors 0:2": "must begin with at least 1",
    "dqn-cartpole --actors 2:": "'2:' is no range; write MIN:MAX, as 2:8",
    "dqn-cartpole --actors 2 --ray.min_actors 3": "ray.min_actors: 3 are more than there are, 2",
    "cartpole --actors 2:4": "formation sync needs all who act, all the time; give one number, as "
    "--actors 4",
    "cartpole --actors 2 --ray.head_actors 3": "ray.head_actors: 3 are more than there are, 2",
    "dqn-cartpole --listen 0.0.0.0:5500": "--listen: engine ray has hosts of its own; leave it out",
    "dqn-cartpole --address ray://node:10001": "is Ray Client's, which carries no runs",
    "dqn-cartpole --ray.host_actors 0": "ray.host_actors: must be at least 1, got 0",
    "dqn-cartpole --ray.head_cpus -1": "ray.head_cpus: must not be negative, got -1",
    "dqn-cartpole --ray.wait_secs 0": "ray.wait_secs: must be positive, got 0",
    "dqn-cartpole --ray.head_port 70000": "ray.head_port: must be between 1 and 65535, got 70000",
    "dqn-cartpole --ray.strategy NEAR": "ray.strategy: must be one of PACK, SPREAD",
    "dqn-cartpole --ray.host_resources {GPU:1}": "GPU is no custom resource; set ray.host_gpus",
    "dqn-cartpole --ray.host_resources {x:0}": "ray.host_resources: x must be positive, got 0",
    "dqn-cartpole --actors 300 --envs 300": "--actors: hosts have at most 256, got 300",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_run_is_refused_in_one_line(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace(":", ": ") if "{" in word else word for word in line.split()]
    engine = [] if "--engine" in words else ["--engine", "ray"]
    assert main(["train", *words, *engine]) == 2
    said = capsys.readouterr().err
    assert REFUSED[line] in said
    assert said.count("\n") == 1


FORMATIONS = {
    "sync": ("cartpole", {}, 0, "some"),
    "allreduce": ("cartpole", {"formation": "allreduce"}, 1, "some"),
    "hogwild": ("cartpole", {"formation": "hogwild"}, 4, "none"),
    "replay": ("dqn-cartpole", {}, 0, "more"),
    "central": ("dqn-cartpole", {"formation": "central"}, 0, "more"),
    "async": ("CartPole-v1", {"algo": "impala", "formation": "async"}, 0, "more"),
    "paramserver": ("CartPole-v1", {"algo": "a2c", "formation": "paramserver"}, 0, "more"),
}


@pytest.mark.parametrize("formation", FORMATIONS)
def test_who_learns_what_does_not_change_with_where_they_are(formation: str) -> None:
    what, flags, at_head, _ = FORMATIONS[formation]
    config = settings(what, **flags, actors="4")
    assert at_head_of(config) == at_head
    head = over_hosts(config, at_head)
    plan, alone = Plan.of(head), Plan.of(settings(what, **flags, actors="4", engine="local"))
    assert (plan.num_actors, plan.envs_each) == (alone.num_actors, alone.envs_each) == (4, 2)
    assert head.num_acting_here == at_head
    program = plan.program()
    validate(program, "ray", carries("ray"))
    assert program.acting.replicas == 4
    assert program.acting.left_to_hosts == 4 - at_head
    assert [node.name for node in program.nodes if node.stands_for_hosts] == (
        ["gateway"] if at_head < 4 else []
    )


def test_a_worker_stays_where_the_session_is() -> None:
    config = settings("cartpole", formation="allreduce", actors="2")
    with pytest.raises(UserError, match="one of the 2 workers must be at the head"):
        at_head_of(config, 0)


def asked(config: RunConfig, *nodes: float) -> tuple[list[int], int]:
    """Who acts on each host, and how many hosts are needed."""
    found = asked_of(config, at_head=at_head_of(config), node_cpus=nodes)
    return [host.num_actors for host in found.hosts], found.num_needed


def test_hosts_are_as_large_as_nodes_and_few_as_are_needed() -> None:
    assert asked(settings(actors="8")) == ([8], 1), "a Ray of one's own"
    assert asked(settings(actors="8"), 4.0) == ([3, 3, 2], 3), "beside the head"
    assert asked(settings(actors="8"), 4.0, 6.0, 0.0) == ([4, 4], 2)
    assert asked(settings(actors="8"), 1.0) == ([1] * 8, 8)
    config = settings(actors="3:8", **{"ray.host_actors": "2"})
    assert asked(config, 4.0) == ([2, 2, 2, 2], 2)
    assert asked(settings("cartpole", formation="hogwild", actors="4"), 4.0) == ([], 0)


def test_bundles_are_what_ray_counts() -> None:
    given = {"ray.head_gpus": "1", "ray.host_actors": "2", "ray.host_resources": "{big: 1}"}
    config = settings(actors="3:5", **given)
    found = asked_of(config, at_head=0, node_cpus=[8.0])
    assert found.gang() == [
        {"CPU": 1.0, "GPU": 1.0},
        {"CPU": 2.0, "big": 1.0},
        {"CPU": 2.0, "big": 1.0},
    ]
    assert found.all() == [*found.gang(), {"CPU": 1.0, "big": 1.0}]
    assert together(found.all()) == {"CPU": 6.0, "GPU": 1.0, "big": 3.0}
    free = settings(**{"ray.head_cpus": "0", "ray.host_cpus": "0"})
    assert all(asked_of(free, at_head=0, node_cpus=[]).all()), "Ray takes no bundle of nothing"


def test_what_is_missing_is_said_in_numbers() -> None:
    bundles = [{"CPU": 1.0}, {"CPU": 4.0, "GPU": 1.0}]
    assert in_words(bundles[1]) == "4 CPU and 1 GPU"
    assert in_words({}) == "nothing"
    assert shortage(bundles, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 5.0, "GPU": 1.0}) is None
    assert shortage(bundles, {"CPU": 8.0}, {"CPU": 2.5}) == (
        "asked are 5 CPU and 1 GPU; the cluster has 8 CPU and 0 GPU, of which 2.5 CPU and 0 GPU "
        "are free"
    )


def test_versions_that_differ_are_named() -> None:
    theirs = versions_here() | {"torch": "1.0"}
    check_versions("node a", theirs, "node b", theirs)
    with pytest.raises(UserError, match=r"node a has torch \S+, and node b has 1.0; install the"):
        check_versions("node a", versions_here(), "node b", theirs)


def test_events_are_heard_once_and_anew_of_another_life() -> None:
    events = Events()
    events.tell("steps", steps=1)
    events.tell("steps", steps=2)
    life, heard, upto = events.hear("", 0, 0.0)
    assert [content["steps"] for _, content in heard] == [1, 2]
    assert events.hear(life, 0, 0.0)[1] == heard, "an answer that was lost comes again"
    events.tell("notice", text="x")
    assert events.hear(life, upto, 0.0) == (life, [("notice", {"text": "x"})], 3)
    assert events.hear(life, 3, 0.0) == (life, [], 3)
    for steps in range(MOST_EVENTS + 5):
        events.tell("steps", steps=steps)
    assert len(events.hear(life, 3, 0.0)[1]) == MOST_EVENTS
    assert events.hear("another", 7, 0.0)[0] == life


def test_an_end_may_be_asked_for_by_others_than_signals() -> None:
    interrupt = Interrupt(quiet=True)
    assert interrupt.stopping() is None
    interrupt.ask(Stop("stopped", "enough"))
    interrupt.ask(Stop("interrupted", "SIGINT"))
    assert interrupt.requested
    assert interrupt.stopping() == Stop("stopped", "enough")
    assert interrupt.reason == "enough"


def test_an_address_at_which_nobody_answers_is_refused_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"nobody answers at 127.0.0.1:1 \(.*\); check --address"):
        check(settings(address="127.0.0.1:1"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:2")
    with pytest.raises(UserError, match=r"nobody answers at 127\.0\.0\.1:2"):
        check(settings())


WITHOUT = (
    "import sys; sys.modules['ray'] = None; from rookery.cli.main import main; sys.exit(main({}))"
)


def test_without_ray_one_line_names_the_extra(tmp_path: Path) -> None:
    words = ["train", "cartpole", "--engine", "ray", "--run", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert re.fullmatch(
        r"rookery: engine ray: Ray is not installed \(.*\); pip install "
        r'"rookery\[ray\]" brings it\n',
        done.stderr,
    )
    assert not (tmp_path / "run").exists()


def test_the_plan_needs_no_ray(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "dqn-cartpole", "--engine", "ray", "--actors", "1:8"]) == 0
    said = capsys.readouterr().out
    assert "on engine ray, 1 host and those that join, whose actors have places 0 to 7" in said


def test_the_manifest_is_read_as_the_autoscaler_does() -> None:
    """By Ray's own code, private as it is: nothing else knows what a RayCluster must have."""
    config = pytest.importorskip("ray.autoscaler._private.kuberay.autoscaling_config")
    page = (ROOT / "docs" / "ray.md").read_text("utf-8")
    (text,) = re.findall(r"```yml\n(apiVersion.*?)```", page, re.DOTALL)
    manifest = yaml.safe_load(text)
    manifest["metadata"] |= {"namespace": "default"}
    found = config._derive_autoscaling_config_from_ray_cr(manifest)
    hosts = found["available_node_types"]["hosts"]
    assert (hosts["min_workers"], hosts["max_workers"]) == (0, 8)
    assert hosts["resources"]["CPU"] == 4
    assert found["available_node_types"][found["head_node_type"]]["resources"]["CPU"] == 2
