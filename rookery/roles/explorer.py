"""An actor for replay: acts on its values, at random now and then, and puts steps."""

from __future__ import annotations

import torch

from rookery.core.ports import BaseRole, ParamSource
from rookery.roles.exploring_lane import ExploringLane
from rookery.roles.lane import group
from rookery.roles.policy_replica import PolicyReplica
from rookery.runs.checkpoint_files import State

_WEIGHTS = "weights/"


class Explorer(BaseRole):
    """B environments, one copy of the network."""

    def __init__(self, lane: ExploringLane, params: ParamSource) -> None:
        self.lane, self.policy = lane, lane.policy
        self.weights = PolicyReplica(lane.policy, params)

    def ready(self) -> bool:
        """Whether replay takes more, and there are weights to act with."""
        if not (self.lane.has_room() and self.weights.refresh()):
            return False
        self.lane.take_over()  # who resumes a run has put it there before the first weights
        return True

    def wait(self, timeout_secs: float) -> None:
        """Sleep until :meth:`ready` may be true."""
        with self.lane.heartbeat.waiting():
            self.lane.sink.wait(timeout_secs)

    def step(self) -> None:
        """Some steps of every environment; call when :meth:`ready`."""
        lane = self.lane
        with torch.inference_mode():
            for _ in range(lane.config.rollout_steps):
                lane.act(*lane.ask(self.policy, lane.look(), lane.rng))
                lane.receive()

    def save_episodes(self) -> State | None:
        """Everything needed to go on exactly here, or None if the environments cannot say."""
        saved = self.lane.save_state()
        if saved is None or self.lane.config.publish_every == 1:
            return saved
        mine = {f"{_WEIGHTS}{name}": leaf for name, leaf in self.weights.save().items()}
        # The learner's may be newer.
        return State({**saved.arrays, **mine}, saved.data | {"version": self.weights.version})

    def load_episodes(self, saved: State) -> None:
        """Go on from :meth:`save_episodes`."""
        self.lane.load_state(saved)
        if "version" in saved.data:
            self.weights.load(group(saved, _WEIGHTS), saved.data["version"])

    def close(self) -> None:
        """Close the environments."""
        self.lane.envs.close()
