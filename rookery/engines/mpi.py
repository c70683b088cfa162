"""Ranks that mpiexec or srun has started already: each takes the role of its rank.

Rank 0 keeps the session. In ``sync`` it learns and the others act; in ``allreduce`` all do both. A
round begins with a header from rank 0, which says whether to go on, so all end together. Whoever
fails ends the whole job with one line that names it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from rookery.core.errors import UserError
from rookery.engines.carries import carries
from rookery.engines.engine import Finish, Job
from rookery.engines.inline import evaluate_pending, finish_of, restore
from rookery.engines.interrupt import Interrupt
from rookery.engines.launcher import HEARD_SECS, openmpi_started_us, slurm_step_of
from rookery.engines.mpi_ranks import (
    LeadActors,
    LeadWorkers,
    Watch,
    end_round,
    follow,
    rounds_begun,
)
from rookery.engines.rank_guard import OTHERS_SECS
from rookery.programs.formations import AllreduceConfig, SyncConfig, build_program
from rookery.programs.validate import validate
from rookery.roles.build import compute_threads, probe
from rookery.runs.config import RunConfig
from rookery.runs.session import Session
from rookery.transport.mpi import World


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
    config, said = _prepared(prepare)
    code = _agree(ranks, ranks.gather_text(said))
    if code or config is None:
        return code
    config = sized(config, ranks.size)
    try:
        code = follow(config, ranks) if ranks.rank else _lead(config, ranks, lead)
    except BaseException as error:
        code = _fail(ranks, error)
    ranks.leave()
    return code


def _lead(config: RunConfig, ranks: World, lead: Callable[[RunConfig], int]) -> int:
    code = lead(config)
    if not rounds_begun():  # there was nothing to do
        end_round(ranks, code)
    return code


def _prepared(prepare: Callable[[], RunConfig]) -> tuple[RunConfig | None, str]:
    """The settings, and what to tell the others: a code and a digest or an error."""
    try:
        config = prepare()
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
    code = 130 if isinstance(error, KeyboardInterrupt) else code
    cause = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    if ranks.rank == 0 and not rounds_begun():
        print(f"rookery: {cause}", file=sys.stderr, flush=True)
        end_round(ranks, code)
        return code
    if not isinstance(error, UserError | KeyboardInterrupt):
        import traceback

        traceback.print_exc()
    print(f"rookery: {ranks.name(ranks.rank)}: {cause}", file=sys.stderr, flush=True)
    time.sleep(HEARD_SECS)
    ranks.abort(code)
    return code


def sized(config: RunConfig, size: int) -> RunConfig:
    """``config`` with as many actors or workers as there are ranks for them."""
    formation = config.formation_config
    if isinstance(formation, SyncConfig):
        formation = replace(formation, num_actors=size - 1)
    elif isinstance(formation, AllreduceConfig):
        formation = replace(formation, num_workers=size)
    return replace(config, engine="mpi", formation_config=formation)


# ---- rank 0: the session ------------------------------------------------------------------------


def run(job: Job) -> Finish:
    """Rank 0's part: carry the job's program to its end together with the others."""
    ranks, config = world(), job.config
    program = build_program(config)
    validate(program, "mpi", carries("mpi"))
    signature = job.signature or probe(config.env, config.seed)
    job.run.write_ranks([f"rank {r} pid {pid} on {host}" for r, pid, host in ranks.seats])
    watch = Watch(ranks, config)
    ranks.on_poll = watch.look
    lead = LeadWorkers if config.formation == "allreduce" else LeadActors
    with compute_threads(program.nodes[0].num_threads), Interrupt() as interrupt:
        leader = lead(job, ranks, signature)
        session = Session(
            config, job.run, job.callbacks, fleet=leader.fleet, policy=leader.learner.policy
        )
        try:
            restore(job, leader.learner, session)
            leader.begin(job.resume.steps if job.resume else 0)
            session.begin(leader.learner.save_state)
            evaluate_pending(session, leader.learner, interrupt)
            while session.outcome is None:
                watch.reset()
                session.after_update(leader.step(), leader.learner.save_state)
                evaluate_pending(session, leader.learner, interrupt)
                if interrupt.requested:
                    session.stop("interrupted", interrupt.reason)
            session.finish(leader.learner.save_state)
            evaluate_pending(session, leader.learner, interrupt)
            if interrupt.requested:
                session.stop("interrupted", interrupt.reason)
        finally:
            session.close()
            leader.close()
    assert session.outcome is not None
    end_round(ranks, session.outcome.exit_code)
    return finish_of(session)
