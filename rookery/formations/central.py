"""Formation ``central``: actors without a network; one batched inference chooses for all of them.

SEED RL (https://arxiv.org/abs/1910.06591); RPC RL. What the actors do goes on from the inference as
it would from actors of ``sync`` (A2C, PPO), ``async`` (IMPALA) or ``replay`` (DQN to Agent57).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from rookery.algos.dqn import DQNConfig
from rookery.core.errors import UserError
from rookery.core.ports import Port, Role
from rookery.formations.asynchronous import AsyncConfig
from rookery.formations.replay import ReplayConfig
from rookery.formations.session_edges import with_session
from rookery.formations.settings import FormationConfig, formation_class
from rookery.formations.sync import SyncConfig
from rookery.programs.graph import Edge, Held, Node, Program
from rookery.programs.place import Place
from rookery.programs.plan import Plan
from rookery.roles.build import build_inference, build_thin_actor
from rookery.roles.inference import METRICS
from rookery.runs.config import MOST_PLACES, RunConfig
from rookery.transport.requests import RequestsPort
from rookery.transport.several import Several


@dataclass(frozen=True, kw_only=True)
class CentralConfig(FormationConfig):
    """Actors only step environments; inference chooses the actions of all that wait, in batches."""

    experience: ClassVar[str] = "any"
    divides: ClassVar[bool] = True

    num_inference: int = 1
    """Inference processes, each for an equal part of the actors."""
    max_batch_envs: int | None = None
    """The most environments that are chosen for at once; null: all that wait."""
    inference_threads: int = 1
    """Compute threads of each inference process."""
    inference_device: str | None = None
    """Where actions are computed, such as cuda:1; null: on --device, as the learner."""
    learner_threads: int = 1
    """Compute threads of each learner."""
    slots_per_actor: int = 2
    """IMPALA: rollouts of one part of an actor's environments that may wait to be learned from."""
    batch_envs: int | None = None
    """IMPALA: environments whose rollouts make one batch; null: as many as there are."""
    max_lag: int | None = None
    """IMPALA: rollouts begun with weights that are more updates old are not learned from; null: all
    are."""
    num_learners: int = 1
    """Replay: learners around one set of weights; more than one needs the local engine."""
    lockstep: bool = True
    """Replay: learners divide each batch; false: each learns from batches of its own."""
    save_replay: bool = True
    """Replay: checkpoints hold the replay too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("num_inference", "inference_threads", "learner_threads")
        if self.max_batch_envs is not None:
            self._check_positive("max_batch_envs")

    @property
    def num_beside(self) -> int:
        """Inference, replay and the learners."""
        return self.num_inference + 1 + self.num_learners

    def behind(self, experience: str, off_policy: bool) -> tuple[str, FormationConfig]:
        """Rounds for what learns from the newest weights, a queue for what need not, or replay."""
        both = {"num_actors": self.num_actors, "learner_threads": self.learner_threads}
        learner = "replay" if experience == "replay" else "async" if off_policy else "sync"
        self._check_meant_for(learner)
        if experience == "replay":
            return "replay", ReplayConfig(
                **both,
                num_learners=self.num_learners,
                lockstep=self.lockstep,
                save_replay=self.save_replay,
            )
        if not off_policy:
            return "sync", SyncConfig(**both)
        return "async", AsyncConfig(
            **both,
            slots_per_actor=self.slots_per_actor,
            batch_envs=self.batch_envs,
            max_lag=self.max_lag,
        )

    def _check_meant_for(self, learner: str) -> None:
        """Refuse a setting that says something to learners of another kind."""
        for kind, (who, names) in _MEANT_FOR.items():
            given = [name for name in names if getattr(self, name) != names[name]]
            if given and kind != learner:
                raise UserError(f"formation.{given[0]}: is for {who}; leave it out")


_MEANT_FOR: dict[str, tuple[str, dict[str, Any]]] = {
    "async": (
        "algorithms that learn from a queue of rollouts, as impala does",
        {"slots_per_actor": 2, "batch_envs": None, "max_lag": None},
    ),
    "replay": (
        "algorithms that learn from replay, as dqn does",
        {"num_learners": 1, "lockstep": True, "save_replay": True},
    ),
}
"""Settings that not every learner has, with what they are unless somebody says otherwise."""


class Central:
    """The formation."""

    Config = CentralConfig

    @staticmethod
    def program(plan: Plan) -> Program:
        """The program behind, with inference in the place of its actors, and actors before that."""
        formation, algo = plan.config.formation_config, plan.config.algo_config
        assert isinstance(formation, CentralConfig)
        num_parts = parts_of(plan)
        behind = plan_behind(plan, num_parts)
        nodes, edges = formation_class(behind.config.formation).roles(behind)
        replicas = formation.num_inference
        if plan.num_actors % replicas:
            raise UserError(
                f"formation.num_inference: {replicas} cannot have equal parts of {plan.num_actors} "
                f"actors (--actors); have a multiple of {replicas}, or one inference"
            )
        if formation.inference_device is not None:  # refused if it is not there
            plan.device(formation.inference_device, "formation.inference_device:")
        lanes = behind.num_actors // replicas
        before = next(node for node in nodes if node.has_envs)
        actor = Node(
            name=before.name,
            build=partial(build_thin_actor, num_parts=num_parts),
            replicas=plan.num_actors,
            has_envs=True,
            num_parts=num_parts,
            about=f"no network, {num_parts} parts" if num_parts > 1 else "no network",
        )
        most = formation.max_batch_envs or plan.envs_each * plan.num_actors // replicas
        if most < behind.envs_each:
            raise UserError(
                f"formation.max_batch_envs: {most} is less than the {behind.envs_each} that an "
                f"actor asks for at once; give {behind.envs_each} or more"
            )
        inference = Node(
            name="inference",
            build=partial(
                build_inference,
                algo=algo if isinstance(algo, DQNConfig) else None,
                behind=behind,
                num_parts=num_parts,
                num_lanes=lanes,
                device=formation.inference_device,
                max_batch_envs=formation.max_batch_envs,
            ),
            replicas=replicas,
            num_threads=formation.inference_threads,
            follows_episodes=True,
            leaves=True,
            metrics=METRICS,
            about=f"{plan.config.algo}, at most {most} environments at once",
        )
        learning = [_planned(node, behind) for node in nodes if node is not before]
        requests = RequestsPort(
            obs=plan.obs,
            action=replace(plan.rollout(1)["action"], shape=plan.rollout(1)["action"].shape[2:]),
            info_keys=plan.info_keys,
            num_actors=plan.num_actors // replicas,
            num_parts=num_parts,
            num_envs=behind.envs_each,
        )
        fed = [
            Edge(inference.name, _of_lanes(edge.port, lanes), edge.target)
            if edge.source == before.name
            else edge
            for edge in edges
        ]
        asking = Edge(actor.name, requests, inference.name, split=True)
        return with_session(plan, "central", [actor, inference, *learning], [asking, *fed])


def parts_of(plan: Plan) -> int:
    """In how many parts each actor has its environments: the fewest that are alike, at least two,
    where one can step while another waits."""
    each, actors = plan.envs_each, plan.config.formation_config.num_actors
    if not plan.concurrent or actors < 1:
        return 1
    parts = next((parts for parts in range(2, each + 1) if each % parts == 0), 1)
    return 1 if parts * plan.config.num_places > MOST_PLACES else parts


def plan_behind(plan: Plan, num_parts: int) -> Plan:
    """The plan of the formation behind: each part is an actor to it."""
    behind = plan.config.behind
    assert behind is not None
    formation, hosts = behind.formation_config, behind.hosts
    if hosts.listen is not None:
        hosts = replace(hosts, places=behind.num_places * num_parts)
    config: RunConfig = replace(
        behind,
        formation_config=replace(formation, num_actors=formation.num_actors * num_parts),
        hosts=hosts,
    )
    return replace(plan, config=config)


def _planned(node: Node, plan: Plan) -> Node:
    """``node`` with sizes of ``plan``."""

    def build(place: Place) -> Role:
        return node.build(replace(place, plan=plan))

    return replace(node, build=build, holds=_held(node.holds, plan))


def _held(
    holds: Callable[[Plan], Iterable[Held]] | None, plan: Plan
) -> Callable[[Plan], Iterable[Held]] | None:
    return None if holds is None else lambda _: holds(plan)


def _of_lanes(port: Port, lanes: int) -> Port:
    """``port`` for an inference: one client a lane, unless all clients are alike."""
    return port if port.for_one(0) is port else Several(port, lanes)
