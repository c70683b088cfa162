"""What a run takes in memory, told before it begins: one sum over its plan and its program.

::

    needs = estimate(plan)
    needs.total                     # bytes, on all hosts together
    str(needs)                      # "1.2 GB (update 834 MB, processes 157 MB, ...)"

Ports know every array that roles share; nodes say what each replica ``holds`` to itself; what an
update takes follows from what the network keeps for its gradient, which is looked up by trying it
on one observation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rookery.algos.dqn import DQNConfig
from rookery.core.ports import Kind
from rookery.core.spec import ArraySpec
from rookery.envs.atari import may_be_game
from rookery.nets.normalizer import PixelMoments, moments_in
from rookery.params.optimizer import statistic_names
from rookery.programs.graph import Held, Node, Program
from rookery.programs.plan import Plan
from rookery.programs.render import size

PROCESS_BYTES = 160_000_000
"""Of a process that has imported torch and every role, as its share of pages that several have."""
ENV_WORKER_BYTES = 25_000_000
"""Of a process that only steps environments."""
ENV_BYTES = 200_000
"""Of an environment: one written in Python takes 0.002 to 0.8 MB."""
GAME_BYTES = 1_600_000
"""Of an Atari game."""
ROW_BYTES = 80
"""Of each step that an update makes targets of: rewards, advantages and what they are made by."""
BACKWARD = 2.5
"""How much larger an update is than what it keeps for its gradient: 1.3 to 4 times, measured on
eight networks."""
COPIES, LEARNED_COPIES = 3, 3
"""Of the weights in every process; and in one that learns, beside the optimizer's statistics."""
_NAMES: dict[Kind, str] = {"stream": "rollouts", "call": "batches"}
_OTHERS = {"reports": "reports", "shard": "gradients"}
"""What ports hold that is nothing that their kind usually carries."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes by what they are for, the most first."""

    parts: dict[str, int]
    largest: int
    """Of the process that takes the most."""
    at_most: int
    """All bytes if no image can be compressed."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        shown = [(what, num) for what, num in self.parts.items() if num >= 0.02 * self.total]
        parts = ", ".join(f"{what} {size(num)}" for what, num in shown)
        return f"{size(self.total)} ({parts})"


def estimate(plan: Plan) -> Needs:
    """What the run of ``plan`` takes, once replay is full."""
    program = plan.program()
    parts: dict[str, int] = {}
    each: dict[str, int] = {}
    unpacked = 0
    for held, node in _everything(plan, program):
        times = node.replicas if node is not None else 1
        parts[held.what] = parts.get(held.what, 0) + times * held.num_bytes
        unpacked += times * max(held.at_most - held.num_bytes, 0)
        if node is not None:
            each[node.name] = each.get(node.name, 0) + held.num_bytes
    ordered = dict(sorted(parts.items(), key=lambda item: -item[1]))
    return Needs(ordered, max(each.values()), sum(ordered.values()) + unpacked)


def _everything(plan: Plan, program: Program) -> Iterator[tuple[Held, Node | None]]:
    """All that is held: by each replica of a node, or by nobody in particular."""
    yield from _shared(plan, program)
    yield from ((held, None) for held in _processes(plan, program))
    for node in program.nodes:
        holds = node.holds or (update_of_rollouts if node.computes else _nothing)
        for held in (*_weights(plan, node), *holds(plan)):
            yield held, node


def _nothing(plan: Plan) -> Iterator[Held]:
    yield from ()


def _shared(plan: Plan, program: Program) -> Iterator[tuple[Held, Node | None]]:
    """The arrays of all edges; between ranks, both ends have them."""
    copies = 2 if plan.config.engine == "mpi" else 1
    for edge in program.edges:
        num = sum(spec.num_bytes for spec in edge.port.layout().values())
        num *= program.num_parts(edge) * copies
        usual = _NAMES.get(edge.port.kind, "weights")
        yield Held(_OTHERS.get(edge.port.name, usual), num), None


def _processes(plan: Plan, program: Program) -> Iterator[Held]:
    """Processes, and environments, the evaluator's among them."""
    config, env = plan.config, plan.config.env
    replicas = sum(node.replicas for node in program.nodes)
    idle = sum(node.replicas for node in program.nodes if not node.busy)
    # A driver and a fork server at least; of ranks, who is not busy sits with another.
    known = {"inline": 1, "local": replicas + 2, "ray": replicas + 3}
    number = known.get(config.engine, replicas - idle)
    yield Held("processes", number * PROCESS_BYTES)
    evaluated = config.eval.num_envs if config.eval.episodes else 0
    each = GAME_BYTES if may_be_game(env.id) else ENV_BYTES
    workers = (plan.num_actors + bool(evaluated)) * env.num_workers
    workers *= env.backend == "process"
    yield Held("environments", (env.num_envs + evaluated) * each + workers * ENV_WORKER_BYTES)


