"""How fast each part of a run is alone, on one core: environment, acting, learning."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rookery.core.action import to_env_units
from rookery.core.ports import End, InTurn
from rookery.core.records import Rollout
from rookery.core.seeding import stream
from rookery.core.signature import Signature
from rookery.core.spec import Array, Arrays, zeros
from rookery.core.tensors import Tensors, as_tensor
from rookery.engines.assemble import Wired, layouts
from rookery.envs.make import EnvConfig, make_vector
from rookery.formations.replay import settings_of
from rookery.nets.policy import Policy
from rookery.programs.place import Place, Ports
from rookery.programs.plan import Plan, build_policy, compute_threads
from rookery.roles.build import build_learner
from rookery.runs.config import RunConfig, divided
from rookery.transport.blocks import BlockPort
from rookery.transport.weights import WeightsPort


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
    config, _ = divided(config.behind or config)  # the same parts, of the same work
    env = replace(config.env, num_envs=config.env.num_envs // config.formation_config.num_actors)
    with compute_threads(1):
        policy = build_policy(config, signature)
        obs, env_rate = _env_rate(env, config.seed, policy, secs)
        return Rates(
            env=env_rate,
            acting=_acting_rate(policy, obs, config.seed, secs),
            learning=_replayed_rate(config, env, signature, secs)
            if config.algo_config.experience == "replay"
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
    plan = Plan.of(_alone(config, replace(config.env, num_envs=count)), signature)
    block, weights = BlockPort(plan.rollout, num_actors=1, num_envs=count), WeightsPort(plan.params)
    memory, cell = End(zeros(block.layout())), End(zeros(weights.layout()))
    source = block.server(memory)
    _fill(source.sample(), obs)
    ports = Ports(serves={"experience": {"": source}, "params": {"": weights.server(cell)}})
    learner = build_learner(Place(plan=plan, ports=ports))
    rows = config.algo_config.rollout_steps * count
    return _per_second(lambda: _discard(learner.step()), rows, secs)


def _alone(config: RunConfig, env: EnvConfig) -> RunConfig:
    """``config`` with ``env`` and one that acts, in one thread."""
    formation = replace(config.formation_config, num_actors=1)
    return replace(config, engine="inline", threads=False, env=env, formation_config=formation)


def _replayed_rate(config: RunConfig, env: EnvConfig, signature: Signature, secs: float) -> float:
    """Environment steps learned from a second, of sequences that an actor has put into replay."""
    config = _alone(config, env)
    formation, algo = settings_of(config)
    config = replace(
        config,
        formation_config=replace(formation, num_learners=1, save_replay=False),
        algo_config=replace(algo, steps_per_update=None, learning_starts=1),  # none waits
        eval=replace(config.eval, episodes=0),
    )
    plan = Plan.of(config, signature)
    program = plan.program()
    turns = {node.name: [InTurn()] for node in program.nodes}
    wired = Wired(program, zeros(layouts(program)), turns)
    roles: list[Any] = [
        node.build(Place(plan=plan, ports=wired.ports_of(node.name, 0))) for node in program.nodes
    ]
    actor, replay, learner = roles
    try:
        learner.start()
        replay.start()
        while replay.replay.table.size < algo.batch_size:
            actor.step() if actor.ready() else replay.step()
    finally:
        actor.close()

    def learn() -> None:
        replay.step()
        learner.step()

    rows = algo.steps_per_update or algo.batch_size * algo.length
    return _per_second(learn, rows, secs)


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
