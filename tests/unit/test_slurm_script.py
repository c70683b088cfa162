"""The script of a Slurm job, what stands in a profile, and what is refused before it is sent."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from rookery.cli.main import main
from rookery.cli.slurm_profile import read_profile
from rookery.core.errors import UserError
from rookery.engines import slurm_state
from rookery.engines.slurm import Job, Nodes, Part, limit_secs
from rookery.engines.slurm_probe import check_node, leave_probe
from rookery.formations.paramserver import ParamserverConfig
from rookery.formations.settings import FormationConfig, Joined
from rookery.recipes.on_nodes import OnNodes, settings_on_nodes
from rookery.runs.directory import RunDirectory
from rookery.runs.slurm_job import SlurmJob, read_slurm_job, write_slurm_job


def job(run: Path, **changes: object) -> Job:
    given = {
        "run": run,
        "name": "pong",
        "command": "rookery slurm pong --nodes 5",
        "nodes": Nodes(nodes=5, cpus=12, time="1:00:00", partition="cpu", python="/opt/py"),
        "parts": [Part("host", 3, ("--actors", "12")), Part("film", 1, ("--role", "film"))],
    }
    return Job(**(given | changes))  # type: ignore[arg-type]


def understood(script: str) -> str:
    """``script``, if bash can read it."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return script


# ---- the script --------------------------------------------------------------------------------


def test_the_script_asks_for_nodes_and_starts_head_and_hosts(tmp_path: Path) -> None:
    made = job(tmp_path / "pong")
    made.run.mkdir()
    made.prepare()
    script = understood(made.script_path.read_text())
    assert script == made.script()
    for line in (
        "#SBATCH --nodes=5",
        "#SBATCH --cpus-per-task=12",
        "#SBATCH --time=1:00:00",
        "#SBATCH --partition=cpu",
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH --requeue",
        "#SBATCH --no-kill",
        f"#SBATCH --output={tmp_path}/pong/logs/slurm-%j-head.log",
        "# rookery slurm pong --nodes 5",
        "    bash -c 'host \"$@\"' host --actors 12 || missed host &",
        "    bash -c 'host \"$@\"' host --role film || missed film &",
    ):
        assert line in script.splitlines()
    assert "--nodes=3 --ntasks=3 --ntasks-per-node=1 --relative=1 --cpus-per-task=12" in script
    assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --relative=4 --cpus-per-task=12" in script
    assert (tmp_path / "pong" / "token").read_text().strip() not in script
    assert (tmp_path / "pong" / "token").stat().st_mode & 0o777 == 0o600
    assert "@" not in script.replace('"$@"', "").replace("USR1@120", "").replace("[@]", "")


@pytest.mark.parametrize("changes", [{"parts": []}, {"parts": [], "mpi": "pmi2"}])
def test_one_node_and_ranks_are_scripts_too(tmp_path: Path, changes: dict[str, object]) -> None:
    script = understood(job(tmp_path, **changes).script())
    assert "rookery join" not in script
    assert ("srun --mpi=pmi2 --nodes=5 --ntasks=60" in script) == ("mpi" in changes)
    assert ("#SBATCH --ntasks-per-node=12" in script) == ("mpi" in changes)


