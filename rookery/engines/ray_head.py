"""The head of a run on Ray: engine ``local`` on whichever node it was placed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray

from rookery.core.address import write_address
from rookery.core.errors import UserError
from rookery.core.hosts import Probe
from rookery.core.signature import Signature
from rookery.engines import local
from rookery.engines.engine import Job
from rookery.engines.fork_server import ForkServer
from rookery.engines.interrupt import Interrupt
from rookery.engines.ray_actors import HOSTS
from rookery.engines.ray_cluster import node_name
from rookery.engines.ray_logs import logged
from rookery.programs.plan import Plan
from rookery.recipes.on_nodes import at_head_of, over_hosts
from rookery.recipes.settings import config_from_tree
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.checkpoint_files import Checkpoint
from rookery.runs.config import RunConfig
from rookery.runs.directory import RunDirectory
from rookery.runs.find import load_checkpoint
from rookery.runs.head_address import remove_head_address
from rookery.runs.session import Callbacks
from rookery.runs.shared_probe import seen_here
from rookery.runs.stage import Stage
from rookery.runs.start import starting_weights

Tell = Callable[..., None]


def carry(
    order: dict[str, Any], tell: Tell, interrupt: Interrupt, server: ForkServer
) -> dict[str, Any]:
    """Carry the run that the driver has ordered to its end; how that was."""
    run = RunDirectory(Path(order["run"]))
    _check_seen(order, run.path)
    with logged(run.logs / "ray-head.log", tell):
        remove_head_address(run.path)  # of a head that was killed
        resume = _newest(order, run)
        tell("begins", node=node_name(), steps=resume.steps if resume is not None else None)
        config = _listening(config_from_tree(order["config"], "the driver's settings"))
        plan = Plan.of(config, Signature.from_json(order["signature"]))
        plan.device()
        starts = order["init_from"] if resume is None else None
        job = Job(
            plan,
            run,
            _callbacks(order["wanted"], tell),
            resume=resume,
            init_from=starting_weights(Path(starts)) if starts is not None else None,
            fork_server=server,
            interrupt=interrupt,
        )
        return asdict(local.run(job))


def _check_seen(order: dict[str, Any], run: Path) -> None:
    """Refuse to begin where the run directory is another one, or none."""
    try:
        seen_here(Probe(**order["probe"]), run / HOSTS)
    except UserError as error:
        raise UserError(
            f"node {node_name()} does not see {run} of {order['driver']}: put --run on storage "
            "that all nodes share, or keep the head on that node, as by --ray.head_resources "
            f"'{{\"node:{order['ip']}\": 0.001}}'"
        ) from error


def _newest(order: dict[str, Any], run: RunDirectory) -> Checkpoint | None:
    """The newest checkpoint of this session, else the one that it goes on from."""
    if local.newest_name(run) != order["latest_before"]:
        return CheckpointStore(run.checkpoints).load("latest")
    resume = order["resume"]
    return load_checkpoint(Path(resume)) if resume is not None else None


def _listening(config: RunConfig) -> RunConfig:
    """The settings of a head that listens at its node's address."""
    host, port = ray.util.get_node_ip_address(), config.ray.head_port
    if port is None:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
            free.bind((host, 0))
            port = free.getsockname()[1]
    at_head = at_head_of(config, config.ray.head_actors)
    return over_hosts(config, at_head, write_address(host, port))


def _callbacks(wanted: list[str], tell: Tell) -> Callbacks:
    """They tell the driver, which calls the user's."""

    def told(kind: str) -> Callable[[dict[str, Any]], None] | None:
        return (lambda record: tell(kind, record=record)) if kind in wanted else None

    def stage(now: Stage | None) -> None:
        tell("stage", stage=asdict(now) if now is not None else None)

    return Callbacks(
        told("update"),
        told("episode"),
        told("evaluation"),
        [lambda record: tell("record", record=record)],
        on_stage=stage,
        on_steps=lambda steps: tell("steps", steps=steps),
        on_notice=lambda text: tell("notice", text=text),
    )
