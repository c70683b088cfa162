"""What every formation has beside its own roles: an evaluator, a gateway where hosts may join, and
vitals for the session."""

from __future__ import annotations

from rookery.core.ports import Role
from rookery.programs.graph import Edge, Node, Program
from rookery.programs.place import Place
from rookery.programs.plan import Plan
from rookery.roles.build import build_evaluator
from rookery.roles.evaluator import answer_spec
from rookery.transport.calls import CallPort
from rookery.transport.vitals import VitalsPort

GATEWAY_METRICS = ("fleet/hosts", "fleet/joined_actors", "fleet/refused")
"""Hosts that take part, their actors, and calls that were refused."""


def with_session(plan: Plan, name: str, nodes: list[Node], edges: list[Edge]) -> Program:
    """The program, with an evaluator unless it is switched off, and everybody's vitals."""
    owner = next(node.name for node in nodes if node.keeps_session)
    episodes = plan.config.eval.episodes
    if episodes > 0:
        about = f"{episodes} episodes of each saved policy"
        port = CallPort(
            "evaluation",
            "saved checkpoints out, their scores back",
            answer_spec(episodes, plan.info_keys),
            per="evaluation",
        )
        nodes = [*nodes, Node(name="evaluator", build=build_evaluator, busy=False, about=about)]
        edges = [*edges, Edge(owner, port, "evaluator")]
    if plan.config.hosts.listen is not None:
        acting = next(node for node in nodes if node.has_envs)
        nodes = [*nodes, _gateway(plan, acting)]
    vitals = [Edge(node.name, VitalsPort(node.replicas, node.metrics), owner) for node in nodes]
    return Program(name, tuple(nodes), (*edges, *vitals))


def _gateway(plan: Plan, acting: Node) -> Node:
    """Who stands for the actors of other hosts; its death is theirs."""
    return Node(
        name="gateway",
        build=_no_role,
        on_death=acting.on_death,
        stands_for_hosts=True,
        metrics=GATEWAY_METRICS,
        about=f"{plan.config.num_places} places at {plan.config.hosts.listen}",
    )


def _no_role(place: Place) -> Role:
    raise RuntimeError("a gateway is no role: engines make it themselves")
