"""A program as a picture: Mermaid for pages, plain text for terminals."""

from __future__ import annotations

from collections.abc import Mapping

from rookery.core.ports import Kind
from rookery.programs.graph import Edge, Link, Node, Program
from rookery.programs.plan import Plan


def to_mermaid(program: Program, plan: Plan, links: Mapping[Kind, Link]) -> str:
    """A Mermaid flow chart; heartbeats are left out."""
    lines = ["flowchart LR"]
    for node in program.nodes:
        times = f" x{node.replicas}" if node.replicas > 1 else ""
        lines.append(f'  {node.name}["{node.name}{times}<br/>{_about(node, plan)}"]')
    for edge in program.edges:
        if edge.port.name != "vitals":
            label = f"{edge.port.name} ({link_of(program, edge, links)})"
            lines.append(f'  {edge.source} -- "{label}" --> {edge.target}')
    return "\n".join(lines) + "\n"


def to_text(program: Program, plan: Plan, links: Mapping[Kind, Link]) -> str:
    """A few aligned lines: who, what they exchange, what carries it and how many bytes."""
    lines = [f"program {program.name} on engine {plan.config.engine}, {_hosts(plan)}", "", "roles"]
    width = max(len(node.name) for node in program.nodes) + 5
    for node in program.nodes:
        threads = f"{node.num_threads} thread" + ("s" if node.num_threads > 1 else "")
        who = f"{node.name} x{node.replicas}"
        lines.append(f"  {who:<{width}} {threads:<10} {_about(node, plan)}")
    lines += ["", "edges"]
    for edge in program.edges:
        route = f"{edge.source} -> {edge.target}"
        num_bytes, per = edge.port.traffic()
        link = link_of(program, edge, links)
        lines.append(
            f"  {route:<22} {edge.port.name:<12} {link:<14} "
            f"{size(num_bytes):>9} / {per:<11} {edge.port.about}"
        )
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _hosts(plan: Plan) -> str:
    """The machines that take part, or may."""
    config = plan.config
    if config.hosts.listen is None:
        return "1 host"
    run = []
    if config.num_places:
        first, last = config.num_acting_here, config.num_acting - 1
        run.append(f"whose actors have places {first} to {last}")
    if config.hosts.leaves:
        run.append(f"which run {' and '.join(config.hosts.leaves)}")
    return f"1 host and those that join, {', '.join(run)} (link grpc)"


def _about(node: Node, plan: Plan) -> str:
    """What the node does, with its share of the environments."""
    if not node.has_envs:
        return node.about
    total = plan.config.env.num_envs
    each = (
        f"{plan.envs_each} of {total} environments"
        if node.replicas > 1
        else f"{total} environments"
    )
    return f"{each}, {node.about}" if node.about else each


def link_of(program: Program, edge: Edge, links: Mapping[Kind, Link]) -> Link:
    """What carries ``edge``: nothing but a call between roles that take turns in one process."""
    ends = program.node(edge.source), program.node(edge.target)
    apart = all(node.busy for node in ends) or links["cell"] == "shared_memory"
    return links[edge.port.kind] if apart else "call"


def size(num_bytes: float) -> str:
    """``3.2 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.3g} TB"
