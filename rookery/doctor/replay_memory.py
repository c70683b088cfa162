"""What a run's replay will take in memory, told and checked before the run begins."""

from __future__ import annotations

from typing import NamedTuple

from rookery.algos.algorithm import block_name
from rookery.algos.dqn import DQNConfig
from rookery.core.errors import UserError
from rookery.core.signature import Signature
from rookery.doctor.finding import size
from rookery.doctor.machine import free_memory
from rookery.envs.atari import may_be_game
from rookery.formations.replay import ReplayConfig
from rookery.nets.policy import Policy
from rookery.replay.memory import PACKED, estimate_bytes
from rookery.roles.build import build_policy
from rookery.roles.replay import step_spec, table_config
from rookery.runs.config import RunConfig
from rookery.transport.sample_slots import sample_slot_specs

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


def replay_bytes(config: RunConfig, policy: Policy, packed: float = PACKED) -> Needs | None:
    """What a full replay takes, None if the run has none; images are ``packed`` so many times."""
    algo, formation = config.algo_config, config.formation_config
    if not isinstance(algo, DQNConfig) or not isinstance(formation, ReplayConfig):
        return None
    table = table_config(algo, formation.num_actors * config.env.num_envs)
    spec = step_spec(algo, policy)
    batches = 0
    if config.engine == "local":
        slots = sample_slot_specs(
            spec,
            num_slots=formation.num_slots,
            num_steps=algo.sequence.num_steps,
            batch_size=algo.batch_size,
            episode_width=2,
        )
        batches = sum(leaf.num_bytes for leaf in slots.values())
    return Needs(estimate_bytes(table, spec, packed=packed), batches)


def replay_note(config: RunConfig, signature: Signature) -> str | None:
    """One line on it, None if the run has none."""
    algo = config.algo_config
    if not isinstance(algo, DQNConfig):
        return None
    policy = build_policy(config, signature)
    needed, unpacked = replay_bytes(config, policy), replay_bytes(config, policy, packed=1.0)
    assert needed is not None
    assert unpacked is not None
    note = f"replay of {algo.capacity_steps:,} steps: up to {size(needed.total)}"
    if unpacked == needed or may_be_game(config.env.id):
        return note
    return f"{note} if its images compress as well as Atari's, {size(unpacked.total)} if not at all"


def check_replay_fits(config: RunConfig, policy: Policy, free_bytes: int | None = None) -> None:
    """Refuse a replay for which there is no memory, and say which would fit."""
    needed, algo = replay_bytes(config, policy), config.algo_config
    if needed is None:
        return
    assert isinstance(algo, DQNConfig)
    free = free_memory()[0] if free_bytes is None else free_bytes
    room = free * (1.0 - LEFT_SHARE)
    if needed.total <= room:
        return
    block = block_name(config.algo)
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