def test_strange_names_stay_what_they_are(tmp_path: Path) -> None:
    run = tmp_path / 'it\'s $HOME; `id` "50%"'
    made = job(run, nodes=Nodes(nodes=1, setup="/a b/$(id).sh"), parts=[], command="a; b\t".strip())
    script = understood(made.script())
    (line,) = [line for line in script.splitlines() if line.startswith("export RUN=")]
    said = subprocess.run(
        ["bash", "-c", f'{line}; printf %s "$RUN"'], capture_output=True, text=True, check=True
    )
    assert said.stdout == str(run)
    assert ". '/a b/$(id).sh'" in script
    (line,) = [line for line in script.splitlines() if "--output" in line]
    assert "50%%" in line
    assert line.count("%j") == 1
    with pytest.raises(UserError, match="characters that a script cannot hold"):
        job(tmp_path / "a\nrm -r x")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": 0}, "--nodes: must be at least 1, got 0"),
        ({"cpus": 0}, "--cpus: must be at least 1, got 0"),
        ({"stop_ahead_secs": 0}, "--stop-ahead: must be at least 1, got 0"),
        ({"time": "2"}, "--time: 2 leaves nothing to train in"),
        ({"time": "soon"}, "--time: 'soon' is not a time limit of Slurm"),
        ({"partition": "a b"}, "--partition: 'a b' is not the name of one"),
        ({"account": "x; rm"}, "--account: 'x; rm' is not the name of one"),
        ({"sbatch": {"nodes": "3"}}, "sbatch.nodes: is set by other means"),
        ({"sbatch": {"--mem": "3"}}, "sbatch.--mem: is no option of sbatch"),
        ({"sbatch": {"mem": "3\n"}}, "sbatch.mem: has characters"),
    ],
)
def test_what_no_script_can_ask_for(given: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as error:
        Nodes(**({"nodes": 2} | given))  # type: ignore[arg-type]
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "secs"),
    [("30", 1800), ("2:30", 150), ("1:00:00", 3600), ("2-12", 216_000), ("1-00:30", 88_200)],
)
def test_time_limits_are_those_of_slurm(text: str, secs: int) -> None:
    assert limit_secs(text) == secs


def test_a_job_whose_hosts_are_all_needed_does_not_go_on_without_one(tmp_path: Path) -> None:
    parts = [Part("host", 3, ("--actors", "12"), needed=True), Part("film", 1, ())]
    script = understood(job(tmp_path, parts=parts).script())
    assert "#SBATCH --no-kill" not in script
    assert "host --actors 12 || needed host &" in script
    assert "host  || missed film &" in script
    assert script.count("--kill-on-bad-exit=1") == 1


# ---- the profile -------------------------------------------------------------------------------


def test_a_profile_is_read_and_flags_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_profile(None) == {}
    (tmp_path / "rookery").mkdir()
    (tmp_path / "rookery" / "slurm.yaml").write_text(
        "partition: cpu\ncpus: 12\ntime: 1:00:00\nrequeue: false\nsbatch: {mem: 20G}\n"
    )
    assert read_profile(None) == {
        "partition": "cpu",
        "cpus": 12,
        "time": "1:00:00",
        "requeue": False,
        "sbatch": {"mem": "20G"},
    }
    words = ["slurm", "dqn-cartpole", "--nodes", "3", "--cpus", "4", "--dry-run"]
    assert main([*words, "--run", str(tmp_path / "run")]) == 0
    script = understood(capsys.readouterr().out)
    directives = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    for option in ("partition=cpu", "cpus-per-task=4", "time=1:00:00", "no-requeue", "mem=20G"):
        assert f"#SBATCH --{option}" in directives
    assert "host --actors 4 || missed host &" in script
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("partion: cpu", "unknown key partion; did you mean 'partition'"),
        ("token: x", "unknown key token; there are nodes, cpus"),
        ("cpus: many", "cpus: must be a whole number, got many"),
        ("requeue: perhaps", "requeue: must be true or false, got perhaps"),
        ("sbatch: mem", "sbatch: must be options of sbatch, as {mem: 20G}"),
        ("partition: [a]", "partition: must be one value"),
        ("[a]", "must be a mapping"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_profile_that_is_wrong_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_profile(str(path))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# ---- settings on nodes -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ServedConfig(FormationConfig):
    """Workers, one a host, with settings of their own for flags of a cluster."""

    joined: ClassVar[Joined] = "more"
    host_actors: ClassVar[int | None] = 1
    cluster_flags: ClassVar[dict[str, str]] = {
        "servers": "served.num_servers",
        "simulators": "env.num_envs",
    }
    num_servers: int = 1
    """Of them."""


class Served:
    """A formation with flags of its own."""

    Config = ServedConfig


SERVED = {"formation": f"{__name__}:Served"}


def spread(hosts: int, cpus: int = 4, **more: object) -> OnNodes:
    return OnNodes(num_hosts=hosts, cpus=cpus, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "flags", "places", "actors"),
    [
        ("dqn-cartpole", {}, 8, 1),  # the recipe's own acts at the head
        ("cartpole", {}, 8, 11),  # a CPU of the head learns
        ("cartpole", {"formation": "allreduce", "envs": "36"}, 8, 12),
        ("cartpole", {"actors": "9"}, 8, 9),
    ],
)
def test_each_cpu_of_a_host_acts(
    what: str, flags: dict[str, str], places: int, actors: int
) -> None:
    config, each = settings_on_nodes(what, flags, spread(2))
    assert each == 4
    assert config.engine == "local"
    assert config.num_places == places
    assert config.formation_config.num_actors == actors


