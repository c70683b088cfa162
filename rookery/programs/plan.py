"""The sizes of a run, computed once: what formations make their ports and roles of.

A plan is a configuration, what the environment shows and takes, and every shape that follows from
both. Each process computes it once; the network that the shapes were read off becomes the role's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rookery.algos.algorithm import Algorithm, build_algorithm, policy_class
from rookery.core.errors import UserError, naming
from rookery.core.group import Group
from rookery.core.records import rollout_spec
from rookery.core.seeding import seed_of
from rookery.core.signature import Signature
from rookery.core.spec import ArraySpec
from rookery.envs.make import EnvConfig, make_vector
from rookery.formations.settings import formation_block, formation_class
from rookery.nets.normalizer import moments_in
from rookery.params.flat import FlatParams
from rookery.programs.graph import Program
from rookery.runs.config import RunConfig


@dataclass(frozen=True, slots=True)
class Plan:
    """What is built, how large everything is, and whether roles run at the same time."""

    config: RunConfig
    signature: Signature
    concurrent: bool
    """Roles run at the same time, so things are made ready ahead; False: they take turns, in an
    order that repeats exactly."""
    params: Mapping[str, ArraySpec]
    """What is published: the vector of weights, and buffers."""
    state: Mapping[str, ArraySpec]
    """The recurrent state of one environment."""
    moments: Mapping[str, tuple[int, ...]]
    """Shapes of the running statistics that policy and algorithm keep."""
    _policy: Any

    @classmethod
    def of(cls, config: RunConfig, signature: Signature | None = None) -> Plan:
        """The plan of ``config`` in an environment like ``signature``, or as one is found to be."""
        if signature is None:
            signature = probe(config.env, config.seed)
        policy = build_policy(config, signature, torch.device("cpu"))
        # A copy: the original must not become views into a vector.
        flat = FlatParams(copy.deepcopy(policy))
        algorithm = build_algorithm(
            config.algo, config.algo_config, recurrent=policy.recurrent, device=policy.device
        )
        named = moments_in(policy) | algorithm.moments()
        return cls(
            config=config,
            signature=signature,
            concurrent=config.engine != "inline" or config.threads,
            params={
                name: ArraySpec(tuple(tensor.shape), np.dtype(str(tensor.dtype)[len("torch.") :]))
                for name, tensor in flat.tensors().items()
            },
            state=dict(policy.state_spec),
            moments={name: tuple(moments.mean.shape) for name, moments in named.items()},
            _policy=policy,
        )

    @property
    def num_params(self) -> int:
        """Weights of the network."""
        return int(self.params["params"].shape[0])

    @property
    def params_bytes(self) -> int:
        """Of everything that is published."""
        return sum(spec.num_bytes for spec in self.params.values())

    @property
    def num_actors(self) -> int:
        """How many act, or may once hosts have joined."""
        return self.config.num_acting

    @property
    def envs_each(self) -> int:
        """Environments of each that acts: joined actors beyond the run's own have as many."""
        return self.config.env.num_envs // max(self.config.formation_config.num_actors, 1)

    @property
    def batch_columns(self) -> int:
        """Rollouts of one environment each, of which one batch is made."""
        config = self.config
        columns = config.formation_config.batch_columns(config.env.num_envs)
        return columns * config.on_policy.rollouts_per_update

    @property
    def steps_each(self) -> int:
        """The most steps of which one that acts and learns makes an update."""
        algo = self.config.on_policy
        return algo.rollout_steps * self.envs_each * algo.rollouts_per_update

    @property
    def network(self) -> Any:
        """The network itself, to be looked at and not changed."""
        return self._policy

    @property
    def recurrent(self) -> bool:
        """Whether the policy carries a state from step to step."""
        return bool(self.state)

    @property
    def info_keys(self) -> tuple[str, ...]:
        """What is copied from ``info`` when an episode ends."""
        return self.config.metrics.info_keys

    @property
    def obs(self) -> dict[str, ArraySpec]:
        """Leaves of an observation."""
        return {name: leaf.array for name, leaf in self.signature.obs.items()}

    def device(self, name: str | None = None, setting: str = "--device") -> torch.device:
        """The configured device, or the one that ``setting`` names, if it is there."""
        return torch_device(name or self.config.device, setting)

    def policy(self, device: torch.device | None = None) -> Any:
        """A network with the run's starting weights: the same in every process."""
        return copy.deepcopy(self._policy).to(device or self.device())

    def algorithm(self, device: torch.device | None = None, group: Group | None = None) -> Any:
        """The algorithm, learning together with ``group``."""
        config = self.config
        built: Algorithm = build_algorithm(
            config.algo,
            config.algo_config,
            recurrent=self.recurrent,
            device=device or self.device(),
            group=group,
        )
        return built

    def rollout(self, num_envs: int) -> dict[str, ArraySpec]:
        """The arrays of a rollout of ``num_envs`` environments."""
        action = self.signature.action
        flat = (int(np.prod(action.shape, dtype=int)),) if action.shape else ()
        return rollout_spec(
            num_steps=self.config.algo_config.rollout_steps,
            num_envs=num_envs,
            obs=self.obs,
            action=ArraySpec(flat, action.dtype, action.sizes),
            state=self.state,
            info_keys=self.info_keys,
        )

    def actor_seed(self, replica: int, life: int, start_steps: int) -> int:
        """Neither a replacement nor a resumed actor may repeat the episodes and choices of those
        before it, so each has streams of its own."""
        if not (life or start_steps):
            return self.config.seed
        return seed_of(self.config.seed, "replacement", replica, life, start_steps)

    def program(self) -> Program:
        """Who is there and what they exchange, by the configured formation."""
        config = self.config
        build: Callable[[Plan], Program] = formation_class(config.formation).program
        with naming(algo=config.algo_block, formation=formation_block(config.formation)):
            return build(self)


def probe(env: EnvConfig, seed: int = 0) -> Signature:
    """What the environment shows and takes, asked of one of its kind."""
    envs = make_vector(env, run_seed=seed, num_envs=1)
    try:
        return Signature(obs=dict(envs.obs_leaves), action=envs.action_leaf)
    finally:
        envs.close()


def torch_device(name: str, setting: str = "--device") -> torch.device:
    """The device that ``setting`` names, if it is there."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{setting} {name}: {reason}; use {setting.rstrip(':')} cpu") from error
    return device


def build_policy(
    config: RunConfig, signature: Signature, device: torch.device | None = None
) -> Any:
    """The policy with its starting weights: the same in every process of a run."""
    # One thread: the last bits of an orthogonal matrix depend on how many compute it.
    with compute_threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(config.seed, "weights"))
        policy = policy_class(config.algo)(
            config.policy, signature, **config.algo_config.network_settings
        )
    return policy.to(device or torch_device(config.device))


@contextmanager
def compute_threads(num_threads: int) -> Iterator[None]:
    """Compute threads of this process meanwhile; more than its share would slow all others down."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
