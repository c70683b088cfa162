"""What the processes of formation ``hogwild`` share: weights, counts, what they tell, pulses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rookery.algos.algorithm import build_algorithm
from rookery.core.group import Alone
from rookery.core.signature import Signature
from rookery.core.spec import ArraySpec
from rookery.engines.wiring import Vitals, vital_specs
from rookery.nets.normalizer import moments_in
from rookery.params.flat import FlatParams
from rookery.params.hogwild import HogwildMemory, hogwild_specs
from rookery.programs.formations import HogwildConfig
from rookery.roles.build import build_learner, build_policy, torch_device
from rookery.roles.hogwild import MOST_METRICS, HogwildLearner, HogwildRings, Holder
from rookery.roles.learner import Learner
from rookery.runs.config import RunConfig
from rookery.transport.memory import ParamCell
from rookery.transport.ring import Rings, ring_specs
from rookery.transport.shared_memory import SharedArena

UPDATES_KEPT, EPISODES_KEPT = 1024, 4096
"""Of each worker, until the keeper has read them; it looks many times a second."""


@dataclass(slots=True)
class HogwildWiring(Vitals):
    """Shared memory of one set of workers; the same in every process."""

    @classmethod
    def create(cls, config: RunConfig, signature: Signature) -> HogwildWiring:
        """Allocate everything (in the driver)."""
        for worker in range(config.formation_config.num_processes):
            torch_device(on_worker(config, worker))
        return cls(config, SharedArena.create(_specs(config, signature)))

    @classmethod
    def attach(cls, config: RunConfig, signature: Signature, fds: dict[str, Any]) -> HogwildWiring:
        """Find everything by the descriptors inherited (in a child)."""
        return cls(config, SharedArena(fds["arena"], _specs(config, signature)))

    def descriptors(self) -> dict[str, Any]:
        """What a child needs to :meth:`attach`."""
        return {"arena": self.arena.descriptor}

    def pass_fds(self) -> list[int]:
        """Descriptors that a child must inherit."""
        return [self.arena.descriptor]

    def memory(self) -> HogwildMemory:
        """What the workers share."""
        return HogwildMemory(self.arena.group("shared/"))

    def rings(self) -> HogwildRings:
        """What the workers tell."""
        return HogwildRings(
            Rings(self.arena.group("updates/")), Rings(self.arena.group("episodes/"))
        )

    def build_worker_learner(
        self, config: RunConfig, signature: Signature, *, worker: int, **ports: Any
    ) -> Learner:
        """The learner of a worker."""
        kind = partial(HogwildLearner, memory=self.memory(), rings=self.rings(), worker=worker)
        return build_learner(config, signature, kind=kind, **ports)

    def build_holder(self, signature: Signature) -> Holder:
        """The keeper's hold on all of it."""
        kind = partial(Holder, memory=self.memory(), worker=0)
        holder = build_learner(
            in_main_memory(self.config), signature, source=_NOTHING, params=ParamCell(), kind=kind
        )
        assert isinstance(holder, Holder)
        return holder

    def close(self) -> None:
        """Let go of all descriptors."""
        self.arena.close()


_NOTHING: Any = None
"""The keeper learns from no rollouts."""


class Replica(Alone):
    """Number ``rank`` of those who do not wait for each other."""

    def __init__(self, rank: int) -> None:
        self.rank = rank


def on_worker(config: RunConfig, worker: int) -> RunConfig:
    """``config`` with the device that ``worker`` computes on."""
    formation = config.formation_config
    assert isinstance(formation, HogwildConfig)
    devices = formation.devices or (config.device,)
    return replace(config, device=devices[worker % len(devices)])


def in_main_memory(config: RunConfig) -> RunConfig:
    """``config`` with the device of what is shared."""
    return replace(config, device="cpu")


def _specs(config: RunConfig, signature: Signature) -> dict[str, ArraySpec]:
    config = in_main_memory(config)
    formation = config.formation_config
    assert isinstance(formation, HogwildConfig)
    policy = build_policy(config, signature)
    algorithm = build_algorithm(
        config.algo, config.algo_config, recurrent=policy.recurrent, device=policy.device
    )
    named = moments_in(policy) | algorithm.moments()
    num_workers = formation.num_workers
    groups = {
        "shared/": hogwild_specs(
            num_workers,
            FlatParams(policy).data.numel(),
            config.optimizer,
            {name: tuple(moments.mean.shape) for name, moments in named.items()},
            shared_statistics=formation.shared_statistics,
        ),
        "updates/": ring_specs(num_workers, UPDATES_KEPT, 3 + MOST_METRICS),
        "episodes/": ring_specs(num_workers, EPISODES_KEPT, 2 + len(config.metrics.info_keys)),
    }
    return vital_specs(num_workers) | {
        f"{prefix}{name}": spec for prefix, specs in groups.items() for name, spec in specs.items()
    }
