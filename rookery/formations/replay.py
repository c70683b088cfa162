"""Formation ``replay``: actors fill a replay table, from which the learners take what they learn.

DQN, Ape-X, R2D2, NGU and Agent57; MarltasCore.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import ClassVar

import torch

from rookery.algos.dqn import DQNConfig
from rookery.core.errors import UserError
from rookery.core.ports import Port
from rookery.core.sequence import StepSpec
from rookery.core.spec import ArraySpec
from rookery.envs.atari import may_be_game
from rookery.formations.session_edges import with_session
from rookery.formations.settings import FormationConfig, Joined
from rookery.params.hogwild import SharedWeightsPort
from rookery.params.sharded import ShardsPort
from rookery.programs.graph import Edge, Held, Node, Program
from rookery.programs.memory import update_of_sequences
from rookery.programs.plan import Plan
from rookery.replay.memory import estimate_bytes
from rookery.replay.snapshot import SEGMENT_ROWS
from rookery.roles.build import build_explorer, build_replay, build_replay_learner
from rookery.roles.curiosity import blank_carried_over
from rookery.roles.replay import METRICS, table_config
from rookery.runs.config import RunConfig
from rookery.transport.actor_states import ActorStatesPort
from rookery.transport.calls import CallPort
from rookery.transport.sample_slots import SequencesPort
from rookery.transport.step_rings import StepsPort
from rookery.transport.weights import WeightsPort

BATCHES_READY = 2
"""Batches that replay keeps ready while the learner learns from another."""
MIN_RING_SLOTS = 4
SNAPSHOT_SECS = 300.0
"""Replay may be writing its last snapshot when the run is over."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(FormationConfig):
    """Actors fill a replay table, from which the learner takes what it learns from."""

    off_policy: ClassVar[bool] = True
    experience: ClassVar[str] = "replay"
    averages: ClassVar[bool] = False
    joined: ClassVar[Joined] = "more"

    num_learners: int = 1
    """Learners around one set of weights; more than one needs the local engine."""
    lockstep: bool = True
    """Learners divide each batch and step with the mean of their gradients; false: each learns from
    batches of its own and steps the weights without waiting for the others."""
    learner_threads: int = 1
    """Compute threads of each learner."""
    save_replay: bool = True
    """Checkpoints hold the replay too; false: a resumed run fills it anew before it learns on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("num_learners", "learner_threads")

    @property
    def num_beside(self) -> int:
        """Replay, and the learners."""
        return 1 + self.num_learners


class Replay:
    """The formation."""

    Config = ReplayConfig

    @staticmethod
    def roles(plan: Plan) -> tuple[list[Node], list[Edge]]:
        """Actors that put steps, replay that holds them, learners that sample sequences of them."""
        config = plan.config
        formation, algo = settings_of(config)
        _check_learners(config, formation, algo)
        nodes = [
            Node(
                name="actor",
                build=partial(build_explorer, algo=algo),
                replicas=plan.num_actors,
                has_envs=True,
            ),
            Node(
                name="replay",
                build=partial(build_replay, spec=step_spec(plan), save=formation.save_replay),
                grace_secs=SNAPSHOT_SECS,
                metrics=METRICS,
                about=f"the last {algo.capacity_steps:,} steps",
                holds=_table,
            ),
            Node(
                name="learner",
                build=partial(build_replay_learner, algo=algo, save=formation.save_replay),
                replicas=formation.num_learners,
                num_threads=formation.learner_threads,
                computes=True,
                keeps_session=True,
                on_death="rewind",
                about=f"{config.algo}, {config.optimizer.name}",
                holds=_update,
            ),
        ]
        snapshots = CallPort("snapshots", "that replay saves itself beside a checkpoint", {})
        edges = [
            Edge("actor", _actor_states(plan, algo), "learner"),
            Edge("actor", WeightsPort(plan.params), "learner"),
            Edge("actor", _steps(plan, algo), "replay"),
            Edge("learner", sequences_port(plan), "replay"),
            Edge("learner", snapshots, "replay"),
        ]
        if formation.num_learners > 1:
            edges.append(Edge("learner", _together(plan, formation), "learner"))
        return nodes, edges

    @classmethod
    def program(cls, plan: Plan) -> Program:
        """These, and what every formation has."""
        return with_session(plan, "replay", *cls.roles(plan))


def settings_of(config: RunConfig) -> tuple[ReplayConfig, DQNConfig]:
    """The settings of the formation and of the algorithm."""
    formation, algo = config.formation_config, config.algo_config
    assert isinstance(formation, ReplayConfig)
    assert isinstance(algo, DQNConfig)
    return formation, algo


def step_spec(plan: Plan) -> StepSpec:
    """What one step of one environment looks like."""
    action, (_, algo) = plan.signature.action.array, settings_of(plan.config)
    return StepSpec(obs=plan.obs, action=action, state=dict(plan.state), extra=algo.extra)


def _episode_width(plan: Plan, algo: DQNConfig) -> int:
    """Numbers that an episode tells: return, length, and what is copied from info or known."""
    return 2 + len(plan.info_keys) + len(algo.told)


def _steps(plan: Plan, algo: DQNConfig) -> StepsPort:
    return StepsPort(
        step_spec(plan),
        num_actors=plan.num_actors,
        num_envs=plan.envs_each,
        num_slots=max(2 * algo.rollout_steps, MIN_RING_SLOTS),
        steps_each=algo.rollout_steps,
        episode_width=_episode_width(plan, algo),
    )


def sequences_port(plan: Plan) -> SequencesPort:
    """Batches from replay: those learned from and, where roles run at the same time, some ready."""
    formation, algo = settings_of(plan.config)
    apart = 1 if formation.lockstep else formation.num_learners
    # Learners that meet hand a batch back as they take the next.
    slots = apart * 2 if apart > 1 else 1 + (formation.num_learners > 1) + BATCHES_READY
    return SequencesPort(
        step_spec(plan),
        num_slots=slots if plan.concurrent else 1,
        num_steps=algo.sequence.num_steps,
        batch_size=algo.batch_size,
        episode_width=_episode_width(plan, algo),
        stride=apart,
    )


def _table(plan: Plan) -> Iterator[Held]:
    """Of replay, once it is full, and to save it part by part."""
    formation, algo = settings_of(plan.config)
    config, spec = table_config(algo, plan.config.env.num_envs), step_spec(plan)
    packed, plain = estimate_bytes(config, spec), estimate_bytes(config, spec, packed=1.0)
    yield Held("replay", packed, 0 if may_be_game(plan.config.env.id) else plain)
    if formation.save_replay:  # a part is copied, and made a file of
        yield Held(
            "snapshots", 2 * packed * min(SEGMENT_ROWS, algo.capacity_steps) // algo.capacity_steps
        )


def _update(plan: Plan) -> Iterator[Held]:
    """Of one learner."""
    formation, algo = settings_of(plan.config)
    among = formation.num_learners if formation.lockstep else 1
    return update_of_sequences(plan, ceil(algo.batch_size / among))


def _actor_states(plan: Plan, algo: DQNConfig) -> ActorStatesPort:
    left = blank_carried_over(algo, plan.policy(torch.device("cpu")), plan.envs_each)
    spec = {name: ArraySpec(array.shape, array.dtype) for name, array in left.items()}
    return ActorStatesPort(spec, plan.num_actors)


def _together(plan: Plan, formation: ReplayConfig) -> Port:
    """What several learners hold together."""
    if formation.lockstep:
        return ShardsPort("learner", formation.num_learners, plan.num_params, plan.config.optimizer)
    return SharedWeightsPort(
        formation.num_learners, plan.num_params, plan.config.optimizer, plan.moments
    )


def _check_learners(config: RunConfig, formation: ReplayConfig, algo: DQNConfig) -> None:
    """Refuse more learners than can work together."""
    if formation.num_learners == 1:
        return
    if formation.lockstep and algo.batch_size < formation.num_learners:
        raise UserError(
            f"formation.num_learners: {formation.num_learners} learners cannot divide "
            f"{algo.batch_size} sequences (algo.batch_size); have fewer"
        )
    if config.device != "cpu":
        raise UserError(
            f"formation.num_learners: {formation.num_learners} learners hold their weights "
            f"together in main memory, not on {config.device}; --learners 1, or --device cpu"
        )
