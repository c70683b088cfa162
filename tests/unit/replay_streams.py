"""Episodes with a number for each step, and the sequences they must make, by plain lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rookery.core.sequence import Sequences, Steps, StepSpec
from rookery.core.spec import Array, ArraySpec
from rookery.replay.sequences import SequenceConfig

FLOAT = np.dtype(np.float32)
SPEC = StepSpec(
    obs={"obs": ArraySpec((2,), FLOAT)},
    action=ArraySpec((), np.dtype(np.int64)),
    state={"hidden": ArraySpec((3,), FLOAT)},
    extra={"q": ArraySpec((), FLOAT)},
)


@dataclass
class Episode:
    """Steps ``number, number + 1, ...`` of one stream; all fields follow from the number."""

    number: int
    length: int = 0
    terminated: bool = False
    truncated: bool = False

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated


def obs_of(number: int) -> list[float]:
    return [float(number), -0.5 * number]


@dataclass
class Streams:
    """Random episodes in ``num_streams`` streams."""

    num_streams: int
    seed: int
    end_rate: float = 0.08
    skip_rate: float = 0.0
    """How often the backend spends a step on a reset."""
    episodes: list[list[Episode]] = field(default_factory=list)
    _number: int = 1

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.episodes = [[self._new()] for _ in range(self.num_streams)]

    def _new(self) -> Episode:
        self._number += 10_000
        return Episode(self._number)

    def step(self, streams: Array | None = None) -> Steps:
        """One step of ``streams``; ended episodes are followed by new ones."""
        chosen = np.arange(self.num_streams) if streams is None else streams
        now = [self.episodes[stream][-1] for stream in chosen]
        valid = self.rng.random(len(chosen)) >= self.skip_rate
        number = np.array([episode.number + episode.length for episode in now])
        ends = (self.rng.random(len(chosen)) < self.end_rate) & valid
        cut = self.rng.random(len(chosen)) < 0.5
        for stream, episode, ok, end, by_cut in zip(chosen, now, valid, ends, cut, strict=True):
            episode.length += bool(ok)
            if end:
                episode.terminated, episode.truncated = not by_cut, bool(by_cut)
                self.episodes[stream].append(self._new())
        return Steps(
            stream=chosen,
            obs={"obs": np.array([obs_of(n) for n in number], np.float32)},
            action=number * 3,
            reward=number * 0.25,
            terminated=ends & ~cut,
            truncated=ends & cut,
            final_obs={"obs": np.array([obs_of(n + 1) for n in number], np.float32)},
            valid=valid,
            state={"hidden": np.repeat(number[:, None], 3, 1).astype(np.float32)},
            extra={"q": (number + 0.5).astype(np.float32)},
            final_extra={"q": (number + 1.5).astype(np.float32)},
        )


def expected_windows(episode: Episode, config: SequenceConfig) -> Iterator[tuple[int, list[int]]]:
    """Padding in front and step numbers within the episode, of each window that is complete."""
    k, learned = 0, 0
    while True:
        begin, stop = k * config.period, k * config.period + config.length
        rows = range(begin - config.burn_in, stop + config.n_step - 1)
        whole = episode.length > rows[-1] + 1  # the observation behind the last step is there too
        if not (whole or (episode.over and episode.length > learned)):
            return
        steps = [at for at in rows if 0 <= at < episode.length]
        yield max(-rows[0], 0), steps
        k, learned = k + 1, stop


def expected_sequence(
    episode: Episode, padding: int, steps: list[int], total: int
) -> dict[str, Array]:
    """All fields of one sequence ``[T or T+1, ...]``."""
    out: dict[str, Array] = {
        "obs": np.zeros((total + 1, 2)),
        "q": np.zeros(total + 1),
        "reset": np.zeros(total + 1, np.bool_),
        "action": np.zeros(total),
        "reward": np.zeros(total),
        "terminated": np.zeros(total, np.bool_),
        "truncated": np.zeros(total, np.bool_),
        "mask": np.zeros(total, np.bool_),
        "hidden": np.full(3, episode.number + steps[0]),
    }
    for at, step in enumerate([*steps, steps[-1] + 1], start=padding):
        out["obs"][at], out["q"][at] = obs_of(episode.number + step), episode.number + step + 0.5
    for at, step in enumerate(steps, start=padding):
        number, last = episode.number + step, step == episode.length - 1
        out["action"][at], out["reward"][at], out["mask"][at] = number * 3, number * 0.25, True
        out["terminated"][at] = last and episode.terminated
        out["truncated"][at] = last and episode.truncated
    out["reset"][padding] = steps[0] == 0
    return out


def found_sequence(found: Sequences, column: int) -> dict[str, Array]:
    """One of ``found`` in the same form."""
    return {
        "obs": found.obs["obs"][:, column],
        "q": found.extra["q"][:, column],
        "hidden": found.state["hidden"][column],
        **{
            name: getattr(found, name)[:, column]
            for name in ("reset", "action", "reward", "terminated", "truncated", "mask")
        },
    }
