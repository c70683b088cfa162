"""Some environments of whoever chooses for many: rollouts are filled a step at a time and put."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from rookery.core.ports import ExperienceSink
from rookery.core.records import Rollout
from rookery.core.seeding import generator_state, restore_generator
from rookery.core.tensors import Tensors
from rookery.nets.actor_critic import ActorCritic
from rookery.nets.heads import Noise
from rookery.nets.policy import ActionOut
from rookery.roles.actor import EnvHalf
from rookery.roles.lane import Look
from rookery.roles.policy_replica import PolicyReplica
from rookery.runs.checkpoint_files import State


class RolloutLane:
    """B environments, the rollout that they are in, and where it goes."""

    def __init__(
        self,
        envs: EnvHalf,
        sink: ExperienceSink,
        weights: PolicyReplica,
        rng: np.random.Generator,
    ) -> None:
        self.envs, self.sink, self.weights, self.rng = envs, sink, weights, rng
        self.rollout: Rollout | None = None
        self._t = 0

    def has_room(self) -> bool:
        """Whether a step can be written down."""
        return self.rollout is not None or self.sink.can_put()

    def looks(self) -> bool:
        """Whether a rollout begins, so that the newest weights are wanted."""
        return self.rollout is None

    def midway(self) -> bool:
        """Whether the rollout is half made."""
        return self.rollout is not None

    def take_over(self) -> None:
        """Nothing is handed on from one actor to the next."""

    def begin_anew(self, rng: np.random.Generator) -> None:
        """Other environments take the place of these: what is half made is dropped."""
        self.rng, self.rollout = rng, None
        self.envs.forget()

    def lose(self, lost: np.ndarray) -> None:
        """The episodes of rows ``lost`` ``[B]`` do not go on."""
        self.envs.lose(lost)

    def look(self) -> Look:
        """What was seen last, written down."""
        if self.rollout is None:
            self.rollout, self._t = self.sink.reserve(), 0
            self.rollout.version.fill(self.weights.version)
            self.envs.begin(self.rollout)
        return self.envs.look(self.rollout, self._t)

    @staticmethod
    def ask(policy: ActorCritic, look: Look, noise: Noise) -> tuple[tuple[Tensor, ...], Tensors]:
        """What the policy chooses."""
        return policy.step(*look, noise)

    def act(self, out: tuple[Tensor, ...], state: Tensors) -> None:
        """Write it down; the environments begin to step."""
        assert self.rollout is not None
        self.envs.act(self.rollout, self._t, ActionOut(*out), state)

    def receive(self) -> None:
        """Write down what they did; a rollout that is whole is put."""
        rollout = self.rollout
        assert rollout is not None
        self.envs.receive(rollout, self._t)
        self._t += 1
        if self._t == rollout.action.shape[0]:
            self.envs.end(rollout)
            self.sink.put(rollout)
            self.rollout = None

    def save_state(self) -> State | None:
        """Everything needed to go on exactly here; call between two rollouts."""
        saved = self.envs.save_state()
        if saved is None:
            return None
        return State(saved.arrays, saved.data | {"rng": generator_state(self.rng)})

    def load_state(self, saved: State) -> None:
        """Go on from :meth:`save_state`."""
        self.envs.load_state(saved)
        restore_generator(self.rng, saved.data["rng"])
