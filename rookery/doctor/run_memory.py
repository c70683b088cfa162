"""What a run will take in memory, told in one line and checked before the run begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from rookery.core.errors import UserError
from rookery.doctor.machine import free_memory
from rookery.programs.memory import Needs, estimate
from rookery.programs.plan import Plan
from rookery.programs.render import size

LEFT_SHARE = 0.1
"""Of the free memory, what a run must leave to all else."""
LOWERED = ("capacity_steps", "rollout_steps", "batch_size")
"""Settings of algorithms that may be lowered to take less."""


def memory_note(needs: Needs) -> str:
    """One line on it."""
    note = f"memory: about {needs}"
    if needs.at_most > needs.total:
        note += (
            f" if its images compress as well as Atari's, {size(needs.at_most)} if they do not "
            "compress at all"
        )
    return note


def check_memory(
    plan: Plan, needs: Needs, *, one_host: bool = True, free_bytes: int | None = None
) -> None:
    """Refuse a run for which there is no memory, and say which setting would fit.

    ``one_host``: all of it is here; else no more than its largest process is sure to be.
    """
    free = free_memory()[0] if free_bytes is None else free_bytes
    room = free * (1.0 - LEFT_SHARE)

    def fits(needs: Needs) -> bool:
        return (needs.total if one_host else needs.largest) <= room

    if fits(needs):
        return
    where = "" if one_host else f", its largest process {size(needs.largest)}"
    raise UserError(
        f"the run takes about {needs}{where}, and {size(free)} are free; {_remedy(plan, fits)}"
    )


def _remedy(plan: Plan, fits: Callable[[Needs], bool]) -> str:
    """The setting whose change makes it fit and costs least of what was asked for."""
    algo, block = plan.config.algo_config, plan.config.algo_block
    found = [
        (value / getattr(algo, name), f"--{block}.{name} {value}")
        for name in LOWERED
        if hasattr(algo, name)
        and (value := _that_fits(plan, name, getattr(algo, name), fits)) is not None
    ]
    if found:
        return f"{max(found)[1]} would fit"
    names = ", ".join(f"--{block}.{name}" for name in LOWERED if getattr(algo, name, 1) > 1)
    return f"no setting alone would make it fit: lower --envs, --actors, {names} or --policy.hidden"


def _that_fits(plan: Plan, name: str, now: int, fits: Callable[[Needs], bool]) -> int | None:
    """The largest value of ``name``, in two digits, with which the run fits; None if there is none.

    What the settings together do not allow does not fit either.
    """

    def tried(value: int) -> bool:
        config = plan.config
        try:
            less = replace(config.algo_config, **{name: value})
            return fits(estimate(replace(plan, config=replace(config, algo_config=less))))
        except UserError:
            return False

    good = next((value for value in _halves(now) if tried(value)), None)
    if good is None:
        return None
    bad = 2 * good
    while bad - good > max(good // 50, 1):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if tried(middle) else (good, middle)
    rounded = good - good % 10 ** max(len(str(good)) - 2, 0)
    return rounded if tried(rounded) else good


def _halves(value: int) -> Iterator[int]:
    while value > 1:
        value //= 2
        yield value
