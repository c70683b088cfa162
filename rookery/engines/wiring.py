"""What the processes of the local engine share: memory, bells, and how each end finds its part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.core.signature import Signature
from rookery.core.spec import Array, ArraySpec
from rookery.params.flat import FlatParams
from rookery.params.shared_memory import SharedParams, param_specs
from rookery.roles import pulse
from rookery.roles.build import batch_spec, build_policy
from rookery.runs.config import RunConfig
from rookery.transport.memory import BlockSink, BlockSource, RolloutBlock
from rookery.transport.shared_memory import SharedArena
from rookery.transport.wake import Wake

RESTARTS = 0


@dataclass(slots=True)
class Vitals:
    """What the memory of every fleet holds of its processes: pulses, and what the driver counts."""

    config: RunConfig
    arena: SharedArena

    def acting_pulse(self, replica: int) -> Array:
        """Cells of the pulse of the replica that acts."""
        cells: Array = self.arena.arrays["pulse"][replica]
        return cells

    def acting_pulses(self) -> list[Array]:
        """The pulses of all that act."""
        return [
            self.acting_pulse(replica)
            for replica in range(self.config.formation_config.num_processes)
        ]

    def evaluator_pulse(self) -> Array:
        """Cells of the evaluator's pulse."""
        cells: Array = self.arena.arrays["pulse"][-1]
        return cells

    @property
    def counters(self) -> Array:
        """What the driver counts: restarts."""
        return self.arena.arrays["counters"]


@dataclass(slots=True)
class Wiring(Vitals):
    """Shared memory and bells of actors and a learner; the same in every process."""

    learner_bell: Wake
    actor_bells: list[Wake]

    @classmethod
    def create(cls, config: RunConfig, signature: Signature) -> Wiring:
        """Allocate everything (in the driver)."""
        arena = SharedArena.create(_specs(config, signature))
        bells = [Wake.create() for _ in range(config.formation_config.num_processes)]
        return cls(config, arena, Wake.create(), bells)

    @classmethod
    def attach(cls, config: RunConfig, signature: Signature, fds: dict[str, Any]) -> Wiring:
        """Find everything by the descriptors inherited (in a child)."""
        return cls(
            config,
            SharedArena(fds["arena"], _specs(config, signature)),
            Wake(fds["learner_bell"]),
            [Wake(fd) for fd in fds["actor_bells"]],
        )

    def descriptors(self) -> dict[str, Any]:
        """What a child needs to :meth:`attach`."""
        return {
            "arena": self.arena.descriptor,
            "learner_bell": self.learner_bell.descriptor,
            "actor_bells": [bell.descriptor for bell in self.actor_bells],
        }

    def pass_fds(self) -> list[int]:
        """Descriptors that a child must inherit."""
        return [
            self.arena.descriptor,
            self.learner_bell.descriptor,
            *(bell.descriptor for bell in self.actor_bells),
        ]

    def _block(self) -> RolloutBlock:
        return RolloutBlock(
            self.arena.group("block/"),
            self.arena.arrays["flags"],
            num_actors=self.config.formation_config.num_processes,
            num_envs=self.config.env.num_envs,
        )

    def sink(self, replica: int) -> BlockSink:
        """Actor ``replica``'s end of the experience edge."""
        return BlockSink(
            self._block(), replica, own=self.actor_bells[replica], other=self.learner_bell
        )

    def source(self) -> BlockSource:
        """The learner's end of the experience edge."""
        return BlockSource(self._block(), own=self.learner_bell, others=self.actor_bells)

    def params(self) -> SharedParams:
        """Either end of the params edge."""
        return SharedParams(self.arena.group("params/"))

    def close(self) -> None:
        """Let go of all descriptors."""
        self.arena.close()
        for bell in (self.learner_bell, *self.actor_bells):
            bell.close()


def vital_specs(num_acting: int) -> dict[str, ArraySpec]:
    """The arrays of :class:`Vitals`."""
    return {
        # One row a cache line: each process writes its own at every step. The last: the evaluator.
        "pulse": ArraySpec((num_acting + 1, max(pulse.SIZE, 8)), np.dtype(np.float64)),
        "counters": ArraySpec((8,), np.dtype(np.int64)),
    }


def _specs(config: RunConfig, signature: Signature) -> dict[str, ArraySpec]:
    num_actors = config.formation_config.num_processes
    slots = num_actors * config.algo_config.rollouts_per_update
    policy = build_policy(config, signature)
    block = batch_spec(config, policy, slots * config.env.num_envs)
    params = param_specs(FlatParams(policy).tensors())
    return {
        "flags": ArraySpec((slots,), np.dtype(np.int64)),
        **vital_specs(num_actors),
        **{f"params/{name}": spec for name, spec in params.items()},
        **{f"block/{name}": spec for name, spec in block.items()},
    }
