"""How fast each part of a run is alone, on one core: environment, acting, learning."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from rookery.algos.dqn import DQNConfig
from rookery.core.action import to_env_units
from rookery.core.records import Rollout
from rookery.core.seeding import stream
from rookery.core.signature import Signature
from rookery.core.spec import Array, Arrays, zeros
from rookery.core.tensors import Tensors, as_tensor
from rookery.engines.replayed import (
    DirectEnds,
    build_explorer,
    build_replay,
    build_replay_learner,
    replay_configs,
    told_keys,
)
from rookery.envs.make import EnvConfig, make_vector
from rookery.nets.policy import Policy
from rookery.roles.build import batch_spec, build_learner, build_policy, compute_threads
from rookery.runs.config import RunConfig, divided
from rookery.transport.memory import BlockSource, ParamCell, RolloutBlock


@dataclass(frozen=True, slots=True)
class Rates:
    """Environment steps a second that each part could do on one core, if it had nothing to wait
    for."""

    env: float
    acting: float
    learning: float

    @property
    def one_core(self) -> float:
        """What one core can do that does all three in turn."""
        return 1.0 / (1.0 / self.env + 1.0 / self.acting + 1.0 / self.learning)


def measure(config: RunConfig, signature: Signature, secs: float) -> Rates:
    """Each part for about ``secs`` seconds: one actor's environments, the learner's batch."""
    config, _ = divided(config)
    env = replace(config.env, num_envs=config.env.num_envs // config.formation_config.num_actors)
    with compute_threads(1):
        policy = build_policy(config, signature)
        obs, env_rate = _env_rate(env, config.seed, policy, secs)
        return Rates(
            env=env_rate,
            acting=_acting_rate(policy, obs, config.seed, secs),
            learning=_replayed_rate(config, env, signature, secs)
            if isinstance(config.algo_config, DQNConfig)
            else _learning_rate(config, signature, obs, secs),
        )


def _per_second(work: Callable[[], None], units: float, secs: float) -> float:
    """Units of work a second, after a first time that does not count."""
    work()
    begun, times = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < secs or not times:
        work()
        times += 1
    return units * times / spent


def _env_rate(env: EnvConfig, seed: int, policy: Policy, secs: float) -> tuple[Arrays, float]:
    """The last observations, and steps a second with actions drawn as an untrained policy does."""
    envs = make_vector(env, run_seed=seed)
    rng, count = stream(seed, "tune"), envs.num_envs
    seen: dict[str, Arrays] = {"obs": envs.reset()}
    drawn = [_action(policy, seen["obs"], rng) for _ in range(8)]
    turn = iter(range(10**9))

    def step() -> None:
        actions = drawn[next(turn) % len(drawn)]
        seen["obs"] = envs.step(to_env_units(envs.action_leaf, actions)).obs

    try:
        rate = _per_second(step, count, secs)
        return {name: leaf.copy() for name, leaf in seen["obs"].items()}, rate
    finally:
        envs.close()


@torch.inference_mode()
def _action(policy: Policy, obs: Arrays, rng: np.random.Generator) -> Array:
    count = _num_rows(obs)
    out, _ = policy.step(
        _tensors(policy, obs),
        policy.initial_state(count),
        torch.ones(count, dtype=torch.bool, device=policy.device),
        rng,
    )
    action: Array = out.action.cpu().numpy()
    return action


def _num_rows(obs: Arrays) -> int:
    return len(next(iter(obs.values())))


def _acting_rate(policy: Policy, obs: Arrays, seed: int, secs: float) -> float:
    rng = stream(seed, "tune")
    return _per_second(lambda: _discard(_action(policy, obs, rng)), _num_rows(obs), secs)


def _learning_rate(config: RunConfig, signature: Signature, obs: Arrays, secs: float) -> float:
    """Environment steps learned from a second: every epoch of every minibatch."""
    count = config.formation_config.batch_columns(config.env.num_envs)
    config = replace(
        config,
        env=replace(config.env, num_envs=count),
        formation_config=replace(config.formation_config, num_actors=1),
    )
    policy = build_policy(config, signature)
    block = RolloutBlock(
        zeros(batch_spec(config, policy, count)), np.ones(1, np.int64), num_actors=1, num_envs=count
    )
    _fill(block.batch, obs)
    learner = build_learner(config, signature, source=BlockSource(block), params=ParamCell())
    rows = config.algo_config.rollout_steps * count
    return _per_second(lambda: _discard(learner.step()), rows, secs)


def _replayed_rate(config: RunConfig, env: EnvConfig, signature: Signature, secs: float) -> float:
    """Environment steps learned from a second, of sequences that an actor has put into replay."""
    formation, algo = replay_configs(config)
    config = replace(
        config,
        env=env,
        formation_config=replace(formation, num_actors=1, num_learners=1),
        algo_config=replace(algo, steps_per_update=None, learning_starts=1),  # none waits
    )
    replay, cell = build_replay(config, signature), ParamCell()
    ends = DirectEnds(replay, 2 + len(told_keys(config)))
    learner = build_replay_learner(config, signature, source=ends, params=cell)
    actor = build_explorer(config, signature, 0, sink=ends, params=cell)
    try:
        learner.start()
        while replay.table.size < algo.batch_size and actor.ready():
            actor.step()
    finally:
        actor.close()
    rows = algo.steps_per_update or algo.batch_size * algo.length
    return _per_second(lambda: _discard(learner.step()), rows, secs)


def _fill(rollout: Rollout, obs: Arrays) -> None:
    """A rollout as plain as possible: what was seen last, again and again."""
    num_envs = rollout.reward.shape[1]
    for name, leaf in obs.items():
        rollout.obs[name][:] = np.resize(leaf, (num_envs, *leaf.shape[1:]))
    rollout.mask.fill(True)
    rollout.log_prob.fill(-1.0)
    rollout.reward[:] = np.linspace(-1.0, 1.0, rollout.reward.size).reshape(rollout.reward.shape)


def _tensors(policy: Policy, arrays: Arrays) -> Tensors:
    return {name: as_tensor(array, policy.device) for name, array in arrays.items()}


def _discard(_: object) -> None:
    """For the time it took."""
