"""A program is checked before anything starts; what is wrong comes with its remedy."""

from __future__ import annotations

from collections.abc import Mapping

from rookery.core.errors import UserError
from rookery.programs.graph import PORTS, Link, Program


def validate(program: Program, engine: str, carries: Mapping[str, Link]) -> None:
    """Refuse a program that is not wired, or that ``engine`` cannot carry.

    ``carries`` maps each port the engine can carry to the link it uses.
    """
    names = [node.name for node in program.nodes]
    if len(set(names)) != len(names):
        raise UserError(f"program {program.name}: two nodes have the same name; rename one")
    for node in program.nodes:
        if node.replicas < 1:
            raise UserError(f"program {program.name}: {node.name} has no replicas; give it one")
    _check_edges(program, engine, carries)
    _check_needs(program)


def _check_edges(program: Program, engine: str, carries: Mapping[str, Link]) -> None:
    for edge in program.edges:
        where = f"program {program.name}: edge {edge.source} -> {edge.target} ({edge.port})"
        known = {node.name for node in program.nodes}
        missing = {edge.source, edge.target} - known
        if missing:
            raise UserError(f"{where}: no node is called {sorted(missing)[0]}; add it")
        if edge.port not in PORTS:
            raise UserError(f"{where}: no such port; one of {', '.join(sorted(PORTS))}")
        if edge.port not in program.node(edge.target).serves:
            raise UserError(
                f"{where}: {edge.target} does not serve {edge.port}; join it to a node that does"
            )
        if edge.port not in carries:
            raise UserError(
                f"{where}: engine {engine} cannot carry {PORTS[edge.port]}; choose another --engine"
            )
        replicas = program.node(edge.source).replicas
        if edge.source == edge.target and carries[edge.port] == "call" and replicas > 1:
            raise UserError(
                f"engine {engine} is one thread and carries one {edge.source}, not {replicas}: "
                f"--engine local, or --{edge.source}s 1"
            )
        if edge.link is not None and edge.link != carries[edge.port]:
            raise UserError(
                f"{where}: engine {engine} carries {edge.port} by {carries[edge.port]}, "
                f"not by {edge.link}; choose another --engine"
            )


def _check_needs(program: Program) -> None:
    for node in program.nodes:
        wired = [edge.port for edge in program.edges if edge.source == node.name]
        for port in sorted(node.needs):
            if wired.count(port) != 1:
                raise UserError(
                    f"program {program.name}: {node.name} needs one edge for {port} and has "
                    f"{wired.count(port)}; join it to one node that serves {port}"
                )
