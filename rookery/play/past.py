"""An agent as it was at earlier times of its training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rookery.core.errors import UserError
from rookery.nets.q_network import QNetwork
from rookery.roles.learner import load_weights
from rookery.runs.checkpoint_files import MANIFEST, State
from rookery.runs.directory import RunDirectory
from rookery.runs.find import is_run
from rookery.runs.history import History
from rookery.runs.trained import Trained, load_config, run_of
from rookery.runs.value_units import normalizes_rewards, value_units

GRACE_SHARE = 0.05
"""A time that lies this share beyond the end of a run still means its end."""


@dataclass(frozen=True, slots=True)
class PastAgent:
    """An agent and when it was like this."""

    trained: Trained
    wall_secs: float
    untrained: bool = False
    """Whether its weights are those that chance gave it."""

    @property
    def caption(self) -> str:
        """Its training time and steps."""
        if self.untrained:
            return "untrained"
        return f"{words_of(self.wall_secs)} · {short_count(self.trained.steps)} steps"


def past_agents(source: str, trained: Trained, times: Sequence[float]) -> list[PastAgent]:
    """The agent of a run as it was nearest to each of ``times``, in seconds of training.

    One that has learned nothing is marked, so that it may act by chance as it did then: its most
    likely action would be an accident of its first weights, which on CartPole may balance for long.
    """
    run = _run_directory(source)
    history = History(run / "history")
    snapshots = history.snapshots()
    if not snapshots:
        raise UserError(
            f"--at: {run} has no history of its weights (checkpoint.history was 0, or it was "
            "trained before there was one); train it again or leave --at out"
        )
    last = snapshots[-1].wall_secs
    config = load_config(RunDirectory.open(run)).to_tree()
    agents = []
    for secs in times:
        if secs > last * (1 + GRACE_SHARE):
            raise UserError(
                f"--at: {words_of(secs)} is beyond the end of {run}, which was trained for "
                f"{words_of(last)}; give times up to that"
            )
        snapshot = history.nearest(secs)
        policy = copy.deepcopy(trained.policy)
        load_weights(policy, State(snapshot.load()))
        untrained = snapshot.steps == 0 and not _had_weights(run)
        if untrained and isinstance(policy, QNetwork):
            policy.play_epsilon = 1.0  # values that nothing was learned for choose nothing
        units = trained.value_units
        if normalizes_rewards(config):
            units = value_units(config, reward_deviation=None)  # that of then is not known
        then = replace(trained, policy=policy, steps=snapshot.steps, value_units=units, scored=None)
        agents.append(PastAgent(then, snapshot.wall_secs, untrained))
    return agents


def _had_weights(run: Path) -> bool:
    """Whether a run began with weights of another (``--init-from``)."""
    return any("init_from" in session for session in RunDirectory.open(run).read_meta())


def _run_directory(source: str) -> Path:
    path = Path(source)
    if (path / MANIFEST).is_file():
        return run_of(path.resolve()).path
    if is_run(path):
        return path
    if path.name == "checkpoints" and path.is_dir():
        return path.parent
    raise UserError(f"--at: {source} has no history of its training; give a run directory")


def words_of(secs: float) -> str:
    """A time in the two units that matter."""
    whole = round(secs)
    if secs < 10 and secs != whole:
        return f"{secs:.1f} s"
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    if minutes:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    return f"{seconds} s"


def short_count(number: int) -> str:
    """12,345,678 as 12.3M."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)
