"""What the processes of formation ``replay`` share: rings of steps, slots of batches, weights; and
several learners the memory of their group."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rookery.core.signature import Signature
from rookery.core.spec import Array, ArraySpec
from rookery.engines.inherited import bequest_part, inherit, read_bequests
from rookery.engines.replayed import build_explorer, build_replay_learner, replay_configs, told_keys
from rookery.engines.wiring import Vitals, Wiring, prefixed, vital_specs
from rookery.nets.normalizer import moments_in
from rookery.nets.policy import Policy
from rookery.nets.q_network import QNetwork
from rookery.params.flat import FlatParams
from rookery.params.hogwild import HogwildMemory, hogwild_specs
from rookery.params.sharded import Shards, shard_specs
from rookery.params.shared_memory import param_specs
from rookery.roles.build import build_policy
from rookery.roles.curiosity import blank_bequest
from rookery.roles.explorer import Explorer
from rookery.roles.free_learner import FreeLearner
from rookery.roles.pulse import Pulse
from rookery.roles.replay import METRICS, step_spec
from rookery.roles.replay_learner import ReplayLearner
from rookery.runs.checkpoint_files import State
from rookery.runs.config import RunConfig
from rookery.transport.bequests import Bequests, bequest_specs
from rookery.transport.sample_slots import SampleSlots, SlotSource, sample_slot_specs
from rookery.transport.shared_group import SharedGroup, group_specs
from rookery.transport.shared_memory import SharedArena
from rookery.transport.step_rings import RingSink, RingSource, StepRings, step_ring_specs
from rookery.transport.wake import Wake

_LOG = logging.getLogger(__name__)

MIN_RING_SLOTS = 4
WORDS_BYTES = 4096
"""Room for what learners tell each other: metrics, the number of a slot."""


@dataclass(slots=True)
class ReplayWiring(Wiring):
    """Shared memory and bells of actors, replay and learners."""

    replay_bell: Wake
    group_bells: list[Wake]
    """One of each learner, where there are several."""

    @classmethod
    def create(cls, config: RunConfig, signature: Signature) -> ReplayWiring:
        """Allocate everything (in the driver)."""
        arena = SharedArena.create(cls.specs(config, signature))
        bells = [Wake.create() for _ in range(config.formation_config.num_processes)]
        num_learners = replay_configs(config)[0].num_learners
        group = [Wake.create() for _ in range(num_learners)] if num_learners > 1 else []
        return cls(config, arena, Wake.create(), bells, Wake.create(), group)

    @classmethod
    def attach(cls, config: RunConfig, signature: Signature, fds: dict[str, Any]) -> ReplayWiring:
        """Find everything by the descriptors inherited (in a child)."""
        return cls(
            config,
            SharedArena(fds["arena"], cls.specs(config, signature)),
            Wake(fds["learner_bell"]),
            [Wake(fd) for fd in fds["actor_bells"]],
            Wake(fds["replay_bell"]),
            [Wake(fd) for fd in fds["group_bells"]],
        )

    @staticmethod
    def specs(config: RunConfig, signature: Signature) -> dict[str, ArraySpec]:
        """The arrays of the shared memory."""
        formation, algo = replay_configs(config)
        policy = build_policy(config, signature)
        spec, width = step_spec(algo, policy), 2 + len(told_keys(config))
        rings = step_ring_specs(
            spec,
            num_actors=formation.num_actors,
            num_slots=max(2 * algo.rollout_steps, MIN_RING_SLOTS),
            num_envs=config.env.num_envs,
            episode_width=width,
        )
        flat = FlatParams(policy)
        slots = sample_slot_specs(
            spec,
            num_slots=formation.num_slots,
            num_steps=algo.sequence.num_steps,
            batch_size=algo.batch_size,
            episode_width=width,
        )
        return {
            **vital_specs(formation.num_actors),
            "replay_metrics": ArraySpec((len(METRICS),), np.dtype(np.float64)),
            **prefixed("params/", param_specs(flat.tensors())),
            **prefixed("rings/", rings),
            **prefixed("slots/", slots),
            **prefixed("bequests/", _bequest_specs(config, policy)),
            **_learner_specs(config, policy, flat),
        }

    def descriptors(self) -> dict[str, Any]:
        """What a child needs to :meth:`attach`."""
        return Wiring.descriptors(self) | {
            "replay_bell": self.replay_bell.descriptor,
            "group_bells": [bell.descriptor for bell in self.group_bells],
        }

    def pass_fds(self) -> list[int]:
        """Descriptors that a child must inherit."""
        own = [bell.descriptor for bell in (self.replay_bell, *self.group_bells)]
        return [*Wiring.pass_fds(self), *own]

    def rings(self) -> StepRings:
        """What actors put, and replay takes."""
        return StepRings(self.arena.group("rings/"))

    def slots(self) -> SampleSlots:
        """What replay samples, and the learner learns from."""
        return SampleSlots(self.arena.group("slots/"))

    def build_actor(
        self, signature: Signature, replica: int, *, life: int, start_steps: int
    ) -> Explorer:
        """Actor ``replica`` with its ends of the edges."""
        bequests = self.bequests()
        explorer = build_explorer(
            self.config,
            signature,
            replica,
            sink=self.step_sink(replica, life),
            params=self.params(),
            life=life,
            start_steps=start_steps,
            pulse=Pulse(self.acting_pulse(replica)),
            leave=partial(bequests.leave, replica) if bequests.values else None,
        )
        if (left := bequests.read(replica)) is not None:
            inherit(explorer, replica, left)
        return explorer

    def bequests(self) -> Bequests:
        """What actors leave to those that take their places."""
        return Bequests(self.arena.group("bequests/"))

    def inherit(self, checkpoint: Path) -> None:
        """Actors will begin with what those knew that ``checkpoint`` was made of."""
        bequests = self.bequests()
        for actor, left in read_bequests(checkpoint, bequests.num_actors).items():
            if bequests.fits(left):
                bequests.leave(actor, left)
            else:
                _LOG.warning(
                    "actor-%d knows nothing of what actors learned before: its are other arms or "
                    "another number of environments",
                    actor,
                )

    def save_bequests(self) -> dict[str, State]:
        """What a checkpoint keeps of the actors."""
        bequests = self.bequests()
        left = {actor: bequests.read(actor) for actor in range(bequests.num_actors)}
        return bequest_part({actor: found for actor, found in left.items() if found})

    def step_sink(self, replica: int, life: int) -> RingSink:
        """Actor ``replica``'s end of its ring."""
        _, algo = replay_configs(self.config)
        return RingSink(
            self.rings(),
            replica,
            life=life,
            steps_each=algo.rollout_steps,
            own=self.actor_bells[replica],
            other=self.replay_bell,
        )

    def step_source(self) -> RingSource:
        """Replay's end of the rings."""
        return RingSource(self.rings(), self.config.env.num_envs, self.actor_bells)

    @property
    def apart(self) -> int:
        """Learners that do not wait for each other; 1 where all learn as one."""
        formation = replay_configs(self.config)[0]
        return 1 if formation.lockstep else formation.num_learners

    @property
    def sample_bells(self) -> list[Wake]:
        """Of those who wait for batches."""
        return self.group_bells if self.apart > 1 else [self.learner_bell]

    def learned(self) -> HogwildMemory:
        """What learners share that do not wait for each other."""
        return HogwildMemory(self.arena.group("learned/"))

    def shards(self, replica: int, pulse: Pulse) -> Shards | None:
        """What learner ``replica`` holds together with others; waits are noted in ``pulse``."""
        if not self.group_bells or self.apart > 1:
            return None
        arrays = self.arena.group("group/")
        group = SharedGroup(arrays, replica, self.group_bells, waiting=pulse.waiting)
        return Shards(self.arena.group("shards/"), group)

    def build_learner(
        self, signature: Signature, replica: int = 0
    ) -> tuple[ReplayLearner, SlotSource]:
        """Learner ``replica``, and its end of the slots."""
        pulse = Pulse()
        kind: Callable[..., ReplayLearner] = ReplayLearner
        shards = self.shards(replica, pulse)
        if self.apart > 1:
            kind = partial(FreeLearner, memory=self.learned(), worker=replica)
        source = SlotSource(
            self.slots(),
            steps=self.rings().steps,
            own=self.sample_bells[replica % len(self.sample_bells)],
            other=self.replay_bell,
            group=None if shards is None else shards.group,
            first=replica % self.apart,
            stride=self.apart,
        )
        learner = build_replay_learner(
            self.config,
            signature,
            source=source,
            params=self.params(),
            shards=shards,
            pulse=pulse,
            kind=kind,
        )
        return learner, source

    @property
    def replay_metrics(self) -> Array:
        """What replay tells of itself, by :data:`METRICS`."""
        return self.arena.arrays["replay_metrics"]

    def shares(self, role: str) -> dict[str, float]:
        """Where the time goes, and what replay tells."""
        told = dict(zip(METRICS, self.replay_metrics.tolist(), strict=True))
        return Vitals.shares(self, role) | told

    def close(self) -> None:
        """Let go of all descriptors."""
        Wiring.close(self)
        for bell in (self.replay_bell, *self.group_bells):
            bell.close()


def _bequest_specs(config: RunConfig, policy: QNetwork) -> dict[str, ArraySpec]:
    """Room for what each actor leaves."""
    formation, algo = replay_configs(config)
    left = blank_bequest(algo, policy, config.env.num_envs)
    specs = {name: ArraySpec(array.shape, array.dtype) for name, array in left.items()}
    return bequest_specs(specs, formation.num_actors)


def _learner_specs(config: RunConfig, policy: Policy, flat: FlatParams) -> dict[str, ArraySpec]:
    """What several learners share; all that they tell each other apart from it is a few numbers."""
    formation = replay_configs(config)[0]
    num_learners, num_params = formation.num_learners, flat.data.numel()
    if num_learners == 1:
        return {}
    if not formation.lockstep:
        moments = {name: tuple(each.mean.shape) for name, each in moments_in(policy).items()}
        shared = hogwild_specs(
            num_learners, num_params, config.optimizer, moments, shared_statistics=True
        )
        return prefixed("learned/", shared)
    return {
        **prefixed("group/", group_specs(num_learners, WORDS_BYTES)),
        **prefixed("shards/", shard_specs(num_learners, num_params, config.optimizer)),
    }
