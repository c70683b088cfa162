"""What the processes of formation ``async`` share: a queue in place of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rookery.core.signature import Signature
from rookery.core.spec import ArraySpec
from rookery.engines.queued import async_config, build_async_learner, queue_source
from rookery.engines.wiring import Vitals, Wiring, prefixed, vital_specs
from rookery.params.flat import FlatParams
from rookery.params.shared_memory import param_specs
from rookery.roles.build import batch_spec, build_policy
from rookery.roles.learner import Learner
from rookery.runs.config import RunConfig
from rookery.transport.queue import QueueSink, QueueSource, RolloutQueue, queue_specs


@dataclass(slots=True)
class AsyncWiring(Wiring):
    """Shared memory and bells of actors and a learner that goes on without waiting for all."""

    @staticmethod
    def specs(config: RunConfig, signature: Signature) -> dict[str, ArraySpec]:
        """The arrays of the shared memory."""
        formation = async_config(config)
        policy = build_policy(config, signature)
        rollout = batch_spec(config, policy, config.env.num_envs)
        queue = queue_specs(rollout, formation.num_actors, formation.slots_per_actor)
        return {
            **vital_specs(formation.num_actors),
            **prefixed("params/", param_specs(FlatParams(policy).tensors())),
            **prefixed("queue/", queue),
        }

    def _queue(self) -> RolloutQueue:
        return RolloutQueue(self.arena.group("queue/"))

    def sink(self, replica: int) -> QueueSink:
        """Actor ``replica``'s end of the queue."""
        bells = {"own": self.actor_bells[replica], "other": self.learner_bell}
        return QueueSink(self._queue(), replica, **bells)

    def build_learner(self, signature: Signature) -> tuple[Learner, QueueSource]:
        """The learner of these actors, and its end of the queue."""
        source = queue_source(
            self.config,
            signature,
            self._queue(),
            own=self.learner_bell,
            others=self.actor_bells,
        )
        ports: dict[str, Any] = {"source": source, "params": self.params()}
        return build_async_learner(self.config, signature, **ports), source

    def shares(self, role: str) -> dict[str, float]:
        """Where the time goes, and how many rollouts were put, taken, refused and learned."""
        return Vitals.shares(self, role) | self._queue().metrics()
