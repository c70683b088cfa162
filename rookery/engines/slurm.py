"""Engine ``slurm``: a run as one job, whose script starts a head and hosts that join it, or ranks.

::

    job = Job(run=path, command="rookery slurm ...", nodes=Nodes(num=4, cpus=12), parts=[...])
    print(job.script())                # readable; nothing of it is secret
    number = submit(script_path)

Slurm only starts processes, and starts them again. What they do is as under ``local``, with
``rookery join``, or as under ``mpi``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import ClassVar

from rookery.carriers.tokens import VARIABLE, given_token, token_of_run
from rookery.core.errors import UserError
from rookery.runs.atomic import write_atomic, writing
from rookery.runs.slurm_job import SCRIPT_NAME, SlurmJob, write_slurm_job

TRIES = 5
"""How often a head or a host begins anew in one job when it was killed."""
FIRST_PORT, NUM_PORTS = 20_000, 12_000
"""Where heads listen, by the number of the job: below the ports that systems give away."""
SUBMIT_SECS = 60.0
WATCH_SECS = 30
"""How often a host asks Slurm whether the head's node is still there."""
_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d{1,2}(:\d\d){0,2}")
_WORD = re.compile(r"[\w.,:=+@%/*-]+")
_OPTION = re.compile(r"[a-z][a-z-]*")
_OURS = frozenset(
    {"job-name", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "time", "signal", "output"}
    | {"open-mode", "no-kill", "requeue", "no-requeue", "chdir", "error", "parsable", "array"}
)
"""Options of ``sbatch`` that the script itself gives."""


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """What the job asks Slurm for."""

    nodes: int
    """How many nodes: the head's, one for each host, and those of their own."""
    cpus: int = 1
    """CPUs of each node."""
    time: str | None = None
    """Time limit of the job, as Slurm writes it: 30, 1:00:00 or 2-12; None: the partition's."""
    account: str | None = None
    """Who pays."""
    partition: str | None = None
    """Which nodes."""
    qos: str | None = None
    """Quality of service."""
    setup: str | None = None
    """A file of shell commands that are run first, such as `module load`."""
    python: str = sys.executable
    """Python on the nodes, with Rookery; python: the first that PATH has after the setup."""
    stop_ahead_secs: int = 120
    """How long before its time limit the job ends the run with a checkpoint."""
    requeue: bool = True
    """Whether a job whose time was up, or that was preempted, is queued again and goes on."""
    sbatch: Mapping[str, str] = field(default_factory=dict)
    """More options of sbatch, as {mem: 20G, constraint: haswell}."""

    def __post_init__(self) -> None:
        for name in ("nodes", "cpus", "stop_ahead_secs"):
            if getattr(self, name) < 1:
                raise UserError(f"{_flag(name)}: must be at least 1, got {getattr(self, name)}")
        if self.time is not None and not _TIME.fullmatch(self.time):
            raise UserError(
                f"--time: '{self.time}' is not a time limit of Slurm; write minutes as 30, "
                "hours:minutes:seconds as 1:00:00, or days-hours as 2-12"
            )
        if self.time is not None and limit_secs(self.time) <= self.stop_ahead_secs:
            raise UserError(
                f"--time: {self.time} leaves nothing to train in, as the run ends --stop-ahead "
                f"{self.stop_ahead_secs} s before; give more"
            )
        for name in ("account", "partition", "qos"):
            given = getattr(self, name)
            if given is not None and not _WORD.fullmatch(given):
                raise UserError(f"{_flag(name)}: '{given}' is not the name of one")
        for name in ("setup", "python"):
            _check_line(_flag(name), getattr(self, name) or "")
        for name, value in self.sbatch.items():
            if not _OPTION.fullmatch(name) or name in _OURS:
                why = "is set by other means" if name in _OURS else "is no option of sbatch"
                raise UserError(f"sbatch.{name}: {why}; leave it out")
            _check_line(f"sbatch.{name}", value)

    def directives(self) -> dict[str, str | None]:
        """Options for the head of the script."""
        chosen = {name: getattr(self, name) for name in ("account", "partition", "qos", "time")}
        return {
            **{name: value for name, value in chosen.items() if value is not None},
            "nodes": str(self.nodes),
            "cpus-per-task": str(self.cpus),
            "signal": f"B:USR1@{self.stop_ahead_secs}",
            "requeue" if self.requeue else "no-requeue": None,
            **self.sbatch,
        }


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that all join the head with the same words."""

    name: str
    num_nodes: int
    words: tuple[str, ...]
    needed: bool = False
    """Whether the run cannot go on without each of them: then the job is queued again, for others.
    """


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run as one job."""

    run: Path
    """Its directory, which all nodes see."""
    name: str
    command: str
    """What the user typed, for people."""
    nodes: Nodes
    parts: Sequence[Part] = ()
    """Of the nodes beyond the first."""
    mpi: str | None = None
    """Instead of hosts, a rank for each CPU: what srun's --mpi calls their launcher."""
    listen: str | None = None
    """HOST:PORT of the head; None: all its addresses, at a port by the number of the job."""
    once: tuple[str, ...] = ()
    """Flags of the run's first beginning, not of when it is resumed."""
    always: tuple[str, ...] = ()
    """Flags of both."""

    _PLACEHOLDER: ClassVar[re.Pattern[str]] = re.compile(r"@([A-Z]+)@")

    def __post_init__(self) -> None:
        if self.mpi is not None and not _OPTION.fullmatch(self.mpi.rstrip("0123456789")):
            raise UserError(f"--mpi: '{self.mpi}' is not a kind that srun knows; write pmi2")
        for what, text in (("--run", str(self.run)), ("the command", self.command)):
            _check_line(what, text)

    @property
    def script_path(self) -> Path:
        """Where the script is kept."""
        return self.run / SCRIPT_NAME

    def log(self, number: str) -> Path:
        """What the head of job ``number`` says."""
        return self.run / "logs" / f"slurm-{number}-head.log"

    def prepare(self, token_file: Path | None = None) -> None:
        """Leave in the run directory what the nodes find there: script, token, and a note that a
        job will begin this run."""
        token_of_run(self.run, given_token(token_file) if self.parts else None)
        write_slurm_job(self.run, SlurmJob(job="", command=self.command))
        with writing(self.script_path):
            write_atomic(self.script_path, self.script().encode())

    def script(self) -> str:
        """The text for ``sbatch``."""
        how = "ranks" if self.mpi is not None else "hosts" if self.parts else "alone"
        return self._filled("slurm_job.sh", START=self._filled(f"slurm_{how}.sh").strip())

    def _filled(self, template: str, **more: str) -> str:
        values = self._values() | more
        text = resources.files(__package__).joinpath(template).read_text("utf-8")
        return self._PLACEHOLDER.sub(lambda found: values[found[1]], text)

    def _values(self) -> dict[str, str]:
        nodes, ranks = self.nodes, self.nodes.nodes * self.nodes.cpus
        setup = f"\n. {shlex.quote(nodes.setup)}" if nodes.setup is not None else ""
        port = f"0.0.0.0:$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))"
        return {
            "COMMAND": self.command,
            "SCRIPT": shlex.quote(str(self.script_path)),
            "DIRECTIVES": "\n".join(self._directives()),
            "RUN": shlex.quote(str(self.run)),
            "PYTHON": shlex.quote(nodes.python),
            "SETUP": setup,
            "NODES": str(nodes.nodes),
            "RANKS": str(ranks),
            "MPI": self.mpi or "none",
            "TRIES": str(TRIES),
            "WATCH": str(WATCH_SECS),
            "REQUEUE": "true" if nodes.requeue else "false",
            "LISTEN": port if self.listen is None else shlex.quote(self.listen),
            "ONCE": "".join(f" {shlex.quote(word)}" for word in self.once),
            "ALWAYS": "".join(f" {shlex.quote(word)}" for word in self.always),
            "HOSTS": "\n".join(self._steps()),
        }

    def _directives(self) -> list[str]:
        options = self.nodes.directives() | {
            "job-name": re.sub(r"[^\w.+=-]+", "-", f"rookery-{self.name}"),
            "ntasks-per-node": "1",
            "output": str(self.log("\0")).replace("%", "%%").replace("\0", "%j"),
            "open-mode": "append",
        }
        if self.parts and not any(part.needed for part in self.parts):
            options["no-kill"] = None  # a node that fails is left out
        if self.mpi is not None:
            options |= {"ntasks-per-node": str(self.nodes.cpus), "cpus-per-task": "1"}
        return [
            f"#SBATCH --{name}" + (f"={shlex.quote(value)}" if value is not None else "")
            for name, value in options.items()
        ]

    def _steps(self) -> list[str]:
        """A step for each part; Slurm itself knows which its nodes are."""
        lines, first = [], 1
        for part in self.parts:
            log = f'"${{RUN//%/%%}}/logs/slurm-%j-{part.name}-%t.log"'
            words = shlex.join(part.words)
            # Where one can be missed, the step goes on without it.
            on_failure = "--kill-on-bad-exit=1" if part.needed else "--no-kill --kill-on-bad-exit=0"
            missed = "needed" if part.needed else "missed"
            lines.append(
                f"srun --nodes={part.num_nodes} --ntasks={part.num_nodes} --ntasks-per-node=1 "
                f"--relative={first} --cpus-per-task={self.nodes.cpus} \\\n"
                f"    --mpi=none --export=ALL {on_failure} --wait=0 \\\n"
                f"    --open-mode=append --output={log} \\\n"
                f'    bash -c \'host "$@"\' host {words} || {missed} {part.name} &\nhosts+=" $!"'
            )
            first += part.num_nodes
        return lines


