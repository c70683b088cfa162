"""A program is checked before anything starts; what is wrong comes with its remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rookery.core.errors import UserError
from rookery.core.ports import Kind
from rookery.programs.graph import Link, Program


def validate(
    program: Program, engine: str, carries: Mapping[Kind, Link], *, concurrent: bool = True
) -> None:
    """Refuse a program that is not wired, or that ``engine`` cannot carry.

    ``carries`` maps each kind of port the engine can carry to the link it uses; ``concurrent``:
    roles run at the same time.
    """
    where = f"program {program.name}"
    for name, count in Counter(node.name for node in program.nodes).items():
        if count > 1:
            raise UserError(f"{where}: two nodes are called {name}; rename one")
    for node in program.nodes:
        if node.replicas < 1:
            raise UserError(f"{where}: {node.name} has no replicas; give it one")
        served = [edge for edge in program.edges if edge.target == node.name]
        if node.may_join and (node.replicas > 1 or any(e.port.kind != "call" for e in served)):
            raise UserError(
                f"{where}: {node.name} may not be left to hosts: that is for one replica which "
                "serves only calls; set may_join to False"
            )
    for key, count in Counter(edge.key for edge in program.edges).items():
        if count > 1:
            raise UserError(f"{where}: edge {key} is there twice; remove one")
    _check_edges(program, engine, carries, concurrent)
    program.owner  # noqa: B018  exactly one
    program.acting  # noqa: B018  there is one


def _check_edges(
    program: Program, engine: str, carries: Mapping[Kind, Link], concurrent: bool
) -> None:
    for edge in program.edges:
        where = f"program {program.name}: edge {edge.source} -> {edge.target} ({edge.port.name})"
        source, target = program.node(edge.source), program.node(edge.target)
        if edge.port.kind not in carries:
            raise UserError(
                f"{where}: engine {engine} cannot carry {edge.port.about}; choose another --engine"
            )
        if edge.among_peers and source.replicas > 1 and not concurrent:
            raise UserError(
                f"engine {engine} is one thread and carries one {edge.source}, not "
                f"{source.replicas}: --engine local, or --{edge.source}s 1"
            )
        if edge.split and source.replicas % target.replicas:
            raise UserError(
                f"{where}: {source.replicas} cannot be divided among {target.replicas}; "
                f"have a multiple of {target.replicas}"
            )
