"""Which episode to begin with: one that is typical of the agent, unless the watcher chose.

::

    opening = chosen_opening(trained, seed=None, first=None, deterministic=None, max_steps=None)
    print(opening.why)
    Player(trained, mode="rgb_array", seed=opening.seed, first=opening.episode)

An agent's first episode may be its worst. The typical one is nearest to the median of those that
were played for its score, or else of a few that are played for this, unseen.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from rookery.core.errors import EnvironmentFault
from rookery.roles.evaluator import Score, evaluate
from rookery.runs.trained import Scored, Trained

DEFAULT_SEED = 0
TRIED, TRIED_SECS = 9, 3.0
"""Episodes that are played to find a typical one, and when to stop looking."""


@dataclass(frozen=True, slots=True)
class Opening:
    """An episode of `rookery eval`."""

    seed: int
    episode: int
    """Counted from 0."""
    why: str = ""
    """What to say of it; '' if the watcher knows."""


def chosen_opening(
    trained: Trained,
    *,
    seed: int | None,
    first: int | None,
    deterministic: bool | None,
    max_steps: int | None,
) -> Opening:
    """The episode ``first`` of ``seed`` if either is given, else a typical one."""
    if seed is not None or first is not None:
        return Opening(DEFAULT_SEED if seed is None else seed, first or 0)
    mode = trained.eval.deterministic if deterministic is None else deterministic
    known = trained.scored
    if known is None or known.deterministic != mode:
        try:
            known = _tried(trained, mode, max_steps)
        except EnvironmentFault:  # it is told in its own words when the episode is shown
            return Opening(DEFAULT_SEED, 0)
    return typical(known, trained.eval.score)


def typical(scored: Scored, by: Score) -> Opening:
    """The episode nearest to the median; the length settles between equal returns.

    Episodes of length 0 were not over when time was up. Those are the long ones: if most are, the
    first of them is typical.
    """
    lengths = np.asarray(scored.lengths)
    over = np.flatnonzero(lengths)
    if 2 * len(over) <= len(lengths):
        episode = int(np.flatnonzero(lengths == 0)[0])
        return Opening(scored.seed, episode, _told(scored.seed, episode, "a long one"))
    values = np.asarray(scored.returns if by == "return" else scored.lengths, np.float64)[over]
    median, middle = np.median(values), np.median(lengths[over])
    off = np.abs(lengths[over] - middle)
    place = int(np.lexsort((over, off, np.abs(values - median)))[0])
    episode = int(over[place])
    what = (
        f"typical of {len(over)} ({by} {_number(values[place])}, median {_number(float(median))})"
    )
    return Opening(scored.seed, episode, _told(scored.seed, episode, what))


def _told(seed: int, episode: int, what: str) -> str:
    number = episode + 1
    again = f"--seed {seed} --first {number} shows it again"
    return f"begins with episode {number} of seed {seed}, {what}; {again}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _tried(trained: Trained, deterministic: bool, max_steps: int | None) -> Scored:
    """A few episodes, side by side; those that are not over when time is up have length 0."""
    deadline = time.monotonic() + TRIED_SECS
    result = evaluate(
        trained.policy,
        trained.env,
        episodes=TRIED,
        seed=DEFAULT_SEED,
        deterministic=deterministic,
        max_steps=max_steps,
        num_envs=TRIED,
        should_stop=lambda: time.monotonic() > deadline,
    )
    return Scored(DEFAULT_SEED, deterministic, max_steps, result.returns, result.lengths)
