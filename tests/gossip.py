"""Formation ``gossip``: learners that each have actors of their own and average their weights.

A formation is one page. This one has what none of ours has: several learners with rounds of their
own, each served by a part of the actors, that meet only every so many updates. It runs under every
engine without a change elsewhere::

    rookery train cartpole --formation tests.gossip:Gossip --engine local --actors 4
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from rookery.core.group import Group
from rookery.core.update import Update
from rookery.formations.session_edges import with_session
from rookery.formations.settings import FormationConfig
from rookery.programs.graph import Edge, Node, Program
from rookery.programs.place import Place
from rookery.programs.plan import Plan
from rookery.roles.build import build_actor, make_learner
from rookery.roles.learner import Learner
from rookery.roles.worker import GO_ON, OVER
from rookery.transport.blocks import BlockPort
from rookery.transport.group_port import GroupPort
from rookery.transport.weights import WeightsPort


@dataclass(frozen=True, kw_only=True)
class GossipConfig(FormationConfig):
    """Learners with actors of their own, which average their weights now and then."""

    num_learners: int = 2
    """Learners; in one thread there is one."""
    average_every: int = 4
    """Updates between two meetings."""

    @property
    def num_beside(self) -> int:
        """The learners."""
        return self.num_learners


class GossipLearner(Learner):
    """Learns alone, and takes the mean of all weights every so many updates."""

    def __init__(self, *, peers: Group, average_every: int, **parts: Any) -> None:
        super().__init__(**parts)
        self.peers, self.average_every, self.over = peers, average_every, False
        self.rng = parts["rng"].spawn(peers.size)[peers.rank]

    def step(self) -> Update | None:
        """One update; at a meeting, first whether all go on."""
        if self.updates % self.average_every == 0 and self.peers.first(GO_ON) == OVER:
            self.over = True
            return None
        update = super().step()
        if self.updates % self.average_every == 0:
            self.flat.data.copy_(self.peers.sum_(self.flat.data.clone()) / self.peers.size)
            self.params.publish(self.updates, self.flat.tensors())
        return update

    def _together(self, num_steps: int, metrics: dict[str, float]) -> tuple[int, dict[str, float]]:
        """The others make as many steps."""
        return num_steps * self.peers.size, metrics

    def done(self) -> bool:
        """Whether the first has ended."""
        return self.over

    def finish(self) -> None:
        """The first meets the others a last time."""
        while self.peers.size > 1 and self.peers.rank == 0:
            if self.updates % self.average_every == 0:
                self.peers.first(OVER)
                return
            if self.ready():
                self.step()
            else:
                self.wait(0.2)


def build_gossip_learner(place: Place, average_every: int) -> Learner:
    """A learner, and its end of the group."""
    kind = partial(GossipLearner, peers=place.ports.use("gradients"), average_every=average_every)
    ports = place.ports
    return make_learner(place, kind, ports.serve(BlockPort.name), ports.serve(WeightsPort.name))


class Gossip:
    """The formation."""

    Config = GossipConfig

    @staticmethod
    def program(plan: Plan) -> Program:
        """Actors divided among the learners; the learners in a group."""
        formation = plan.config.formation_config
        assert isinstance(formation, GossipConfig)
        learners = formation.num_learners if plan.concurrent else 1
        rollouts = BlockPort(
            plan.rollout, num_actors=plan.num_actors // learners, num_envs=plan.envs_each
        )
        nodes = [
            Node(name="actor", build=build_actor, replicas=plan.num_actors, has_envs=True),
            Node(
                name="learner",
                build=partial(build_gossip_learner, average_every=formation.average_every),
                replicas=learners,
                computes=True,
                keeps_session=True,
                on_death="rewind",
            ),
        ]
        edges = [
            Edge("actor", WeightsPort(plan.params), "learner", split=True),
            Edge("actor", rollouts, "learner", split=True),
            Edge("learner", GroupPort("learner", learners, 4 * plan.num_params), "learner"),
        ]
        return with_session(plan, "gossip", nodes, edges)
