"""Ranks that mpiexec or srun has started already: each takes the role of its rank.

Rank 0 keeps the session and evaluates; the other roles have a rank each. Rank 0 says when it
begins, with which settings, and when it is over. Whoever fails ends the whole job with one line
that names it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rookery.carriers.heap import allocate
from rookery.carriers.mpi import Bridge, MpiGroup, MpiWakeup, World
from rookery.core.errors import EnvironmentFault, UserError
from rookery.core.heartbeat import ALIVE
from rookery.core.patience import Attention
from rookery.core.ports import End
from rookery.core.signature import Signature
from rookery.engines.assemble import Wired, layouts
from rookery.engines.engine import Finish, Job
from rookery.engines.interrupt import Interrupt, Stop, exit_code_of
from rookery.engines.launcher import HEARD_SECS, openmpi_started_us, slurm_step_of
from rookery.engines.loop import Member, NowAndThen, Stopping, build_member, run_members
from rookery.engines.rank_guard import OTHERS_SECS
from rookery.engines.session_owner import SessionOwner, begin_with
from rookery.envs.timeout import certain_secs
from rookery.programs.graph import Edge, Node, Program
from rookery.programs.plan import Plan, compute_threads
from rookery.recipes.settings import config_from_tree
from rookery.runs.checkpoint_files import LEARNER_PARTS, State
from rookery.runs.config import RunConfig
from rookery.runs.directory import RunDirectory
from rookery.runs.packed_parts import pack_parts, unpack_parts
from rookery.runs.stage import FIRST_BATCH, starting

SILENCE_SECS = 10.0
"""Beyond the environment's own time-out, which comes first: it can name the environment."""
LOOK_SECS = 0.5
LEAVE = -1
"""What rank 0 tells the others before it says with which code all end."""


@cache
def world() -> World:
    """All ranks; MPI starts at the first call, with the library of the launcher."""
    if openmpi_started_us() and "MPI4PY_LIBMPI" not in os.environ:
        os.environ.setdefault("MPI4PY_MPIABI", "openmpi")
    return World(by_srun=slurm_step_of(os.environ) is not None)


# ---- all ranks: the same settings, or nobody starts ----------------------------------------------


def attend(prepare: Callable[[], RunConfig], lead: Callable[[RunConfig], int]) -> int:
    """This rank's part of a run with the settings of ``prepare``; ``lead`` is rank 0's."""
    ranks = world()
    config, said = _prepared(prepare, ranks.size)
    code = _agree(ranks, ranks.gather_text(said))
    if code or config is None:
        return code
    try:
        code = follow(ranks) if ranks.rank else _lead(config, ranks, lead)
    except BaseException as error:
        code = _fail(ranks, error)
    ranks.leave()
    return code


def _lead(config: RunConfig, ranks: World, lead: Callable[[RunConfig], int]) -> int:
    code = lead(config)
    if not _begun:  # there was nothing to do
        call_off(ranks, code)
    return code


def _prepared(prepare: Callable[[], RunConfig], size: int) -> tuple[RunConfig | None, str]:
    """The settings, and what to tell the others: a code and a digest or an error."""
    try:
        config = sized(prepare(), size)
    except UserError as error:
        return None, f"{error.exit_code} {error}"
    return config, f"0 {_digest(config)}"


def _digest(config: RunConfig) -> str:
    """What all ranks must have in common."""
    import rookery

    settings = json.dumps(config.to_tree(), sort_keys=True)
    parts = [rookery.__version__, torch.__version__, hashlib.sha256(settings.encode()).hexdigest()]
    return " ".join(parts)


def _agree(ranks: World, said: list[str]) -> int:
    """0 if all ranks are ready and alike; else rank 0 says why not, and all end with that code."""
    codes = [int(text.partition(" ")[0]) for text in said]
    texts = [text.partition(" ")[2] for text in said]
    bad = next((rank for rank, code in enumerate(codes) if code), None)
    if bad is not None:
        where = "" if len(set(said)) == 1 else f"{ranks.name(bad)}: "
        _say(ranks, f"{where}{texts[bad]}")
        return codes[bad]
    other = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
    if other is None:
        return 0
    names = ("Rookery", "torch", "settings")
    pairs = zip(names, texts[0].split(), texts[other].split(), strict=True)
    what, ours, theirs = next(pair for pair in pairs if pair[1] != pair[2])
    differ = "other settings" if what == "settings" else f"{what} {theirs}, rank 0 has {ours}"
    _say(
        ranks,
        f"{ranks.name(other)} has {differ}; start every rank with the same command and versions",
    )
    return UserError.exit_code