def _weights(plan: Plan, node: Node) -> Iterator[Held]:
    """Of one replica: its own weights, its gradient and the optimizer's statistics."""
    copies = COPIES
    if node.computes:
        copies += LEARNED_COPIES + len(statistic_names(plan.config.optimizer))
    yield Held("weights", copies * plan.params_bytes)


# ---- an update -----------------------------------------------------------------------------------


def update_of_rollouts(plan: Plan) -> Iterator[Held]:
    """What one replica copies and computes to learn from one batch of rollouts."""
    algo = plan.config.on_policy
    steps = algo.rollout_steps * plan.batch_columns
    minibatch = ceil(steps / algo.num_minibatches)
    learned = _computed(plan, minibatch) + _rows(plan, minibatch)
    yield Held("update", ROW_BYTES * steps + max(learned, _statistics(plan, steps)))


def worker_holds(plan: Plan) -> Iterator[Held]:
    """What one replica has that acts and learns from that: rollouts of its own too."""
    yield from update_of_rollouts(plan)
    yield Held("rollouts", _num_bytes(plan.rollout(plan.batch_columns)))


def update_of_sequences(plan: Plan, num_sequences: int) -> Iterator[Held]:
    """What one replica copies and computes to learn from so many sequences out of replay."""
    algo = plan.config.algo_config
    assert isinstance(algo, DQNConfig)
    seen = algo.sequence.num_steps * num_sequences
    learned = seen - algo.burn_in * num_sequences
    yield Held("update", _computed(plan, learned) + _rows(plan, seen))


def _rows(plan: Plan, steps: int) -> int:
    """Bytes of so many steps as they are stored."""
    return _num_bytes(plan.rollout(1)) * steps // plan.config.algo_config.rollout_steps


def _num_bytes(arrays: Mapping[str, ArraySpec]) -> int:
    return sum(spec.num_bytes for spec in arrays.values())


def _computed(plan: Plan, samples: int) -> int:
    """Bytes of the network's passes over ``samples`` observations, in main memory."""
    on_cpu = torch.device(plan.config.device).type == "cpu"
    return int(BACKWARD * samples * sample_bytes(plan.network)) if on_cpu else 0


def _statistics(plan: Plan, steps: int) -> int:
    """Bytes to bring statistics of float observations up to date: a copy, and three of doubles."""
    found = moments_in(plan.network.encoder).values()
    numbers = [part.mean.numel() for part in found if not isinstance(part, PixelMoments)]
    return steps * sum(numbers) * (4 + 3 * 8)


@lru_cache(maxsize=1)
def sample_bytes(network: Any) -> int:
    """What the network keeps of one observation until its gradient is computed."""
    tried = copy.deepcopy(network)  # layers of the user's may count what passes
    with torch.random.fork_rng(devices=[]):
        return _kept(tried, 3) - _kept(tried, 2)


def _kept(network: Any, num: int) -> int:
    """Bytes that passing ``num`` observations forward keeps, the network's own left out."""
    own = {_place(tensor) for tensor in (*network.parameters(), *network.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[_place(tensor)] = tensor  # alive, so that nothing else takes its place
        return tensor

    # Action values and memories are of sequences [T, N]; the rest is flattened to [N] before.
    lead = (num,) if network.kind == "actor-critic" and not network.recurrent else (1, num)
    obs = {
        name: torch.from_numpy(np.zeros((*lead, *leaf.shape), leaf.dtype))
        for name, leaf in network.signature.obs.items()
    }
    reset = torch.zeros(lead, dtype=torch.bool)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda told: told):
        network.unroll(obs, network.initial_state(num), reset)
    return sum(
        tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own
    )


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
