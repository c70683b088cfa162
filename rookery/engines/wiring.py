"""What the processes of the local engine share: memory, bells, and how each end finds its part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rookery.core.ports import ExperienceSink
from rookery.core.signature import Signature
from rookery.core.spec import Array, ArraySpec
from rookery.params.flat import FlatParams
from rookery.params.shared_memory import SharedParams, param_specs
from rookery.roles import pulse
from rookery.roles.actor import Actor
from rookery.roles.build import batch_spec, build_actor, build_learner, build_policy
from rookery.roles.explorer import Explorer
from rookery.roles.learner import Learner
from rookery.roles.replay_learner import ReplayLearner
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

    def inherit(self, checkpoint: Path) -> None:
        """Begin with what processes left that ``checkpoint`` was made of: nothing, here."""

    def shares(self, role: str) -> dict[str, float]:
        """Where the time of those that act, which are called ``role``, goes, and who else waits."""
        rows = [pulse.shares(cells) for cells in self.acting_pulses()]
        fleet = {
            f"fleet/{role}s": len(rows),
            f"fleet/{role}_env_share": sum(row["env"] for row in rows) / len(rows),
            f"fleet/{role}_wait_share": sum(row["wait"] for row in rows) / len(rows),
            "fleet/restarts": int(self.counters[RESTARTS]),
        }
        evaluator = self.evaluator_pulse()
        if evaluator[pulse.START]:
            fleet["fleet/evaluator_wait_share"] = pulse.shares(evaluator)["wait"]
        return fleet


class FleetSource(Protocol):
    """What a learner's process asks of its end beside what the learner does."""

    def missing(self) -> list[int]:
        """Actors that are waited for."""
        ...


@dataclass(slots=True)
class Wiring(Vitals):
    """Shared memory and bells of actors and a learner; the same in every process."""

    learner_bell: Wake
    actor_bells: list[Wake]

    @classmethod
    def create(cls, config: RunConfig, signature: Signature) -> Wiring:
        """Allocate everything (in the driver)."""
        arena = SharedArena.create(cls.specs(config, signature))
        bells = [Wake.create() for _ in range(config.formation_config.num_processes)]
        return cls(config, arena, Wake.create(), bells)

    @classmethod
    def attach(cls, config: RunConfig, signature: Signature, fds: dict[str, Any]) -> Wiring:
        """Find everything by the descriptors inherited (in a child)."""
        return cls(
            config,
            SharedArena(fds["arena"], cls.specs(config, signature)),
            Wake(fds["learner_bell"]),
            [Wake(fd) for fd in fds["actor_bells"]],
        )

    @staticmethod
    def specs(config: RunConfig, signature: Signature) -> dict[str, ArraySpec]:
        """The arrays of the shared memory."""
        num_actors = config.formation_config.num_processes
        slots = num_actors * config.on_policy.rollouts_per_update
        policy = build_policy(config, signature)
        block = batch_spec(config, policy, slots * config.env.num_envs)
        return {
            "flags": ArraySpec((slots,), np.dtype(np.int64)),
            **vital_specs(num_actors),
            **prefixed("params/", param_specs(FlatParams(policy).tensors())),
            **prefixed("block/", block),
        }

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

    def sink(self, replica: int) -> ExperienceSink:
        """Actor ``replica``'s end of the experience edge."""
        return BlockSink(
            self._block(), replica, own=self.actor_bells[replica], other=self.learner_bell
        )

    def build_actor(
        self, signature: Signature, replica: int, *, life: int, start_steps: int
    ) -> Actor | Explorer:
        """Actor ``replica`` with its ends of the edges."""
        return build_actor(
            self.config,
            signature,
            replica,
            sink=self.sink(replica),
            params=self.params(),
            life=life,
            start_steps=start_steps,
            pulse=pulse.Pulse(self.acting_pulse(replica)),
        )

    def build_learner(self, signature: Signature) -> tuple[Learner | ReplayLearner, FleetSource]:
        """The learner of these actors, and its end of the experience edge."""
        source = BlockSource(self._block(), own=self.learner_bell, others=self.actor_bells)
        ports: dict[str, Any] = {"source": source, "params": self.params()}
        return build_learner(self.config, signature, **ports), source

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


def prefixed(prefix: str, specs: dict[str, ArraySpec]) -> dict[str, ArraySpec]:
    """``specs`` under names that :meth:`SharedArena.group` finds."""
    return {f"{prefix}{name}": spec for name, spec in specs.items()}