def _say(ranks: World, text: str) -> None:
    if ranks.rank == 0:
        print(f"rookery: {text}", file=sys.stderr, flush=True)


def _fail(ranks: World, error: BaseException) -> int:
    """One line that names this rank, and the end of all."""
    if isinstance(error, ranks.mpi.Exception):  # another is gone, and has said why, or its guard
        time.sleep(OTHERS_SECS)
    code = error.exit_code if isinstance(error, UserError) else 1
    code = exit_code_of(error) if isinstance(error, KeyboardInterrupt) else code
    cause = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    if ranks.rank == 0 and not _begun:
        print(f"rookery: {cause}", file=sys.stderr, flush=True)
        call_off(ranks, code)
        return code
    if not isinstance(error, UserError | KeyboardInterrupt):
        import traceback

        traceback.print_exc()
    print(f"rookery: {ranks.name(ranks.rank)}: {cause}", file=sys.stderr, flush=True)
    time.sleep(HEARD_SECS)
    ranks.abort(code)
    return code


def sized(config: RunConfig, size: int) -> RunConfig:
    """``config`` with as many that act as there are ranks for them."""
    formation = config.formation_config
    acting = size - formation.num_beside
    if acting < 1:
        raise UserError(
            f"{size} ranks: this formation has {formation.num_beside} beside those that act; start "
            f"{formation.num_beside + 1} or more"
        )
    return replace(config, engine="mpi", formation_config=replace(formation, num_actors=acting))


# ---- the order with which rank 0 begins ----------------------------------------------------------

_begun: list[bool] = []
"""Whether rank 0 has told the others to begin, or that there is nothing to do."""


def call_off(ranks: World, code: int) -> None:
    """Nobody begins; all end with ``code``."""
    _begun.append(True)
    ranks.share_bytes(json.dumps({"code": code}).encode())


def _give_order(ranks: World, job: Job, program: Program) -> None:
    """Settings, where the run goes on, and what others who learn begin with."""
    _begun.append(True)
    plan, resume = job.plan, job.resume
    order = {
        "config": plan.config.to_tree(),
        "signature": plan.signature.to_json(),
        "run": str(job.run.path.absolute()),
        "start_steps": resume.steps if resume is not None else 0,
    }
    ranks.share_bytes(json.dumps(order).encode())
    if program.owner.replicas > 1:
        parts = {"weights": State(dict(plan.policy().state_dict()))}
        if resume is not None:
            parts = {name: resume.parts[name] for name in LEARNER_PARTS}
        elif job.init_from is not None:
            parts = {"weights": job.init_from.parts["weights"]}
        ranks.share_bytes(pack_parts(parts))


# ---- who is where --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seating:
    """Which replica has which rank: the one that keeps the session the first, then all in order."""

    program: Program

    def rank_of(self, node: str, replica: int) -> int:
        """Where a replica is; whoever is not busy sits with rank 0."""
        return next(rank for rank, seats in enumerate(self._seats()) if (node, replica) in seats)

    def at(self, rank: int) -> list[tuple[Node, int]]:
        """The replicas at ``rank``, who keeps the session first."""
        return [(self.program.node(name), replica) for name, replica in self._seats()[rank]]

    def _seats(self) -> list[list[tuple[str, int]]]:
        nodes, owner = self.program.nodes, (self.program.owner.name, 0)
        places = [
            (node, (node.name, replica)) for node in nodes for replica in range(node.replicas)
        ]
        idle = [place for node, place in places if not node.busy and place != owner]
        busy = [[place] for node, place in places if node.busy and place != owner]
        return [[owner, *idle], *busy]


