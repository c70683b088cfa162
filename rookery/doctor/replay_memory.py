"""What a run's replay will take in memory, told and checked before the run begins."""

from __future__ import annotations

from typing import NamedTuple

from rookery.core.errors import UserError
from rookery.doctor.finding import size
from rookery.doctor.machine import free_memory
from rookery.envs.atari import may_be_game
from rookery.formations.replay import sequences_port, settings_of, step_spec
from rookery.programs.plan import Plan
from rookery.replay.memory import PACKED, estimate_bytes
from rookery.roles.replay import table_config

LEFT_SHARE = 0.1
"""Of the free memory, what replay must leave to all else."""


class Needs(NamedTuple):
    """Bytes of a full replay."""

    table: int
    batches: int
    """On their way from its process to the learners."""

    @property
    def total(self) -> int:
        """Both."""
        return self.table + self.batches


def replay_bytes(plan: Plan, packed: float = PACKED) -> Needs | None:
    """What a full replay takes, None if the run has none; images are ``packed`` so many times."""
    if plan.config.algo_config.experience != "replay":
        return None
    _, algo = settings_of(plan.config)
    table = estimate_bytes(
        table_config(algo, plan.config.env.num_envs), step_spec(plan), packed=packed
    )
    batches = 0
    if plan.concurrent:
        batches = sum(leaf.num_bytes for leaf in sequences_port(plan).layout().values())
    return Needs(table, batches)


def replay_note(plan: Plan) -> str | None:
    """One line on it, None if the run has none."""
    needed, unpacked = replay_bytes(plan), replay_bytes(plan, packed=1.0)
    if needed is None or unpacked is None:
        return None
    _, algo = settings_of(plan.config)
    note = f"replay of {algo.capacity_steps:,} steps: up to {size(needed.total)}"
    if unpacked == needed or may_be_game(plan.config.env.id):
        return note
    return f"{note} if its images compress as well as Atari's, {size(unpacked.total)} if not at all"


def check_replay_fits(plan: Plan, free_bytes: int | None = None) -> None:
    """Refuse a replay for which there is no memory, and say which would fit."""
    needed = replay_bytes(plan)
    if needed is None:
        return
    _, algo = settings_of(plan.config)
    free = free_memory()[0] if free_bytes is None else free_bytes
    room = free * (1.0 - LEFT_SHARE)
    if needed.total <= room:
        return
    block = plan.config.algo_block
    told = f"a replay of {algo.capacity_steps:,} steps takes up to {size(needed.total)}, and "
    told += f"{size(free)} are free"
    if needed.batches > room / 2:
        raise UserError(
            f"{told}; {size(needed.batches)} are for batches: lower --{block}.batch_size, or "
            f"--{block}.length and burn_in"
        )
    # Not all of it grows in proportion: indices come in powers of two.
    fits = int(0.8 * algo.capacity_steps * (room - needed.batches) / needed.table)
    fits -= fits % 10 ** max(len(str(fits)) - 2, 0)
    raise UserError(f"{told}: --{block}.capacity_steps {fits} would fit")
