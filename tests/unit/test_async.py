"""Formation async: its program, what is refused before anything starts, and its bottleneck."""

from __future__ import annotations

from pathlib import Path

import pytest

import rookery
from rookery.algos.impala import IMPALAConfig
from rookery.cli.main import main
from rookery.engines.carries import carries
from rookery.engines.engine import Finish
from rookery.envs.make import EnvConfig
from rookery.formations.asynchronous import AsyncConfig
from rookery.programs.plan import Plan
from rookery.programs.validate import validate
from rookery.recipes.settings import settings_from_flags
from rookery.runs.bottleneck import bottleneck
from rookery.runs.config import RunConfig
from rookery.runs.lines import Lines
from rookery.runs.metrics import read_metrics
from rookery.runs.session import Outcome
from rookery.training import Run

BASE = {"algo": "impala", "formation": "async"}


def test_the_program() -> None:
    config = RunConfig(
        env=EnvConfig(id="CartPole-v1", num_envs=12),
        algo="impala",
        algo_config=IMPALAConfig(),
        formation="async",
        formation_config=AsyncConfig(num_actors=3, learner_threads=2),
    )
    program = Plan.of(config).program()
    assert [(node.name, node.replicas) for node in program.nodes] == [
        ("actor", 3),
        ("learner", 1),
        ("evaluator", 1),
    ]
    assert {(edge.source, edge.port.name, edge.target) for edge in program.edges} == {
        ("actor", "queue", "learner"),
        ("actor", "params", "learner"),
        ("learner", "evaluation", "evaluator"),
        ("actor", "vitals", "learner"),
        ("learner", "vitals", "learner"),
        ("evaluator", "vitals", "learner"),
    }
    assert program.node("learner").num_threads == 2
    for engine in ("inline", "local", "mpi"):
        validate(program, engine, carries(engine))


REFUSED = {
    "--algo ppo": "use --algo impala, or --formation sync",
    "--algo a2c": "use --algo impala, or --formation sync",
    "--algo impala --actors 0": "async.num_actors: must be at least 1",
    "--algo impala --async.slots_per_actor 0": "async.slots_per_actor: must be at least 1",
    "--algo impala --async.batch_envs 0": "async.batch_envs: must be at least 1",
    "--algo impala --async.max_lag -1": "async.max_lag: must not be negative",
    "--algo impala --impala.rollouts_per_update 2": "set async.batch_envs instead",
    "--algo impala --impala.normalize_reward true": "use impala.reward_scale",
    "--algo impala --threads true --engine local": "use --engine inline",
    "--algo impala --impala.num_minibatches 9 --envs 4": "more than the 4 environments",
    "--algo impala --workers 2": "unknown flag --workers: formation async has actors",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["train", "CartPole-v1", "--formation", "async", *line.split(), "--run", str(run)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert REFUSED[line] in said
    assert said.count("\n") == 1
    assert not run.exists()


def test_a_batch_may_be_larger_than_all_slots(tmp_path: Path) -> None:
    """The learner takes what comes and frees its slot, so nobody waits for ever."""
    run = rookery.train(
        "CartPole-v1",
        run=tmp_path / "run",
        steps=200,
        envs=2,
        log_every=1,
        eval={"episodes": 0},
        impala={"rollout_steps": 5},
        **BASE,
        **{"async": {"slots_per_actor": 1, "batch_envs": 14}},
    )
    assert run.finish.updates == 3
    last = read_metrics(run.path / "metrics.jsonl")[-1]
    assert last["fleet/rollouts_learned"] == 21
    assert last["train/lag_max"] == 0


def test_settings_are_flags() -> None:
    flags = BASE | {"actors": "4", "async.batch_envs": "6", "async.max_lag": "none"}
    config = settings_from_flags("CartPole-v1", flags)
    formation = config.formation_config
    assert isinstance(formation, AsyncConfig)
    assert (formation.num_actors, formation.batch_envs, formation.max_lag) == (4, 6, None)
    assert formation.batch_columns(config.env.num_envs) == 6
    assert config.to_tree()["async"]["slots_per_actor"] == 2


def test_the_bottleneck_is_who_is_waited_for() -> None:
    waits = {"fleet/actor_wait_share": 0.82, "fleet/learner_wait_share": 0.1}
    assert bottleneck(waits | {"train/lag_mean": 1.26}) == "learner-bound 82 %, lag 1.3 updates"
    assert bottleneck(waits | {"fleet/learner_wait_share": 0.9}) == "actor-bound 90 %"
    assert bottleneck({"fleet/actor_wait_share": 0.5}) is None
    turns = {"fleet/actor_wait_share": 0.9, "fleet/learner_wait_share": 0.3, "fleet/actors": 2}
    assert bottleneck(turns | {"fleet/env_share": 0.1}) == "learning 70 %"


@pytest.mark.parametrize("lag", [None, 1.26])
def test_lines_name_the_bottleneck(
    lag: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the end of every run that has one; in each line where rollouts have an age."""
    told = {"steps": 10, "wall_secs": 2.0, "time/env_steps_per_s": 5.0}
    told |= {"fleet/actor_wait_share": 0.82, "fleet/learner_wait_share": 0.1}
    lines = Lines()
    lines.record(told if lag is None else told | {"train/lag_mean": lag})
    finish = Finish(Outcome("finished", "10 steps reached"), 10, 3, 2.0)
    lines.finish(Run(tmp_path, finish))
    record, ending, advice = capsys.readouterr().err.splitlines()
    bound = "learner-bound 82 %" + ("" if lag is None else ", lag 1.3 updates")
    assert record.endswith("5 steps/s" if lag is None else f"5 steps/s  {bound}")
    assert ending == f"finished: 10 steps reached (10 steps, 3 updates, 2.0 s; {bound})"
    assert advice == f"rookery eval {tmp_path}"


def test_steps_of_refused_rollouts_count(tmp_path: Path) -> None:
    run = rookery.train(
        "tests.toy_worlds:Mirror",
        run=tmp_path / "run",
        steps=800,
        envs=4,
        log_every=1,
        eval={"episodes": 0},
        impala={"rollout_steps": 5},
        **BASE,
        **{"async": {"num_actors": 2, "slots_per_actor": 3, "batch_envs": 2, "max_lag": 1}},
    )
    records = read_metrics(run.path / "metrics.jsonl")
    assert all(record["train/lag_max"] <= 1 for record in records)
    last = records[-1]
    assert last["fleet/rollouts_refused"] > 0
    assert last["steps"] == last["fleet/rollouts_taken"] * 10


def test_with_threads_the_end_is_evaluated(tmp_path: Path) -> None:
    """The evaluator shares the learner's thread, and answers when nobody acts any more."""
    run = rookery.train(
        "tests.toy_worlds:Mirror",
        run=tmp_path / "run",
        steps=200,
        envs=4,
        actors=2,
        threads=True,
        eval={"episodes": 2},
        impala={"rollout_steps": 5},
        **BASE,
    )
    assert read_metrics(run.path / "metrics.jsonl")[-1]["eval/episodes"] == 2
