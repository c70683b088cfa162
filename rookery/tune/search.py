"""The search: one kind of setting after the other, each beginning with the best so far.

::

    best = search(settings, run_trial, cores, tell)
    best.flags          # what to change, as flags of `rookery train`

A kind may have several candidates. Each changes what was best when the turn of its kind came, not
the one before it: formations have settings of their own, which no other takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from rookery.algos.algorithm import block_name
from rookery.algos.on_policy import OnPolicyConfig
from rookery.core.errors import UserError
from rookery.formations.settings import (
    formation_block,
    formation_config_class,
    formation_names,
)
from rookery.runs.config import RunConfig
from rookery.tune.trial import Trial

Flags = dict[str, str]
Settings = Callable[[Flags], RunConfig]
"""The configuration with some flags more; raises :class:`UserError` where they do not fit."""

GAIN = 1.03
"""Rates waver: what is not this much faster changes nothing."""
MOST_ENVS = 4096
"""In the whole run."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings, as flags, and what they gave."""

    flags: Flags
    trial: Trial

    @property
    def name(self) -> str:
        """The flags as they are typed."""
        typed = (f"--{key.replace('_', '-')} {value}" for key, value in self.flags.items())
        return " ".join(typed) or "as it is"


def search(
    settings: Settings,
    run: Callable[[RunConfig], Trial],
    cores: int,
    tell: Callable[[Choice], None],
    fixed: Collection[str] = (),
) -> Choice:
    """The fastest settings found; flags that are ``fixed`` are nobody's to change."""

    seen: list[RunConfig] = []

    def attempt(flags: Flags) -> Choice | None:
        try:
            config = settings(flags)
        except UserError:
            return None  # this recipe cannot be trained so
        if config in seen:
            return None
        seen.append(config)
        choice = Choice(flags, run(config))
        tell(choice)
        return choice

    settings({})  # what cannot be trained at all is refused here
    best = attempt({})
    assert best is not None
    for stage in (_formations, _environments, _threads, _batches):
        before = best.flags
        for more in stage(settings(before), cores):
            free = {flag: value for flag, value in more.items() if flag not in fixed}
            choice = attempt(before | free)
            if choice is not None and choice.trial.steps_per_s > GAIN * best.trial.steps_per_s:
                best = choice
    return best


def _formations(config: RunConfig, cores: int) -> Iterator[Flags]:
    """Every formation that fits this machine; the batch is the same, whoever makes it."""
    known = {name: formation_config_class(name) for name in formation_names()}
    learned = config.algo_config.experience
    fit = {name: formation for name, formation in known.items() if formation.experience == learned}
    for name, formation in fit.items():
        named = {"formation": name} if len(fit) > 1 else {}
        if not formation.alone_in_thread:
            yield named | {"engine": "inline"}
        # A learner that goes on meanwhile needs a core too.
        numbers = {1, max(cores - 1, 1), cores} if formation.off_policy else {cores}
        for actors in sorted(numbers):
            yield named | {"engine": "local", "actors": str(actors)}


def _environments(config: RunConfig, cores: int) -> Iterator[Flags]:
    """Fewer and more environments; they change the batch, too."""
    count = config.env.num_envs
    for number in (count // 2, count * 2, count * 4):
        if 1 <= number <= MOST_ENVS:
            yield {"envs": str(number)}


def _threads(config: RunConfig, cores: int) -> Iterator[Flags]:
    """More compute threads for those that learn, as far as there are cores."""
    learns = "worker" if config.formation_config.acting_role == "worker" else "learner"
    for threads in range(2, cores + 1):
        yield {f"{formation_block(config.formation)}.{learns}_threads": str(threads)}


def _batches(config: RunConfig, cores: int) -> Iterator[Flags]:
    """Larger and smaller minibatches; they change what is learned, too."""
    if not isinstance(config.algo_config, OnPolicyConfig):
        return
    parts = config.algo_config.num_minibatches
    for number in (parts // 2, parts * 2):
        if number >= 1:
            yield {f"{block_name(config.algo)}.num_minibatches": str(number)}
