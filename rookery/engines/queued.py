"""Actors and a learner of formation ``async``, joined by a queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rookery.core.ports import ParamSink
from rookery.core.signature import Signature
from rookery.core.spec import zeros
from rookery.programs.formations import AsyncConfig
from rookery.roles.actor import Actor
from rookery.roles.async_learner import AsyncLearner
from rookery.roles.build import batch_spec, build_actor, build_learner, build_policy
from rookery.runs.config import RunConfig
from rookery.transport.memory import ParamCell
from rookery.transport.queue import QueueSink, QueueSource, RolloutQueue, queue_specs
from rookery.transport.wake import Wake


def async_config(config: RunConfig) -> AsyncConfig:
    """The settings of the formation."""
    formation = config.formation_config
    assert isinstance(formation, AsyncConfig)
    return formation


def build_queued(
    config: RunConfig, signature: Signature, *, start_steps: Callable[[int], int]
) -> tuple[list[Actor], AsyncLearner]:
    """All actors, each from its ``start_steps``, and their learner, for one thread."""
    queue, cell = plain_queue(config, signature), ParamCell()
    source = queue_source(config, signature, queue)
    learner = build_async_learner(config, signature, source=source, params=cell, keep_queue=True)
    actors = [
        build_actor(
            config,
            signature,
            replica,
            sink=QueueSink(queue, replica),
            params=cell,
            start_steps=start_steps(replica),
        )
        for replica in range(async_config(config).num_actors)
    ]
    return actors, learner


def plain_queue(config: RunConfig, signature: Signature) -> RolloutQueue:
    """A queue in ordinary memory."""
    formation = async_config(config)
    rollout = batch_spec(config, build_policy(config, signature), config.env.num_envs)
    return RolloutQueue(
        zeros(queue_specs(rollout, formation.num_actors, formation.slots_per_actor))
    )


def queue_source(
    config: RunConfig,
    signature: Signature,
    queue: RolloutQueue,
    *,
    own: Wake | None = None,
    others: Sequence[Wake] = (),
) -> QueueSource:
    """The learner's end of ``queue``, with the memory of one batch."""
    formation, num_envs = async_config(config), config.env.num_envs
    policy = build_policy(config, signature)
    batch = zeros(batch_spec(config, policy, formation.actors_in_batch * num_envs))
    return QueueSource(
        queue, batch, num_envs=num_envs, max_lag=formation.max_lag, own=own, others=others
    )


def build_async_learner(
    config: RunConfig,
    signature: Signature,
    *,
    source: QueueSource,
    params: ParamSink,
    keep_queue: bool = False,
) -> AsyncLearner:
    """The learner; see :class:`AsyncLearner` for ``keep_queue``."""
    kind = partial(AsyncLearner, keep_queue=keep_queue)
    learner = build_learner(config, signature, source=source, params=params, kind=kind)
    assert isinstance(learner, AsyncLearner)
    return learner
