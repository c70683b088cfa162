"""Episodes of a trained agent, moment by moment.

::

    with Player(find_trained("runs/first"), mode="rgb_array") as player:
        for moment in player.episode(0):
            show(moment.frame, moment.decision)

A moment is what can be seen and what the policy thinks of it: its picture is drawn before the
policy is asked, and the environment moves only when the next moment is taken. The last moment of an
episode has no decision: there is nothing left to decide.

Episode ``i`` of a seed has the seeds of episode ``i`` of `rookery eval`, for the world and for the
policy, so what is shown is what was scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch

from rookery.core.action import to_env_units
from rookery.core.errors import EnvironmentFault
from rookery.core.seeding import seed_of, stream
from rookery.core.spec import ACTION_MASK, Array, Arrays
from rookery.core.tensors import Tensors, as_tensor
from rookery.envs import faults
from rookery.envs.spaces import LeafError, concatenate_mask, env_action, obs_plan
from rookery.nets.rounding import rounded_alike
from rookery.play.drawn import Frame, draw, fps_of, make_drawn
from rookery.play.first_layer import FirstLayer
from rookery.roles.evaluator import BLOCK
from rookery.runs.trained import Trained

Over = Literal["", "terminated", "truncated", "cut"]
"""How an episode ended: by itself, by its time limit, or by --max-steps; '' while it runs."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy computed in one state."""

    action: Any
    """As ``env.step`` takes it."""
    value: float
    """The discounted sum of rewards it expects from here on, in units of the score where what was
    done to rewards can be undone (``Trained.value_units``)."""
    first_layer: Array | None
    """Activations of its first layer, if it has one."""
    memory: Array | None
    """Its recurrent state after this observation, if it has one."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One state of an episode."""

    episode: int
    seed: int
    """What the environment was reset with."""
    step: int
    """Actions taken before."""
    frame: Frame
    """The picture or text of this state."""
    info: dict[str, Any]
    """What the environment told beside the observation."""
    reward: float
    """For the last action; 0 at the start."""
    score: float
    """Rewards so far."""
    decision: Decision | None
    """What the policy makes of this state; None when the episode is over."""
    over: Over = ""


class Player:
    """Plays whole episodes in one environment."""

    def __init__(
        self,
        trained: Trained,
        *,
        mode: str,
        seed: int = 0,
        first: int = 0,
        deterministic: bool | None = None,
        max_steps: int | None = None,
    ) -> None:
        self.trained = trained
        self.mode = mode
        self.seed = seed
        self.first = first
        self.deterministic = trained.eval.deterministic if deterministic is None else deterministic
        self.max_steps = max_steps
        self.env = make_drawn(trained.env, mode)
        self.fps = fps_of(self.env)
        self._plan = obs_plan(self.env.observation_space)
        self._policy = rounded_alike(trained.policy)
        self._first_layer = FirstLayer(self._policy)

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def check_drawing(self) -> None:
        """Raise what a first picture would."""
        self._guarded("reset", lambda: self.env.reset(seed=self.seed))
        draw(self.env, self.trained.env.id)

    def episode(self, index: int) -> Iterator[Moment]:
        """The moments of an episode: ``index`` 0 is episode ``first`` of the seed."""
        index += self.first
        name = self.trained.env.id
        seed = seed_of(self.seed, "evaluation", index)
        rng = None if self.deterministic else stream(self.seed, "evaluation-policy", index)
        state = self._policy.initial_state(BLOCK)
        obs, info = self._guarded("reset", lambda: self.env.reset(seed=seed))
        step, reward, score, over = 0, 0.0, 0.0, self._over(0, False, False)
        while not over:
            frame = draw(self.env, name)
            leaves = self._guarded("step" if step else "reset", lambda: self._leaves(obs, info))  # noqa: B023
            decision, state = self._decide(leaves, state, first=step == 0, rng=rng)
            yield Moment(index, seed, step, frame, info, reward, score, decision)
            obs, reward, terminated, truncated, info = self._guarded(
                "step",
                lambda: self._step(decision.action),  # noqa: B023
            )
            step, score = step + 1, score + reward
            over = self._over(step, terminated, truncated)
        yield Moment(index, seed, step, draw(self.env, name), info, reward, score, None, over)

    def _over(self, step: int, terminated: bool, truncated: bool) -> Over:
        if terminated:
            return "terminated"
        if truncated:
            return "truncated"
        return "cut" if self.max_steps is not None and step >= self.max_steps else ""

    def _step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, faults.scalar_reward(reward), bool(terminated), bool(truncated), info

    def _decide(
        self, leaves: Arrays, state: Tensors, *, first: bool, rng: np.random.Generator | None
    ) -> tuple[Decision, Tensors]:
        """Ask the policy, in a block of equal rows: so its numbers are those of an evaluation."""
        policy = self._policy
        obs = {
            name: as_tensor(np.repeat(leaf[None], BLOCK, 0), policy.device)
            for name, leaf in leaves.items()
        }
        reset = torch.full((BLOCK,), first, device=policy.device)
        with torch.inference_mode():
            out, state = policy.step(obs, state, reset, None if rng is None else _SameNoise(rng))
        action = to_env_units(policy.signature.action, out.action[:1].cpu().numpy())
        decision = Decision(
            action=env_action(self.env.action_space, action[0]),
            value=self.trained.value_units.of(float(out.value[0])),
            first_layer=self._first_layer.output(),
            memory=_memory(state),
        )
        return decision, state

    def _leaves(self, obs: Any, info: dict[str, Any]) -> Arrays:
        """One observation, and its action mask, as the policy takes them."""
        leaves = {leaf.name: np.asarray(leaf.convert(leaf.pick(obs))) for leaf in self._plan}
        key = self.trained.env.action_mask_key
        if key is not None:
            spec = self.trained.policy.signature.obs[ACTION_MASK]
            if key not in info:
                raise LeafError(f"info has no action mask '{key}' (env.action_mask_key)")
            leaves[ACTION_MASK] = concatenate_mask(info[key]).astype(spec.dtype)
        return leaves

    def _guarded(self, where: str, call: Any) -> Any:
        """``call`` with what the environment's own code raises told in one line."""
        name = self.trained.env.id
        try:
            return call()
        except EnvironmentFault:
            raise
        except LeafError as error:
            raise faults.wrong(name, "played", where, str(error), faults.FIX_SPACE) from error
        except Exception as error:
            raise faults.raised(name, "played", where, error, "fix the environment") from error


def _memory(state: Tensors) -> Array | None:
    """The first leaf of a recurrent state: what the heads see."""
    for leaf in state.values():
        array: Array = leaf[0].float().cpu().numpy().copy()
        return array
    return None


class _SameNoise:
    """The noise of one episode for every row ``[B, ...]`` of a block."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def _draw(self, name: str, size: tuple[int, ...], dtype: Any) -> Array:
        one = getattr(self._rng, name)(size[1:], dtype)
        return np.repeat(np.asarray(one)[None], size[0], 0)

    def standard_exponential(self, size: Any, dtype: Any) -> Any:
        """Exponential noise."""
        return self._draw("standard_exponential", size, dtype)

    def standard_normal(self, size: Any, dtype: Any) -> Any:
        """Normal noise."""
        return self._draw("standard_normal", size, dtype)

    def random(self, size: Any, dtype: Any) -> Any:
        """Uniform noise."""
        return self._draw("random", size, dtype)
