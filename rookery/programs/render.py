"""A program as a picture: Mermaid for pages, plain text for terminals."""

from __future__ import annotations

from rookery.programs.graph import PORTS, Program


def to_mermaid(program: Program) -> str:
    """A Mermaid flow chart."""
    lines = ["flowchart LR"]
    for node in program.nodes:
        times = f" x{node.replicas}" if node.replicas > 1 else ""
        lines.append(f'  {node.name}["{node.name}{times}<br/>{node.about}"]')
    for edge in program.edges:
        label = f"{edge.port}" + (f" ({edge.link})" if edge.link else "")
        lines.append(f'  {edge.source} -- "{label}" --> {edge.target}')
    return "\n".join(lines) + "\n"


def to_text(program: Program, engine: str) -> str:
    """A few aligned lines: who, what they exchange, and what carries it."""
    lines = [f"program {program.name} on engine {engine}", "", "roles"]
    width = max(len(node.name) for node in program.nodes) + 5
    for node in program.nodes:
        threads = f"{node.num_threads} thread" + ("s" if node.num_threads > 1 else "")
        who = f"{node.name} x{node.replicas}"
        lines.append(f"  {who:<{width}} {threads:<10} {node.about}")
    lines += ["", "edges"]
    for edge in program.edges:
        route = f"{edge.source} -> {edge.target}"
        lines.append(f"  {route:<24} {edge.port:<12} {edge.link or '?':<14} {PORTS[edge.port]}")
    return "\n".join(lines) + "\n"
