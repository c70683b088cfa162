"""What every formation has beside its own roles: who evaluates and films saved policies, a gateway
where hosts may join, and vitals for the session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rookery.core.errors import UserError
from rookery.core.ports import Role
from rookery.programs.graph import Edge, Node, Program
from rookery.programs.place import Place
from rookery.programs.plan import Plan
from rookery.roles.build import build_evaluator, build_recorder
from rookery.roles.evaluator import answer_spec
from rookery.roles.recorder import film_spec
from rookery.transport.calls import CallPort
from rookery.transport.vitals import VitalsPort

GATEWAY_METRICS = ("fleet/hosts", "fleet/joined_actors", "fleet/refused")
"""Hosts that take part, their actors, and calls that were refused."""


def with_session(plan: Plan, name: str, nodes: list[Node], edges: list[Edge]) -> Program:
    """The program, with who looks at saved policies unless that is switched off, and everybody's
    vitals."""
    owner = next(node.name for node in nodes if node.keeps_session)
    looking = list(_looking(plan))
    nodes = [*nodes, *(node for node, _ in looking)]
    edges = [*edges, *(Edge(owner, port, node.name) for node, port in looking)]
    if plan.config.hosts.listen is not None:
        nodes = _left_to_hosts(plan, nodes)
        nodes = [*nodes, _gateway(plan, nodes)]
    vitals = [Edge(node.name, VitalsPort(node.replicas, node.metrics), owner) for node in nodes]
    return Program(name, tuple(nodes), (*edges, *vitals))


def _looking(plan: Plan) -> Iterator[tuple[Node, CallPort]]:
    """The roles that look at saved policies, and the port by which each is asked."""
    if (episodes := plan.config.eval.episodes) > 0:
        yield (
            Node(
                name="evaluator",
                build=build_evaluator,
                busy=False,
                may_join=True,
                reads_run=True,
                about=f"{episodes} episodes of each saved policy",
            ),
            CallPort(
                "evaluation",
                "saved checkpoints out, their scores back",
                answer_spec(episodes, plan.info_keys),
                per="evaluation",
            ),
        )
    if (episodes := plan.config.record.episodes) > 0:
        yield (
            Node(
                name="recorder",
                build=build_recorder,
                busy=False,
                may_join=True,
                reads_run=True,
                needed=False,
                about=f"films {episodes} episode{'s' * (episodes > 1)} of each saved policy",
            ),
            CallPort(
                "recording",
                "saved checkpoints out, what their films show back",
                film_spec(episodes),
                per="film",
            ),
        )


def _left_to_hosts(plan: Plan, nodes: list[Node]) -> list[Node]:
    """``nodes``, of which the head runs only a part: the places of joined actors are left to hosts,
    and the roles that hosts.leaves names."""
    leaves, places = plan.config.hosts.leaves, plan.config.num_places
    may = [node.name for node in nodes if node.may_join]
    for name in leaves:
        if name not in may:
            there = ", ".join(may) or "none, as there is neither evaluation nor film"
            raise UserError(f"hosts.leaves: hosts cannot run '{name}'; those they can: {there}")
    left = {node.name: places for node in nodes if node.has_envs} | dict.fromkeys(leaves, 1)
    return [replace(node, left_to_hosts=left.get(node.name, 0)) for node in nodes]


def _gateway(plan: Plan, nodes: list[Node]) -> Node:
    """Who stands for the roles of other hosts; its death is theirs."""
    left = [node for node in nodes if node.left_to_hosts]
    rewind = any(node.on_death == "rewind" for node in left)
    places = [f"{plan.config.num_places} places"] if plan.config.num_places else []
    return Node(
        name="gateway",
        build=_no_role,
        on_death="rewind" if rewind else "replace",
        stands_for_hosts=True,
        metrics=GATEWAY_METRICS,
        about=f"{', '.join([*places, *plan.config.hosts.leaves])} at {plan.config.hosts.listen}",
    )


def _no_role(place: Place) -> Role:
    raise RuntimeError("a gateway is no role: engines make it themselves")
