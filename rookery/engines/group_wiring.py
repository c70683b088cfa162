"""What workers on one machine share: the memory of their group, bells and pulses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rookery.core.signature import Signature
from rookery.core.spec import ArraySpec
from rookery.engines.wiring import Vitals, vital_specs
from rookery.params.flat import FlatParams
from rookery.roles.build import batch_spec, build_policy
from rookery.roles.pulse import Pulse
from rookery.runs.config import RunConfig
from rookery.transport.shared_group import SharedGroup, group_specs
from rookery.transport.shared_memory import SharedArena
from rookery.transport.wake import Wake


@dataclass(slots=True)
class GroupWiring(Vitals):
    """Shared memory and bells of one group; the same in every process."""

    bells: list[Wake]

    @classmethod
    def create(cls, config: RunConfig, signature: Signature) -> GroupWiring:
        """Allocate everything (in the driver)."""
        bells = [Wake.create() for _ in range(config.formation_config.num_processes)]
        return cls(config, SharedArena.create(_specs(config, signature)), bells)

    @classmethod
    def attach(cls, config: RunConfig, signature: Signature, fds: dict[str, Any]) -> GroupWiring:
        """Find everything by the descriptors inherited (in a child)."""
        arena = SharedArena(fds["arena"], _specs(config, signature))
        return cls(config, arena, [Wake(fd) for fd in fds["bells"]])

    def descriptors(self) -> dict[str, Any]:
        """What a child needs to :meth:`attach`."""
        return {
            "arena": self.arena.descriptor,
            "bells": [bell.descriptor for bell in self.bells],
        }

    def pass_fds(self) -> list[int]:
        """Descriptors that a child must inherit."""
        return [self.arena.descriptor, *(bell.descriptor for bell in self.bells)]

    def group(self, replica: int, own: Pulse) -> SharedGroup:
        """Worker ``replica``'s end of the group; waits are noted in its pulse."""
        return SharedGroup(self.arena.group("group/"), replica, self.bells, waiting=own.waiting)

    def close(self) -> None:
        """Let go of all descriptors."""
        self.arena.close()
        for bell in self.bells:
            bell.close()


def _specs(config: RunConfig, signature: Signature) -> dict[str, ArraySpec]:
    size = config.formation_config.num_processes
    policy = build_policy(config, signature)
    flat = FlatParams(policy)
    columns = config.env.num_envs * config.on_policy.rollouts_per_update
    steps = batch_spec(config, policy, columns)["reward"].shape[0]
    episodes = steps * columns * (2 + len(config.metrics.info_keys)) * 8
    moments = max((tensor.numel() for tensor in flat.buffers.values()), default=0) + 1
    num_bytes = max(flat.grad_and_weight.numel() * 4, episodes, moments * 8, 4096)
    shared = group_specs(size, -(-num_bytes // 64) * 64)
    return {
        **vital_specs(size),
        **{f"group/{name}": spec for name, spec in shared.items()},
    }
