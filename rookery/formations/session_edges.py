"""What every formation has beside its own roles: an evaluator, and vitals for the session."""

from __future__ import annotations

from rookery.programs.graph import Edge, Node, Program
from rookery.programs.plan import Plan
from rookery.roles.build import build_evaluator
from rookery.roles.evaluator import answer_spec
from rookery.transport.calls import CallPort
from rookery.transport.vitals import VitalsPort


def with_session(plan: Plan, name: str, nodes: list[Node], edges: list[Edge]) -> Program:
    """The program, with an evaluator unless it is switched off, and everybody's vitals."""
    owner = next(node.name for node in nodes if node.keeps_session)
    episodes = plan.config.eval.episodes
    if episodes > 0:
        about = f"{episodes} episodes of each saved policy"
        port = CallPort(
            "evaluation",
            "saved checkpoints out, their scores back",
            answer_spec(episodes),
            per="evaluation",
        )
        nodes = [*nodes, Node(name="evaluator", build=build_evaluator, busy=False, about=about)]
        edges = [*edges, Edge(owner, port, "evaluator")]
    vitals = [Edge(node.name, VitalsPort(node.replicas, node.metrics), owner) for node in nodes]
    return Program(name, tuple(nodes), (*edges, *vitals))
