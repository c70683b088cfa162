"""Roles from a configuration: the same for every engine, which only brings the ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rookery.algos.algorithm import build_algorithm, policy_class
from rookery.core.errors import UserError
from rookery.core.group import Group
from rookery.core.ports import ExperienceSink, ExperienceSource, ParamSink, ParamSource
from rookery.core.records import rollout_spec
from rookery.core.seeding import seed_of, stream
from rookery.core.signature import Signature
from rookery.core.spec import ArraySpec
from rookery.envs.make import EnvConfig, make_vector
from rookery.nets.actor_critic import ActorCritic
from rookery.roles.actor import Actor
from rookery.roles.learner import Learner
from rookery.roles.pulse import Pulse
from rookery.runs.config import RunConfig


def probe(env: EnvConfig, seed: int = 0) -> Signature:
    """What the environment shows and takes, asked of one of its kind."""
    envs = make_vector(env, run_seed=seed, num_envs=1)
    try:
        return Signature(obs=dict(envs.obs_leaves), action=envs.action_leaf)
    finally:
        envs.close()


def torch_device(config: RunConfig) -> torch.device:
    """The configured device, if it is there."""
    try:
        device = torch.device(config.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {config.device}: {reason}; use --device cpu") from error
    return device


def build_policy(config: RunConfig, signature: Signature) -> Any:
    """The policy with its starting weights: the same in every process of a run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(config.seed, "weights"))
        policy = policy_class(config.algo)(
            config.policy, signature, **config.algo_config.network_settings
        )
    return policy.to(torch_device(config))


def batch_spec(config: RunConfig, policy: ActorCritic, num_envs: int) -> dict[str, ArraySpec]:
    """The arrays of a rollout of ``num_envs`` environments."""
    signature = policy.signature
    action = signature.action
    flat = (int(np.prod(action.shape, dtype=int)),) if action.shape else ()
    return rollout_spec(
        num_steps=config.algo_config.rollout_steps,
        num_envs=num_envs,
        obs={name: leaf.array for name, leaf in signature.obs.items()},
        action=ArraySpec(flat, action.dtype),
        state=policy.state_spec,
        info_keys=config.metrics.info_keys,
    )


def build_actor(
    config: RunConfig,
    signature: Signature,
    replica: int,
    *,
    sink: ExperienceSink,
    params: ParamSource,
    life: int = 0,
    start_steps: int = 0,
    pulse: Pulse | None = None,
) -> Actor:
    """Actor ``replica``; ``life`` counts its replacements since the fleet began at ``start_steps``.

    Neither a replacement nor a resumed actor may repeat the episodes and choices of those before
    it, so each has streams of its own.
    """
    seed = config.seed
    if life or start_steps:
        seed = seed_of(config.seed, "replacement", replica, life, start_steps)
    half = config.env.num_envs // config.env.halves
    vectors = [
        make_vector(
            config.env,
            run_seed=seed,
            first_env=replica * config.env.num_envs + first,
            num_envs=half,
            info_keys=config.metrics.info_keys,
        )
        for first in range(0, config.env.num_envs, half)
    ]
    return Actor(
        envs=vectors[0],
        second=vectors[1] if len(vectors) > 1 else None,
        policy=build_policy(config, signature),
        sink=sink,
        params=params,
        rng=stream(seed, "actor", replica),
        device=torch_device(config),
        pulse=pulse,
    )


def build_learner(
    config: RunConfig,
    signature: Signature,
    *,
    source: ExperienceSource,
    params: ParamSink,
    group: Group | None = None,
    pulse: Pulse | None = None,
    kind: Callable[..., Learner] = Learner,
) -> Learner:
    """The learner; with a ``group``, the one of this member."""
    policy = build_policy(config, signature)
    algorithm = build_algorithm(
        config.algo,
        config.algo_config,
        recurrent=policy.recurrent,
        device=torch_device(config),
        group=group,
    )
    return kind(
        policy=policy,
        algorithm=algorithm,
        optimizer=config.optimizer,
        source=source,
        params=params,
        rng=stream(config.seed, "learner", *([group.rank] if group and group.rank else [])),
        group=group,
        pulse=pulse,
    )


@contextmanager
def compute_threads(num_threads: int) -> Iterator[None]:
    """Compute threads of this process meanwhile; more than its share would slow all others down."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