def limit_secs(text: str) -> int:
    """A time limit as Slurm writes it: minutes, minutes:seconds, hours:minutes:seconds, or days
    before hours."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    # Days are followed by hours; without them one or two numbers end in minutes, or in seconds.
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return int(days or 0) * 86_400 + sum(a * b for a, b in zip(parts, units, strict=False))


def check_slurm() -> None:
    """Refuse to go on without Slurm."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "no Slurm here: sbatch was not found; submit on a machine of the cluster, or see the "
            "script with --dry-run"
        )


def submit(script: Path) -> str:
    """Hand ``script`` to Slurm; the job's number."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(script)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=SUBMIT_SECS,
            check=False,
            # Jobs have the environment of who submits them; the token is in a file.
            env={name: text for name, text in os.environ.items() if name != VARIABLE},
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"sbatch did not answer within {SUBMIT_SECS:g} s; try again") from None
    job = done.stdout.strip().partition(";")[0]  # the cluster's name may follow
    if done.returncode or not job.isdigit():
        raise UserError(f"Slurm refuses the job: {_words_of_slurm(done.stderr)}")
    return job


def _words_of_slurm(text: str) -> str:
    """What it says, in one line."""
    lines = [re.sub(r"^sbatch: (error: )?", "", line).strip() for line in text.splitlines()]
    return "; ".join(line for line in lines if line) or "it does not say why"


def _check_line(what: str, text: str) -> None:
    if not text.isprintable():
        raise UserError(f"{what}: has characters that a script cannot hold; leave them out")


def _flag(name: str) -> str:
    return f"--{name.removesuffix('_secs').replace('_', '-')}"