class RankWired:
    """A rank's part of a program: memory of what is served here, relays to all else."""

    def __init__(self, program: Program, ranks: World) -> None:
        self.program, self.ranks = program, ranks
        self.seating, self.bridge = Seating(program), Bridge(ranks)
        self.wakeup = MpiWakeup(ranks, self.bridge)
        self.elsewhere: dict[tuple[str, int, int], Any] = {}
        here = [edge for edge in program.edges if not edge.among_peers and self._served(edge)]
        wakeups = {node.name: [self.wakeup] * node.replicas for node in program.nodes}
        memory = allocate(layouts(program, here))
        self.wired = Wired(program, memory, wakeups, self.elsewhere)
        number = 0
        for edge in program.edges:
            if edge.among_peers:
                self._join(edge)
                continue
            for client in range(program.node(edge.source).replicas):
                for part in program.parts_of(edge, client):
                    self._carry(edge, client, part, number)
                    number += 1

    def _server_rank(self, edge: Edge, part: int) -> int:
        return self.seating.rank_of(edge.target, part)

    def _served(self, edge: Edge) -> bool:
        parts = range(self.program.num_parts(edge))
        return any(self._server_rank(edge, part) == self.ranks.rank for part in parts)

    def _join(self, edge: Edge) -> None:
        """A communicator of the members of a group; all ranks split together."""
        replicas = range(self.program.node(edge.source).replicas)
        mine = [
            replica
            for replica in replicas
            if self.seating.rank_of(edge.source, replica) == self.ranks.rank
        ]
        color = 0 if mine else self.ranks.mpi.UNDEFINED
        comm = self.ranks.comm.Split(color, mine[0] if mine else 0)
        for replica in mine:
            self.elsewhere[edge.key, replica, 0] = MpiGroup(self.ranks, comm)

    def _carry(self, edge: Edge, client: int, part: int, number: int) -> None:
        """A relay on either side, where the ends of an edge have different ranks."""
        here, first = self.ranks.rank, edge.port.kind == "cell"
        source = self.seating.rank_of(edge.source, client)
        target = self._server_rank(edge, part)
        if source == target:
            return
        if source == here:
            port = edge.port.for_one(client)
            arrays = allocate(port.layout())
            end = End(arrays, 0, 0, self.wakeup, [self.wakeup])
            self.elsewhere[edge.key, client, part] = port.client(end)
            self.bridge.add(number, port.client_relay(arrays), target, first=first)
        elif target == here:
            relay = edge.port.server_relay(self.wired.client_end(edge, client, part=part))
            self.bridge.add(number, relay, source, first=first)


def _build(
    rank_wired: RankWired,
    plan: Plan,
    run: Path,
    start_steps: int,
    stopping: Stopping,
    leaving: Callable[[], bool],
) -> list[Member]:
    """The replicas of this rank."""
    bridge, wired = rank_wired.bridge, rank_wired.wired
    return [
        build_member(
            wired,
            plan,
            node,
            replica,
            run=run,
            start_steps=start_steps,
            stopping=stopping,
            leaving=NowAndThen(leaving),
            tick=lambda: _discard(bridge.pump()),
        )
        for node, replica in rank_wired.seating.at(rank_wired.ranks.rank)
    ]


def _discard(_: object) -> None:
    """For what else it did."""


# ---- rank 0: the session ------------------------------------------------------------------------


def run(job: Job) -> Finish:
    """Rank 0's part: carry the job's program to its end together with the others."""
    ranks, plan = world(), job.plan
    program = plan.program()
    job.run.write_ranks([f"rank {r} pid {pid} on {host}" for r, pid, host in ranks.seats])
    with compute_threads(program.owner.num_threads), Interrupt() as interrupt:
        job.callbacks.tell_stage(starting(f"{len(ranks.seats)} ranks"))
        _give_order(ranks, job, program)
        rank_wired = RankWired(program, ranks)
        start = job.resume.steps if job.resume is not None else 0
        watch = Watch(ranks, rank_wired, plan.config)
        ranks.on_poll = watch.look

        ending = _Ending(ranks, interrupt)

        def stopping() -> Stop | None:
            rank_wired.bridge.pump()
            ending.is_leaving()
            return interrupt.stopping()

        members = _build(
            rank_wired, plan, job.run.path, start, interrupt.stopping, ending.is_leaving
        )
        own, others = members[0], members[1:]
        owner = SessionOwner(
            plan.config, job.run, program, own, job.callbacks, stopping, others=lambda: others
        )
        weights = job.init_from.parts["weights"] if job.init_from is not None else None
        try:
            with owner:
                owner.begin(job.resume, weights)
                job.callbacks.tell_stage(FIRST_BATCH)
                run_members(members, stopping, owner)
                owner.conclude()
        finally:
            for member in members:
                member.role.close()
            ranks.on_poll = lambda: None
    finish = owner.finish()
    ranks.tell(finish.outcome.exit_code)
    rank_wired.bridge.close()
    return finish