def test_a_formation_says_what_its_flags_mean() -> None:
    flags = {"servers": 3, "simulators": 10}
    config, each = settings_on_nodes("cartpole", SERVED, spread(66, 12, flags=flags))
    assert each == 1
    assert config.num_places == 66
    assert isinstance(config.formation_config, ServedConfig)
    assert config.formation_config.num_servers == 3
    assert config.env.num_envs == 10
    more, _ = settings_on_nodes("cartpole", SERVED | {"actors": "2"}, spread(2, flags=flags))
    assert more.env.num_envs == 20, "each of two workers at the head, and each that joins, has 10"


def test_roles_have_nodes_of_their_own() -> None:
    apart = spread(0, apart=("evaluator", "recorder"))
    for formation in ("hogwild", "sync"):
        config, _ = settings_on_nodes("cartpole", {"formation": formation}, apart)
        assert config.hosts.leaves == ("evaluator", "recorder")
        assert config.record.episodes == 1
        assert config.eval.every_steps == config.checkpoint.every_steps
        assert config.num_places == 0


def test_parameter_servers_take_the_flags_of_ba3c() -> None:
    flags = {"servers": 4, "grads": 60, "simulators": 10}
    given = {"formation": "paramserver"}
    config, each = settings_on_nodes("cartpole", given, spread(70, 12, flags=flags))
    assert each == 1
    assert config.num_acting == 71
    formation = config.formation_config
    assert isinstance(formation, ParamserverConfig)
    assert (formation.num_servers, formation.num_gradients) == (4, 60)
    assert config.env.num_envs == 10


@pytest.mark.parametrize(
    ("what", "flags", "nodes", "said"),
    [
        ("cartpole", {"formation": "hogwild"}, spread(2), "hogwild shares memory and stays on one"),
        ("dqn-cartpole", {}, spread(70, 12), "70 hosts with 12 actors each are more than 256 act"),
        ("cartpole", {"envs": "4"}, spread(2), "11 actors cannot share 4 environments"),
        ("cartpole", SERVED, spread(2, flags={"servers": 0}), "--servers: must be at least 1"),
        ("cartpole", SERVED, spread(2, flags={"grads": 2}), "--grads: formation"),
        ("dqn-cartpole", {}, spread(2, flags={"grads": 60}), "--grads: formation replay has none"),
    ],
)
def test_what_cannot_be_spread(what: str, flags: dict[str, str], nodes: OnNodes, said: str) -> None:
    with pytest.raises(UserError) as error:
        settings_on_nodes(what, flags, nodes)
    assert said in str(error.value)


# ---- the command -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("dqn-cartpole", "--nodes: on how many nodes?"),
        ("dqn-cartpole --nodes few", "--nodes: must be a whole number, got few"),
        ("dqn-cartpole --nodes 2 --eval-node --record-node", "2 are too few for the head and the"),
        ("dqn-cartpole --nodes 2 --grads 0", "--grads: formation replay has none"),
        ("dqn-cartpole --nodes 2 --seeds 3", "--seeds: one job is one run"),
        ("dqn-cartpole --nodes 2 --engine mpi", "--engine: hosts join engine local"),
        ("dqn-cartpole --nodes 2 --mpi pmi2 --eval-node", "--eval-node: is for hosts that join"),
        ("dqn-cartpole --nodes 2 --mpi pmi2 --servers 2", "--servers: is for hosts that join"),
        ("dqn-cartpole --nodes 2 --setup gone.sh", "there is no such file"),
        ("dqn-cartpole --nodes 2 --profile gone.yaml", "gone.yaml: cannot be read"),
        ("dqn-cartpol --nodes 2", "did you mean 'dqn-cartpole'"),
        ("dqn-cartpole --nodes 2 --stepz 3", "unknown flag --stepz"),
        ("dqn-cartpole --nodes 2", "no Slurm here: sbatch was not found"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["slurm", *shlex.split(words)]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert len(errors.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_it_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "--help"]) == 0
    assert "--record-node" in capsys.readouterr().out


