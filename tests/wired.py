"""The roles of a program in one thread, wired as engines wire them, and ends made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rookery.algos.dqn import DQNConfig
from rookery.carriers.heap import allocate
from rookery.core.ports import End, InTurn, Port, Wakeup
from rookery.core.sequence import StepSpec
from rookery.core.spec import Arrays, ArraySpec
from rookery.core.tensors import Tensors
from rookery.engines.assemble import Wired, layouts
from rookery.engines.loop import Member, build_member
from rookery.nets.policy import Policy
from rookery.programs.graph import Edge, Program
from rookery.programs.plan import Plan
from rookery.runs.config import RunConfig
from rookery.transport.weights import WeightsCell, WeightsPort


def in_turn(program: Program) -> dict[str, list[Wakeup]]:
    """Wake-ups of replicas that take turns."""
    return {node.name: [InTurn() for _ in range(node.replicas)] for node in program.nodes}


class Crew:
    """All roles of ``config``, each built when it is asked for.

    ::

        crew = Crew(config)
        learner = crew.role("learner")
        actors = crew.roles("actor")
    """

    def __init__(
        self,
        config: RunConfig,
        run: Any = None,
        wakeups: Mapping[str, list[Wakeup]] | None = None,
    ) -> None:
        """Without the directory of a ``run`` nothing is saved beside checkpoints."""
        self.plan, self.run = Plan.of(config), run
        self.program = self.plan.program()
        arrays = allocate(layouts(self.program))
        self.wired = Wired(self.program, arrays, wakeups or in_turn(self.program))

    def member(self, name: str, replica: int = 0, **given: Any) -> Member:
        """A replica and what belongs to it; see :func:`build_member`."""
        node = self.program.node(name)
        return build_member(self.wired, self.plan, node, replica, run=self.run, **given)

    def role(self, name: str, replica: int = 0, **given: Any) -> Any:
        """A replica."""
        return self.member(name, replica, **given).role

    def roles(self, name: str) -> list[Any]:
        """All replicas."""
        return [self.role(name, replica) for replica in range(self.program.node(name).replicas)]

    def edge(self, port: str, source: str | None = None) -> Edge:
        """The edge of the port called ``port``."""
        (found,) = [
            edge
            for edge in self.program.edges
            if edge.port.name == port and source in (None, edge.source)
        ]
        return found

    def memory(self, port: str, source: str | None = None) -> Arrays:
        """The arrays of that edge."""
        return self.wired.memory(self.edge(port, source))


def ends(port: Port, arrays: Arrays | None = None, replicas: int = 1) -> tuple[list[Any], Any]:
    """Clients and the server of ``port`` around one memory, in one thread."""
    memory = allocate(port.layout()) if arrays is None else arrays
    clients = [port.client(End(memory, replica)) for replica in range(replicas)]
    return clients, port.server(End(memory))


def step_spec_of(config: DQNConfig, policy: Policy) -> StepSpec:
    """What one step looks like of an environment that ``policy`` was made for."""
    return StepSpec(
        obs={name: leaf.array for name, leaf in policy.signature.obs.items()},
        action=policy.signature.action.array,
        state=dict(policy.state_spec),
        extra=config.extra,
    )


def weights_cell(like: Tensors) -> WeightsCell:
    """A cell for weights like these."""
    specs = {
        name: ArraySpec(tuple(tensor.shape), tensor.detach().cpu().numpy().dtype)
        for name, tensor in like.items()
    }
    return WeightsCell(allocate(WeightsPort(specs).layout()))


def got(cell: WeightsCell, newer_than: int = -1) -> tuple[int, Tensors] | None:
    """The version and the weights that are newer, if there are any."""
    into = {name: torch.empty_like(value) for name, value in cell.values.items()}
    version = cell.get(newer_than, into)
    return None if version is None else (version, into)
