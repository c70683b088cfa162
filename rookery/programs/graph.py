"""Nodes, edges and programs: a formation as data.

A program says who is there and what they exchange. It starts nothing and imports no engine::

    program = Program(
        name="sync",
        nodes=(Node(name="actor", replicas=2, ...), Node(name="learner", ...)),
        edges=(Edge("actor", weights, "learner"), Edge("actor", rollouts, "learner")),
    )

An edge points from the role that uses a port to the role that serves it. Replicas that serve one
port serve it together, the first of them for those elsewhere, unless the edge is ``split``: then
each has an equal part of the clients; or ``each``: then every client uses all of them, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from rookery.core.errors import UserError
from rookery.core.ports import Port, Role

if TYPE_CHECKING:
    from rookery.programs.place import Place
    from rookery.programs.plan import Plan

Link = Literal["call", "shared_memory", "message", "collective"]


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that a replica has to itself, beside what it shares through its edges."""

    what: str
    """What it is for, in a word: replay, update, rollouts, weights."""
    num_bytes: int
    at_most: int = 0
    """Bytes if nothing of it can be compressed, where that is more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One role: who builds it, how many there are, and what engines must know to watch over it."""

    name: str
    build: Callable[[Place], Role]
    """One replica, from a plan and its ends of ports."""
    replicas: int = 1
    num_threads: int = 1
    """Compute threads of each replica."""
    busy: bool = True
    """False: it sleeps most of the time, and takes turns with whoever keeps the session where there
    is no process for it."""
    computes: bool = False
    """Whether it computes all the time: more threads than cores bring nothing."""
    has_envs: bool = False
    """Whether it steps environments: user code, which may fail and hang."""
    num_parts: int = 1
    """In how many parts each replica has its environments, which are told apart elsewhere."""
    follows_episodes: bool = False
    """Whether, without environments of its own, it remembers where the episodes of others are."""
    keeps_session: bool = False
    """Whether its first replica writes logs and checkpoints and says when the run is over."""
    on_death: Literal["replace", "rewind"] = "replace"
    """A replica that was killed is replaced alone; or all go back to the last checkpoint, because
    what it shared may be half written."""
    needed: bool = True
    """Whether a run ends when a replica has died too often; False: it goes on without."""
    stands_for_hosts: bool = False
    """Whether it is no role but the gateway, which stands for the actors of hosts that join."""
    may_join: bool = False
    """Whether a host that joins may run it in place of the head: it has one replica, and serves
    nothing but calls."""
    left_to_hosts: int = 0
    """So many of its replicas, the last ones, are places for hosts that join; the head runs none of
    them."""
    reads_run: bool = False
    """Whether it needs the run directory, which a host then has to share with the head."""
    grace_secs: float = 5.0
    """How long it may take to end by itself when the run is over."""
    leaves: bool = False
    """Whether it may leave a rollout or an update half made when the run is about to end; False:
    others need it to end in order."""
    metrics: tuple[str, ...] = ()
    """What it tells of itself through its vitals, by name."""
    about: str = ""
    """What it does, in a few words, for people who read the plan."""
    holds: Callable[[Plan], Iterable[Held]] | None = None
    """Memory that each replica has to itself; None: what an update takes, where it ``computes``."""

    @property
    def places(self) -> range:
        """Those replicas that are left to hosts."""
        return range(self.replicas - self.left_to_hosts, self.replicas)

    @property
    def in_episodes(self) -> bool:
        """Whether running episodes are part of its state."""
        return self.has_envs or self.follows_episodes

    @property
    def episodes_of(self) -> str:
        """Whose episodes a checkpoint calls them: of those that act, by one name for all."""
        return "" if self.has_envs else self.name


@dataclass(frozen=True, slots=True)
class Edge:
    """``source`` reaches the ``port`` that ``target`` serves."""

    source: str
    port: Port
    target: str
    split: bool = False
    """Each replica of the target serves an equal part of the source's."""
    each: bool = False
    """Each replica of the target serves all of the source's, with memory of its own: what a client
    holds is a list of ends, one for each of them."""

    @property
    def key(self) -> str:
        """A name of its own, for memory and messages."""
        return f"{self.source}.{self.port.name}.{self.target}"

    @property
    def among_peers(self) -> bool:
        """Whether replicas of one role exchange something as equals."""
        return self.source == self.target and self.port.kind in ("group", "memory")


@dataclass(frozen=True, slots=True)
class Program:
    """Who is there and what they exchange."""

    name: str
    nodes: tuple[Node, ...] = field(default=())
    edges: tuple[Edge, ...] = field(default=())

    def node(self, name: str) -> Node:
        """The node called ``name``."""
        found = next((node for node in self.nodes if node.name == name), None)
        if found is None:
            raise UserError(f"program {self.name}: no node is called {name}; add it")
        return found

    @property
    def owner(self) -> Node:
        """The node that keeps the session."""
        owners = [node for node in self.nodes if node.keeps_session]
        if len(owners) != 1:
            raise UserError(
                f"program {self.name}: {len(owners)} nodes keep the session; exactly one must"
            )
        return owners[0]

    @property
    def acting(self) -> Node:
        """The node that has environments."""
        found = next((node for node in self.nodes if node.has_envs), None)
        if found is None:
            raise UserError(f"program {self.name}: no node has environments; one must")
        return found

    @property
    def open_to_hosts(self) -> list[Node]:
        """The nodes of which hosts that join run replicas."""
        return [node for node in self.nodes if node.left_to_hosts]

    def edges_of(self, name: str) -> list[Edge]:
        """All edges that begin or end at the node called ``name``."""
        return [edge for edge in self.edges if name in (edge.source, edge.target)]

    def num_parts(self, edge: Edge) -> int:
        """Into how many parts, each with memory of its own, ``edge`` is split."""
        return self.node(edge.target).replicas if edge.split or edge.each else 1

    def parts_of(self, edge: Edge, client: int) -> list[int]:
        """To which parts replica ``client`` of the source belongs; the replicas that serve it."""
        parts = self.num_parts(edge)
        if edge.each:
            return list(range(parts))
        return [client * parts // self.node(edge.source).replicas]

    def clients_of(self, edge: Edge, part: int) -> list[int]:
        """The replicas of the source that belong to ``part``."""
        replicas = range(self.node(edge.source).replicas)
        return [client for client in replicas if part in self.parts_of(edge, client)]
