"""The evaluator: plays whole episodes with a saved policy and reports raw scores.

Episode ``i`` is played from its own seed, whichever environment plays it and whoever else plays
beside it, so a score depends neither on the number of environments nor on who finishes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from rookery.core.action import to_env_units
from rookery.core.errors import UserError
from rookery.core.heartbeat import Heartbeat
from rookery.core.interval import half_width
from rookery.core.ports import Answerer, BaseRole
from rookery.core.seeding import seed_of, stream
from rookery.core.spec import Array, Arrays, ArraySpec, under
from rookery.core.tensors import as_tensor
from rookery.envs.episodes import EpisodeEnvs
from rookery.envs.make import EnvConfig, has_time_limit
from rookery.nets.policy import Policy
from rookery.nets.rounding import rounded_alike

if TYPE_CHECKING:
    from rookery.runs.config import RunConfig


Score = Literal["return", "length"]

LONGEST = 10_000
"""Steps after which an episode is cut in evaluation if neither the environment nor the user sets a
limit: a policy that stands still would be played for ever."""

_INFO = "info/"

BLOCK = 32
"""Policies see a multiple of this many rows. Convolutions of few rows round otherwise than those of
many, and a score would depend on the number of environments. (Dense layers alone do not depend on
it: see :func:`~rookery.nets.rounding.rounded_alike`.)"""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """How a policy is judged."""

    every_steps: int | None = None
    """Evaluate each this many steps; null: only when the training score reaches stop_at, and at
    the end."""
    episodes: int = 20
    """Episodes per evaluation; 0 switches the evaluator off."""
    first_episodes: int = 0
    """Play this many first, and the rest only if their mean reaches stop_at; 0: play all."""
    deterministic: bool = True
    """Take the most likely action instead of sampling."""
    score: Score = "return"
    """What stop_at and the best checkpoint go by: the raw return, or the episode's length."""
    max_steps: int | None = None
    """Cut episodes after this many steps; 0: never; null: after 10,000 where the environment sets
    no limit itself."""
    after_limit: bool = False
    """Evaluate also when the time limit has ended the run, which then takes longer than that."""
    num_envs: int = 32
    """Episodes played side by side."""

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise UserError("eval.every_steps: must be at least 1, or null")
        if self.episodes < 0 or self.num_envs < 1:
            raise UserError("eval.episodes must not be negative, eval.num_envs at least 1")
        if self.first_episodes < 0:
            raise UserError(f"eval.first_episodes: must not be negative, got {self.first_episodes}")
        if self.max_steps is not None and self.max_steps < 0:
            raise UserError("eval.max_steps: must not be negative; 0 plays episodes to their end")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Raw scores of whole episodes, in the order of their seeds."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    cut: int = 0
    """Episodes ended after :data:`LONGEST` steps, for want of a limit."""
    info: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Values of ``info`` at their ends, by key; NaN where there was none."""

    def mean(self, score: Score) -> float:
        """The mean return or length."""
        return float(np.mean(self.returns if score == "return" else self.lengths))

    def and_then(self, later: Evaluation) -> Evaluation:
        """With the episodes of ``later`` after these."""
        return Evaluation(
            self.returns + later.returns,
            self.lengths + later.lengths,
            self.cut + later.cut,
            {key: values + later.info[key] for key, values in self.info.items()},
        )

    def info_means(self) -> dict[str, float]:
        """The mean of each value of ``info``, over the episodes that had it."""
        known = {key: [x for x in row if not math.isnan(x)] for key, row in self.info.items()}
        return {key: float(np.mean(row)) for key, row in known.items() if row}

    def summary(self) -> dict[str, Any]:
        """The JSON of ``rookery eval``: mean, deviation and 95 % interval of the mean."""
        mean, std, interval = mean_and_interval(self.returns)
        length, length_std, length_interval = mean_and_interval(self.lengths)
        return {
            "episodes": len(self.returns),
            "return_mean": mean,
            "return_std": std,
            "return_ci95": interval,
            "return_min": min(self.returns),
            "return_max": max(self.returns),
            "length_mean": length,
            "length_std": length_std,
            "length_ci95": length_interval,
            "info_means": self.info_means(),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
        }


class Evaluator(BaseRole):
    """Plays with the saved policies that it is asked about."""

    def __init__(
        self,
        config: RunConfig,
        policy: Policy,
        requests: Answerer,
        run: Path,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        heartbeat: Heartbeat | None = None,
        late_secs: float = 0.0,
    ) -> None:
        """``late_secs``: how much later than at the head a checkpoint may be seen here."""
        self.config, self.policy, self.requests, self.run = config, policy, requests, run
        self.should_stop, self.late_secs = should_stop, late_secs
        self.heartbeat = heartbeat or Heartbeat()

    def ready(self) -> bool:
        """Whether a checkpoint waits for its score."""
        return self.requests.asked_about() is not None

    def wait(self, timeout_secs: float) -> None:
        """Sleep until one may."""
        with self.heartbeat.waiting():
            self.requests.wait(timeout_secs)

    def step(self) -> None:
        """Score the oldest that waits, unless stopped on the way."""
        from rookery.roles.learner import load_weights
        from rookery.runs.find import await_checkpoint, load_checkpoint

        steps = self.requests.asked_about()
        if steps is None or not await_checkpoint(self.run, steps, self.late_secs, self.should_stop):
            return
        weights = load_checkpoint(self.run, str(steps), parts=["weights"]).parts["weights"]
        load_weights(self.policy, weights)
        self.heartbeat.progress(0)
        result = evaluate_config(
            self.config, self.policy, self.should_stop, self.heartbeat.progress
        )
        if result is not None:
            self.requests.answer(
                count=np.array([len(result.returns), result.cut]),
                returns=np.array(result.returns),
                lengths=np.array(result.lengths),
                **{f"{_INFO}{key}": np.array(values) for key, values in result.info.items()},
            )
        self.heartbeat.rest()

    def answer(self) -> None:
        """Score all that wait."""
        while self.ready() and not self.should_stop():
            self.step()


def answer_spec(episodes: int, info_keys: tuple[str, ...] = ()) -> dict[str, ArraySpec]:
    """What an evaluation of ``episodes`` answers."""
    value = ArraySpec((episodes,), np.dtype(np.float64))
    return {
        "count": ArraySpec((2,), np.dtype(np.int64)),
        "returns": value,
        "lengths": ArraySpec((episodes,), np.dtype(np.int64)),
        **{f"{_INFO}{key}": value for key in info_keys},
    }


def read_answer(values: Arrays) -> Evaluation | None:
    """The evaluation in an answer; None if it is none, of a host that is not what it says."""
    count, cut = map(int, values["count"])
    if not 0 < count <= len(values["returns"]):
        return None
    returns, lengths = values["returns"][:count], values["lengths"][:count]
    info = {key: tuple(row[:count].tolist()) for key, row in under(_INFO, values).items()}
    return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()), cut, info)


def note_on_cuts(evaluation: Evaluation, flag: str) -> str:
    """What to say of episodes that nobody asked to be cut."""
    count = len(evaluation.returns)
    return (
        f"{evaluation.cut} of {count} episodes were ended after {LONGEST:,} steps, because the "
        f"environment sets no time limit; {flag} N sets another, 0 none"
    )


def mean_and_interval(scores: Sequence[float]) -> tuple[float, float, list[float] | None]:
    """Mean, deviation, and 95 % interval of the mean; a single score has none."""
    values = np.asarray(scores, np.float64)
    mean = float(values.mean())
    std = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    half = half_width(std, len(values))
    return mean, std, None if half is None else [mean - half, mean + half]


def evaluate_config(
    config: RunConfig,
    policy: Policy,
    should_stop: Callable[[], bool] = lambda: False,
    on_episodes: Callable[[int], Any] = lambda num_over: None,
) -> Evaluation | None:
    """Evaluate as the run's configuration says; None if stopped on the way.

    ``on_episodes`` is told, whenever some have ended, how many have.
    """

    def play(begin: int, end: int) -> Evaluation:
        return evaluate(
            policy,
            config.env,
            episodes=end - begin,
            first_episode=begin,
            seed=seed_of(config.seed, "evaluation"),
            deterministic=config.eval.deterministic,
            max_steps=config.eval.max_steps,
            num_envs=config.eval.num_envs,
            info_keys=config.metrics.info_keys,
            should_stop=should_stop,
            on_episodes=lambda num_over: on_episodes(begin + num_over),
        )

    first, everything = config.eval.first_episodes, config.eval.episodes
    if not 0 < first < everything or config.stop_at is None:
        result = play(0, everything)
    else:
        result = play(0, first)
        if not should_stop() and result.mean(config.eval.score) >= config.stop_at:
            result = result.and_then(play(first, everything))
    return None if should_stop() else result


def evaluate(
    policy: Policy,
    env: EnvConfig,
    *,
    episodes: int,
    seed: int,
    first_episode: int = 0,
    deterministic: bool,
    max_steps: int | None,
    num_envs: int,
    info_keys: tuple[str, ...] = (),
    should_stop: Callable[[], bool] = lambda: False,
    on_episodes: Callable[[int], Any] = lambda num_over: None,
) -> Evaluation:
    """Play ``episodes`` whole episodes; episode ``i`` has its own seed for world and policy.

    ``max_steps``: None cuts those after :data:`LONGEST` that have no limit of their own; 0 none.
    ``on_episodes`` is told, whenever some have ended, how many have.
    """
    policy = rounded_alike(policy)
    unlimited = max_steps is None and not has_time_limit(env)
    numbers = range(first_episode, first_episode + episodes)
    envs = EpisodeEnvs(
        env,
        seeds=[seed_of(seed, "evaluation", i) for i in numbers],
        num_envs=min(num_envs, episodes),
        max_steps=LONGEST if unlimited else max_steps or None,
        info_keys=info_keys,
    )
    rngs = [stream(seed, "evaluation-policy", i) for i in numbers]
    lanes, device = envs.num_envs, policy.device
    rows = np.minimum(np.arange(-(-lanes // BLOCK) * BLOCK), lanes - 1)
    state = policy.initial_state(len(rows))
    try:
        with torch.inference_mode():
            obs = envs.start()
            while envs.running.any() and not should_stop():
                seen = {name: as_tensor(leaf[rows], device) for name, leaf in obs.items()}
                reset = as_tensor(envs.begins[rows], device)
                noise = None if deterministic else _PerEpisode(rngs, envs.episode, len(rows))
                out, state = policy.step(seen, state, reset, noise)
                action = out.action[:lanes].cpu().numpy()
                before = envs.num_over
                obs = envs.step(to_env_units(policy.signature.action, action))
                if envs.num_over > before:
                    on_episodes(envs.num_over)
    finally:
        envs.close()
    info = {key: tuple(values) for key, values in envs.info.items()}
    cut = envs.num_cut if unlimited else 0
    return Evaluation(tuple(envs.returns), tuple(envs.lengths), cut, info)


class _PerEpisode:
    """Noise that draws each row ``[B, ...]`` from the stream of the episode it plays."""

    def __init__(self, rngs: list[np.random.Generator], episode: Array, num_rows: int) -> None:
        self.rngs = [rngs[index] for index in episode]
        self.num_rows = num_rows

    def _draw(self, name: str, size: tuple[int, ...], dtype: Any) -> Array:
        """The rows after the lanes only fill the block: any noise will do."""
        noise = np.ones((self.num_rows, *size[1:]), dtype)
        for row, rng in enumerate(self.rngs):
            noise[row] = getattr(rng, name)(size[1:], dtype)
        return noise

    def standard_exponential(self, size: Any, dtype: Any) -> Any:
        """Exponential noise."""
        return self._draw("standard_exponential", size, dtype)

    def standard_normal(self, size: Any, dtype: Any) -> Any:
        """Normal noise."""
        return self._draw("standard_normal", size, dtype)

    def random(self, size: Any, dtype: Any) -> Any:
        """Uniform noise."""
        return self._draw("random", size, dtype)
