"""Nodes, edges and programs: a formation as data.

A program says who is there and what they exchange. It starts nothing and imports no engine::

    program = Program(
        name="sync",
        nodes=(Node(name="actor", replicas=2, ...), Node(name="learner", ...)),
        edges=(Edge("actor", "experience", "learner"), Edge("actor", "params", "learner")),
    )
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Link = Literal["call", "shared_memory", "directory", "message", "collective"]

PORTS: dict[str, str] = {
    "experience": "rollouts, put and sampled",
    "queue": "rollouts, put as they come and taken oldest first",
    "params": "weights with a version, published and got",
    "gradients": "gradients, added up over all that hold them",
    "weights": "one set of weights that all read and write, without a lock",
    "steps": "steps of environments, put into replay",
    "sequences": "sequences sampled from replay, their priorities back",
    "evaluation": "saved checkpoints out, their scores back",
}
"""Every kind of port and what passes through it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One role: how many replicas, what it offers to others and what it cannot be without."""

    name: str
    replicas: int = 1
    serves: frozenset[str] = frozenset()
    """Ports at which others may reach this role."""
    needs: frozenset[str] = frozenset()
    """Ports of others that this role must be joined to."""
    num_threads: int = 1
    """Compute threads of each replica."""
    busy: bool = True
    """False: it sleeps most of the time."""
    about: str = ""
    """What it does, in a few words, for people who read the plan."""


@dataclass(frozen=True, slots=True)
class Edge:
    """``source`` reaches the ``port`` that ``target`` serves, carried by ``link``."""

    source: str
    port: str
    target: str
    link: Link | None = None
    """None until an engine is chosen."""


@dataclass(frozen=True, slots=True)
class Program:
    """Who is there and what they exchange."""

    name: str
    nodes: tuple[Node, ...] = field(default=())
    edges: tuple[Edge, ...] = field(default=())

    def node(self, name: str) -> Node:
        """The node called ``name``."""
        return next(node for node in self.nodes if node.name == name)

    def has(self, name: str) -> bool:
        """Whether there is a node called ``name``."""
        return any(node.name == name for node in self.nodes)

    def with_links(self, links: dict[str, Link]) -> Program:
        """Every edge carried by what ``links`` says for its port, unless it says so itself."""
        edges = tuple(
            edge if edge.link else replace(edge, link=links.get(edge.port)) for edge in self.edges
        )
        return replace(self, edges=edges)
