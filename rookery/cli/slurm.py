"""``rookery slurm RECIPE --nodes N [flags]``: train on the nodes of a Slurm cluster."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rookery.cli.arguments import HELP, Words, split_words
from rookery.core.errors import UserError

if TYPE_CHECKING:
    from rookery.engines.slurm import Job, Nodes, Part
    from rookery.runs.config import RunConfig

PROG = "rookery slurm"
OWN = {
    "nodes": "N: nodes in all: the head's, the hosts', and those of --eval-node and --record-node",
    "cpus": "N: CPUs of each node (1)",
    "time": "LIMIT: as Slurm writes it, 30 (minutes), 1:00:00 or 2-12 (days-hours)",
    "account": "NAME: who pays",
    "partition": "NAME: which nodes",
    "qos": "NAME: quality of service",
    "setup": "FILE: shell commands that are run first, such as `module load`",
    "python": "PATH: Python with Rookery on the nodes (the one that runs this)",
    "profile": "FILE: defaults of all these (~/.config/rookery/slurm.yaml)",
    "host_actors": "N: how many act on each host (its CPUs, or as the formation has it)",
    "stop_ahead": "SECS: how long before its time limit the run ends with a checkpoint (120)",
    "mpi": "KIND: ranks of `srun --mpi=KIND`, such as pmi2, instead of hosts that join",
}
OF_FORMATIONS = {
    "servers": "N: servers that share the parameters",
    "grads": "N: gradients for each update",
    "simulators": "N: environments of each worker",
}
OF_FILMS = {"record_length": "SECS: how long a film is at most (60)"}
SWITCHES = {
    "eval_node": "a node of its own evaluates saved policies",
    "record_node": "a node of its own films saved policies",
    "no_requeue": "a job whose time is up is not queued again",
    "dry_run": "print the script and submit nothing; needs no Slurm",
}
_APART = {"eval_node": "evaluator", "record_node": "recorder"}
"""Roles that have a node of their own."""
_NOT_HERE = {
    "seeds": "one job is one run; submit one for each --seed",
    "jobs": "one job is one run; submit one for each --seed",
    "places": "the nodes say how many there are, and --host-actors how many on each",
    "engine": "hosts join engine local; --mpi pmi2 has ranks instead",
}


def main(argv: list[str]) -> int:
    """Submit, and say so; 0 when Slurm has taken the job."""
    words = split_words(argv, {*SWITCHES, "quiet", "plain"})
    if HELP in words.switches:
        print(_help())
        return 0
    if words.flags.keys() & {"probe", "check"}:
        return _look_from_node(words)
    command = shlex.join(["rookery", "slurm", *argv])
    token_file = words.take("token_file")
    job, config = _job(words, command)
    if "dry_run" in words.switches:
        print(job.script(), end="")
        return 0
    return _submit(job, config, Path(token_file) if token_file is not None else None)


def _look_from_node(words: Words) -> int:
    """What the script calls before the run begins: on the first node, then on every one."""
    from rookery.engines.slurm_probe import check_node, leave_probe

    if (run := words.take("probe")) is not None:
        leave_probe(Path(run))
    elif (run := words.take("check")) is not None:
        check_node(Path(run))
    return 0


def _job(words: Words, command: str) -> tuple[Job, RunConfig]:
    """What to submit, and the settings of its run; everything that can be refused is."""
    from rookery.cli.slurm_profile import read_profile
    from rookery.engines.slurm import Job, Nodes
    from rookery.runs.directory import new_name

    for flag, why in _NOT_HERE.items():
        if flag in words.flags:
            raise UserError(f"--{flag}: {why}")
    what = words.one_name(PROG)
    if (length := words.take("record_length")) is not None:
        words.flags["record.length_secs"] = length
    chosen = read_profile(words.take("profile")) | _own_flags(words)
    host_actors, mpi = chosen.pop("host_actors", None), chosen.pop("mpi", None)
    if "nodes" not in chosen:
        raise UserError("--nodes: on how many nodes? give their number")
    nodes = Nodes(**chosen)
    run, init_from = words.take("run"), words.take("init_from")
    if mpi is None:
        config, parts = _with_hosts(what, words, nodes, host_actors)
    else:
        config, parts = _with_ranks(what, words), []
    name = config.name or config.recipe or config.env.id
    job = Job(
        run=(Path(run) if run else new_name(name)).absolute(),
        name=name,
        command=command,
        nodes=nodes,
        parts=parts,
        mpi=mpi,
        listen=words.flags.get("listen"),
        once=("--init-from", str(Path(init_from).absolute())) if init_from else (),
        always=("--quiet",) if "quiet" in words.switches else ("--plain",),
    )
    return job, config


def _own_flags(words: Words) -> dict[str, Any]:
    """Those that the profile may have too."""
    from rookery.cli.slurm_profile import value_of

    own: dict[str, Any] = {}
    for flag in OWN:
        if (text := words.take(flag)) is not None:
            key = "stop_ahead_secs" if flag == "stop_ahead" else flag
            own[key] = value_of(_flag(flag), key, text)
    if own.get("setup"):
        own["setup"] = str(Path(own["setup"]).absolute())
        if not Path(own["setup"]).is_file():
            raise UserError(f"--setup {own['setup']}: there is no such file; check the path")
    return own | ({"requeue": False} if "no_requeue" in words.switches else {})


def _special(words: Words) -> dict[str, int]:
    """Flags that only some formations have."""
    given = {flag: words.take(flag) for flag in OF_FORMATIONS}
    for flag, text in given.items():
        if text is not None and not text.isdecimal():
            raise UserError(f"--{flag}: must be at least 1, got {text}")
    return {flag: int(text) for flag, text in given.items() if text is not None}


def _with_hosts(
    what: str | None, words: Words, nodes: Nodes, host_actors: int | None
) -> tuple[RunConfig, list[Part]]:
    """The head's settings, and what the other nodes are for."""
    from rookery.engines.slurm import Part
    from rookery.recipes.on_nodes import OnNodes, settings_on_nodes

    apart = [role for switch, role in _APART.items() if switch in words.switches]
    hosts = nodes.nodes - 1 - len(apart)
    if hosts < 0:
        roles = " and ".join(["the head", *(f"the {role}" for role in apart)])
        raise UserError(
            f"--nodes: {nodes.nodes} are too few for {roles}, a node each; give "
            f"{1 + len(apart)} or more"
        )
    spread = OnNodes(
        num_hosts=hosts,
        apart=tuple(apart),
        cpus=nodes.cpus,
        host_actors=host_actors,
        flags=_special(words),
    )
    config, each = settings_on_nodes(what, words.flags, spread)
    needed = config.joined == "some"
    parts = [Part("host", hosts, ("--actors", str(each)), needed)] if hosts else []
    return config, parts + [Part(role, 1, ("--role", role)) for role in apart]


