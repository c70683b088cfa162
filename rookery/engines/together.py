"""Actors and a learner in one thread, joined by a block of ordinary memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rookery.core.group import Group
from rookery.core.signature import Signature
from rookery.core.spec import zeros
from rookery.roles.actor import Actor
from rookery.roles.build import batch_spec, build_actor, build_learner, build_policy
from rookery.roles.learner import Learner
from rookery.roles.pulse import Pulse
from rookery.runs.config import RunConfig
from rookery.transport.memory import BlockSink, BlockSource, ParamCell, RolloutBlock


def build_together(
    config: RunConfig,
    signature: Signature,
    replicas: Sequence[int],
    *,
    start_steps: Callable[[int], int],
    life: int = 0,
    group: Group | None = None,
    pulse: Pulse | None = None,
    build: Callable[..., Learner] = build_learner,
) -> tuple[list[Actor], Learner]:
    """The actors called ``replicas``, each from its ``start_steps``, and the learner they feed."""
    num_envs = config.env.num_envs
    slots = len(replicas) * config.on_policy.rollouts_per_update
    spec = batch_spec(config, build_policy(config, signature), slots * num_envs)
    block = RolloutBlock(
        zeros(spec), np.zeros(slots, np.int64), num_actors=len(replicas), num_envs=num_envs
    )
    cell = ParamCell()
    learner = build(config, signature, source=BlockSource(block), params=cell, group=group)
    actors = [
        build_actor(
            config,
            signature,
            replica,
            sink=BlockSink(block, place),
            params=cell,
            life=life,
            start_steps=start_steps(replica),
            pulse=pulse,
        )
        for place, replica in enumerate(replicas)
    ]
    return actors, learner