class _Ending:
    """Rank 0 passes a signal on: all leave what is half made."""

    def __init__(self, ranks: World, interrupt: Interrupt) -> None:
        self.ranks, self.interrupt, self.told = ranks, interrupt, False

    def is_leaving(self) -> bool:
        """Whether the run is about to end; the others know it then."""
        if self.interrupt.requested and not self.told:
            self.told = True
            self.ranks.tell(LEAVE)
        return self.told


class Watch:
    """Rank 0 looks, while it waits, whether the others live."""

    def __init__(self, ranks: World, rank_wired: RankWired, config: RunConfig) -> None:
        self.ranks, self.config, self.bridge = ranks, config, rank_wired.bridge
        self.seating, self.acting = rank_wired.seating, rank_wired.program.acting
        self.limit_secs = certain_secs(config.env.step_timeout_secs) + SILENCE_SECS
        edges = rank_wired.program.edges_of(self.acting.name)
        vitals = next(
            edge for edge in edges if edge.port.name == "vitals" and edge.source == self.acting.name
        )
        self.cells = rank_wired.wired.memory(vitals)["cells"]
        self.looked = time.monotonic()
        self.attention = Attention()

    def look(self) -> None:
        """End the job if a rank has been silent for too long."""
        moment = time.monotonic()
        if moment - self.looked < LOOK_SECS:
            return
        self.looked = moment
        self.bridge.pump()
        begun = self.attention.look()
        for replica in range(self.acting.replicas):
            rank = self.seating.rank_of(self.acting.name, replica)
            heard = max(float(self.cells[replica, ALIVE]), begun)
            if rank and moment - heard > self.limit_secs:
                raise EnvironmentFault(
                    f"{self.ranks.name(rank)} has been silent for {self.limit_secs:g} s: it hangs, "
                    f"most likely in its environment {self.config.env.id} "
                    f"(env.step_timeout_secs is {self.config.env.step_timeout_secs:g})"
                )


# ---- the other ranks -----------------------------------------------------------------------------


def follow(ranks: World) -> int:
    """Be this rank's replica until rank 0 says that it is over; its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 hears them too and ends the run
        with contextlib.suppress(ValueError):
            signal.signal(number, signal.SIG_IGN)
    order = json.loads(ranks.share_bytes(b""))
    if "config" not in order:
        return int(order["code"])
    config = config_from_tree(order["config"])
    plan = Plan.of(config, Signature.from_json(order["signature"]))
    program = plan.program()
    parts = unpack_parts(ranks.share_bytes(b"")) if program.owner.replicas > 1 else {}
    rank_wired = RankWired(program, ranks)
    ear = _Ear(ranks, rank_wired.bridge)
    ranks.on_poll = ear.listen
    node = rank_wired.seating.at(ranks.rank)[0][0]
    with compute_threads(node.num_threads):
        run = Path(order["run"])
        start = order["start_steps"]
        members = _build(rank_wired, plan, run, start, ear.stopping, ear.is_leaving)
        role = members[0].role
        try:
            if node.keeps_session:
                begin_with(role, parts)
            role.start()
            run_members(members, ear.stopping)
            role.finish()
        except EnvironmentFault as error:
            with contextlib.suppress(OSError, UserError):  # the host may not share the directory
                log = RunDirectory.open(run).write_failure(error, f"rank-{ranks.rank}")
                error.args = (f"{error} (log: {log})",)
            raise
        finally:
            role.close()
    ranks.on_poll = lambda: None
    for _ in ranks.pauses():
        if ear.stopping() is not None:
            break
    rank_wired.bridge.close()
    assert ear.code is not None
    return ear.code


class _Ear:
    """Whether rank 0 has said that it is over."""

    def __init__(self, ranks: World, bridge: Bridge) -> None:
        self.ranks, self.bridge = ranks, bridge
        self.code: int | None = None
        self.leaving = False
        self.looked = 0.0

    def stopping(self) -> Stop | None:
        """Move frames, and hear."""
        self.bridge.pump()
        if self.code is None:
            word = self.ranks.told()
            self.leaving |= word == LEAVE
            self.code = None if word == LEAVE else word
        return None if self.code is None else Stop("stopped", "rank 0 has ended the run")

    def is_leaving(self) -> bool:
        """Whether the run is about to end."""
        return self.stopping() is not None or self.leaving

    def listen(self) -> None:
        """While it waits for its group, rank 0 must know that it lives."""
        moment = time.monotonic()
        if moment - self.looked > LOOK_SECS:
            self.looked = moment
            self.bridge.pump()
