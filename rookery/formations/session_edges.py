"""What every formation has beside its own roles: who evaluates and films saved policies, a gateway
where hosts may join, and vitals for the session."""

from __future__ import annotations

from collections.abc import Iterator

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
        acting = next(node for node in nodes if node.has_envs)
        nodes = [*nodes, _gateway(plan, acting)]
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
                about=f"films {episodes} episode{'s' * (episodes > 1)} of each saved policy",
            ),
            CallPort(
                "recording",
                "saved checkpoints out, what their films show back",
                film_spec(episodes),
                per="film",
            ),
        )


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
