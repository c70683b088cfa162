"""The thread budget: how many compute threads each role would have, and whether they fit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rookery.doctor.finding import Finding, Wanted, note, ok, warning
from rookery.doctor.machine import usable_cores
from rookery.envs.atari import may_be_game
from rookery.formations.settings import formation_block

if TYPE_CHECKING:
    from rookery.envs.make import EnvConfig


def budget(
    wanted: Wanted, cores: int | None = None, environ: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Threads of the roles against the cores."""
    number = cores if cores is not None else usable_cores()[0]
    yield _roles(wanted, number)
    yield _openmp(number, environ)


def _roles(wanted: Wanted, cores: int) -> Finding:
    config = wanted.config
    if config is None:
        many = "an actor for each core" if cores > 1 else "one actor"
        text = f"inline: 1 process, 1 thread; local: {many} and a learner, 1 thread each"
        return ok("threads", text, cores=cores)
    roles = {node.name: _Role(node.name, node.replicas, node.num_threads) for node in wanted.nodes}
    formation, block = config.formation_config, formation_block(config.formation)
    acting = formation.acting_role
    roles[acting] = roles[acting].with_games(config.env)
    data = {
        "cores": cores,
        "roles": {r.name: {"replicas": r.replicas, "threads": r.threads} for r in roles.values()},
    }
    if wanted.engine == "inline" and not config.threads:
        most = max(roles.values(), key=lambda role: role.threads)
        text = f"one process takes turns, with {most.threads} for {cores} cores"
        if most.threads > cores:
            return warning("threads", text, most.fewer_threads(block, cores), **data)
        return ok("threads", text, **data)
    total = sum(role.total for role in roles.values())
    text = f"{', '.join(map(str, roles.values()))}: {total} for {cores} cores"
    for role in roles.values():
        if role.total > cores:
            text = f"{text}: {role.name} alone has too many"
            return warning("threads", text, role.fewer(block, cores), **data)
    if total <= cores:
        return ok("threads", text, **data)
    if acting == "actor" and not (config.behind or config).formation_config.off_policy:
        return note("threads", f"{text}; actors and learner take turns, so they fit", "", **data)
    busy = sum(roles[node.name].total for node in wanted.nodes if node.busy)
    how = "they share the cores" if busy > cores else "not all work all the time, so they fit"
    return note("threads", f"{text}; {how}", "", **data)


@dataclass(frozen=True, slots=True)
class _Role:
    """How many there are of a role, and compute threads of each."""

    name: str
    replicas: int
    threads: int

    @property
    def total(self) -> int:
        return self.replicas * self.threads

    def __str__(self) -> str:
        return f"{self.name}{f' x{self.replicas}' if self.replicas > 1 else ''} {self.threads}"

    def with_games(self, env: EnvConfig) -> _Role:
        """The same with the threads that step Atari games, for which it waits."""
        if not may_be_game(env.id.rpartition(":")[2]):
            return self
        return replace(self, threads=max(self.threads, env.atari.num_threads * env.halves))

    def fewer(self, block: str, cores: int) -> str:
        """The flag by which they fit."""
        if self.replicas > cores:
            return f"--{self.name}s {cores}"
        return self.fewer_threads(block, cores // self.replicas)

    def fewer_threads(self, block: str, number: int) -> str:
        """The flag for ``number`` threads of each."""
        if self.name == "actor":
            return f"--env.atari.num_threads {number}"
        return f"--{block}.{self.name}_threads {number}"


def _openmp(cores: int, environ: Mapping[str, str]) -> Finding:
    given = environ.get("OMP_NUM_THREADS", "")
    if not given:
        return ok("OpenMP", "OMP_NUM_THREADS is not set; Rookery sets it for each of its processes")
    text = f"OMP_NUM_THREADS={given}; Rookery's processes have their own"
    if given.isdigit() and int(given) > cores:
        return note("OpenMP", f"{text} (more than the {cores} cores)", "")
    return ok("OpenMP", text)