def _with_ranks(what: str | None, words: Words) -> RunConfig:
    """The settings of an MPI job, in which every CPU has a rank."""
    from rookery.recipes.settings import settings_from_flags

    refused = [switch for switch in _APART if switch in words.switches] + list(_special(words))
    if refused:
        raise UserError(f"{_flag(refused[0])}: is for hosts that join; leave it or --mpi out")
    return settings_from_flags(what, {"engine": "mpi"} | words.flags)


def _submit(job: Job, config: RunConfig, token_file: Path | None) -> int:
    """Make the run directory, and hand its script to Slurm; nothing stays if that is refused."""
    from rookery.engines.slurm import check_slurm, submit
    from rookery.runs.directory import RunDirectory
    from rookery.runs.slurm_job import SlurmJob, read_slurm_job, write_slurm_job

    check_slurm()
    before = read_slurm_job(job.run)
    if before is not None:
        raise UserError(
            f"{job.run} has a job already; `sbatch {job.script_path}` goes on with it, or "
            "choose another --run"
        )
    run = RunDirectory.create(job.run, name=job.name)
    try:
        run.write_config(yaml.safe_dump(config.to_tree(), sort_keys=False))
        job.prepare(token_file)
        number = submit(job.script_path)
    except UserError:
        shutil.rmtree(job.run)
        raise
    write_slurm_job(job.run, SlurmJob(job=number, command=job.command))
    print(f"job {number}: {job.run}")
    print(
        f"`rookery runs` shows its state, `scancel {number}` ends it; its log is {job.log(number)}"
    )
    return 0


def _help() -> str:
    lines = [
        f"usage: {PROG} RECIPE|ENV_ID|module:factory --nodes N [flags]",
        "",
        "Trains on the nodes of a Slurm cluster: a head on the first, hosts that join it on the",
        "others. Every flag of `rookery train` may be given too.",
        "",
    ]
    lines += [
        f"  {_flag(name):<16} {about}" for name, about in (OWN | OF_FORMATIONS | OF_FILMS).items()
    ]
    lines += [f"  {_flag(name):<16} {about}" for name, about in SWITCHES.items()]
    return "\n".join([*lines, f"  {'--help':<16} print this, and exit"])


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