# ---- what the nodes look for -------------------------------------------------------------------

ON_ONE = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
ON_TWO = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n2"}


def test_nodes_that_share_the_directory_go_on(tmp_path: Path) -> None:
    write_slurm_job(tmp_path, SlurmJob(job="3", command="rookery slurm x"))
    leave_probe(tmp_path, ON_ONE)
    check_node(tmp_path, ON_TWO, wait_secs=0)
    assert read_slurm_job(tmp_path) == SlurmJob(job="7", command="rookery slurm x")


def test_nodes_that_do_not_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"node n2 does not see .* choose a --run on a file system"):
        check_node(tmp_path, ON_TWO, wait_secs=0)
    leave_probe(tmp_path, ON_ONE)
    with pytest.raises(UserError, match="node n2 does not see"):  # that of the time before
        check_node(tmp_path, ON_TWO | {"SLURM_RESTART_COUNT": "1"}, wait_secs=0)
    with pytest.raises(UserError, match="node n1 does not see"):
        leave_probe(tmp_path / "gone", ON_ONE)


@pytest.mark.parametrize("package", ["rookery", "torch", "python"])
def test_other_versions_are_named(tmp_path: Path, package: str) -> None:
    leave_probe(tmp_path, ON_ONE)
    path = tmp_path / "slurm-probe.json"
    told = json.loads(path.read_text())
    told["versions"][package] = "0.0.1"
    path.write_text(json.dumps(told))
    with pytest.raises(
        UserError, match=f"node n2 has {package} .*, and node n1 has 0.0.1; install"
    ):
        check_node(tmp_path, ON_TWO, wait_secs=0)


def test_only_a_run_that_waits_for_its_job_is_begun_in_place(tmp_path: Path) -> None:
    job(tmp_path).prepare()
    RunDirectory.create(tmp_path, name="x").write_config("version: 2\n")
    RunDirectory.create(tmp_path, name="x")  # killed before anything was saved, and begun again
    (tmp_path / "checkpoints" / "000000000100").mkdir(parents=True)
    with pytest.raises(UserError, match="is already used"):
        RunDirectory.create(tmp_path, name="x")


# ---- what Slurm says of jobs -------------------------------------------------------------------


def programs(directory: Path, **scripts: str) -> None:
    for name, script in scripts.items():
        (directory / name).write_text(f"#!/bin/bash\n{script}\n")
        (directory / name).chmod(0o755)


def test_states_are_those_of_squeue_else_of_accounting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    programs(
        tmp_path,
        squeue='[ "$2" = --jobs=3,4,5 ] && echo "3|RUNNING|None" && echo "4|PENDING|Resources"',
        sacct='[ "$4" = --jobs=5 ] && echo "5|CANCELLED by 0"',
    )
    told = {"3": "running", "4": "pending (Resources)", "5": "cancelled"}
    assert slurm_state.states_of(["4", "3", "5", "x"]) == told
    programs(tmp_path, squeue="exit 1", sacct="sleep 60")
    monkeypatch.setattr(slurm_state, "ASK_SECS", 0.2)
    assert slurm_state.states_of(["3"]) == {}
    monkeypatch.setenv("PATH", "/nowhere")
    assert slurm_state.states_of(["3"]) == {}
    assert slurm_state.states_of([]) == {}


def test_runs_shows_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    programs(tmp_path, squeue='echo "12|PENDING|Priority"')
    run = RunDirectory.create(tmp_path / "runs" / "pong", name="pong")
    run.write_config("version: 2\n")
    write_slurm_job(run.path, SlurmJob(job="12", command="rookery slurm pong"))
    assert main(["runs", str(tmp_path / "runs")]) == 0
    assert "pong  job 12 pending (Priority)" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "runs"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["job"] == {"number": "12", "state": "pending (Priority)"}
