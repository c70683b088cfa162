"""Formation central: what its program is made of, and what is refused before anything starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rookery
from rookery.core.errors import UserError
from rookery.formations.central import parts_of
from rookery.params.flat import FlatParams
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_flags
from rookery.roles.inference import METRICS, Inference
from rookery.runs.bottleneck import bottleneck
from rookery.runs.config import RunConfig
from rookery.runs.metric_names import is_named
from tests.wired import Crew

DQN = {
    "algo": "dqn",
    "dqn.batch_size": "8",
    "dqn.learning_starts": "400",
    "dqn.capacity_steps": "1000",
    "policy.hidden": "[8]",
}


def config_of(**flags: str) -> RunConfig:
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    return settings_from_flags("CartPole-v1", {"formation": "central"} | dotted)


@pytest.mark.parametrize(("envs", "parts"), [(4, 1), (8, 2), (12, 3), (20, 5), (24, 2), (28, 7)])
def test_actors_have_parts_where_one_can_step_while_another_waits(envs: int, parts: int) -> None:
    config = config_of(engine="local", actors="4", envs=str(envs))
    assert parts_of(Plan.of(config)) == parts
    assert parts_of(Plan.of(config_of(actors="4", envs=str(envs)))) == 1, "in turn none waits"


@pytest.mark.parametrize("algo", ["a2c", "impala", "dqn"])
def test_actors_hold_no_network_and_all_else_is_as_behind(algo: str) -> None:
    program = Plan.of(config_of(algo=algo, engine="local", actors="2", envs="8")).program()
    used = {edge.port.name for edge in program.edges if edge.source == "actor"}
    assert used == {"actions", "vitals"}
    from_inference = {edge.port.name for edge in program.edges if edge.source == "inference"}
    goes = {"a2c": {"experience"}, "impala": {"queue"}, "dqn": {"steps", "actor_state"}}
    assert from_inference == goes[algo] | {"params", "vitals"}
    assert program.acting.name == "actor"
    assert program.owner.name == "learner"


def crew_of(**flags: str) -> tuple[Crew, Inference]:
    """A run whose roles the test lets take turns."""
    crew = Crew(config_of(**{name.replace(".", "__"): value for name, value in flags.items()}))
    inference: Inference = crew.role("inference")
    return crew, inference


def test_one_batch_has_all_that_wait_up_to_its_bound() -> None:
    for bound, batches in ((None, [4]), ("2", [2, 2]), ("3", [3, 1])):
        given = {} if bound is None else {"central.max_batch_envs": bound}
        crew, inference = crew_of(**{"algo": "a2c", "actors": "4", "envs": "4"}, **given)
        actors = crew.roles("actor")
        crew.role("learner").start()
        inference.start()
        for _ in range(2):
            for actor in actors:
                actor.step()
            inference.step()
        while inference.ready():
            inference.step()
        assert list(inference._batches) == batches
        assert all(actor.ready() for actor in actors), "each has its answer"


def test_chance_is_an_actors_own_whoever_else_is_in_the_batch() -> None:
    """The same actions, one at a time and all at once."""
    taken = []
    for bound in ("1", "100"):
        given = {"algo": "a2c", "actors": "3", "envs": "3", "central.max_batch_envs": bound}
        crew, inference = crew_of(**given)
        crew.role("learner").start()
        inference.start()
        actors = crew.roles("actor")
        for _ in range(200):
            for role in (*actors, inference):
                if role.ready():
                    role.step()
        taken.append(crew.memory("experience")["action"].copy())
    assert np.array_equal(taken[0], taken[1])
    assert 0.2 < taken[0].mean() < 0.8


def test_answers_are_by_the_weights_of_the_version_named() -> None:
    """A network that prefers action v % 2 in version v, and no chance."""
    greedy = {"dqn.epsilon.start": "0", "dqn.epsilon.end": "0"}
    crew, inference = crew_of(**DQN, **greedy, **{"actors": "2", "envs": "2"})
    replay, actors = crew.role("replay"), crew.roles("actor")
    cell = crew.member("learner").ports.serve("params")
    policy, memory = crew.plan.policy(), crew.memory("actions")
    biases = [leaf for name, leaf in policy.named_parameters() if name.endswith("bias")]
    flat = FlatParams(policy)
    replay.start()
    inference.start()
    seen = []
    for version in range(1, 41):
        with torch.no_grad():
            flat.data.zero_()
            biases[-1][version % 2] = 1.0
        cell.publish(version, flat.tensors())
        for _ in range(3):
            for role in (*actors, inference, replay):
                if role.ready():
                    role.step()
            for actor in np.flatnonzero(memory["answered"][:, 0, 0]):
                named = int(memory["answered"][actor, 0, 1])
                seen.append((named, int(memory["action"][actor, 0, 0])))
    assert len({version for version, _ in seen}) > 20
    assert all(action == version % 2 for version, action in seen), seen


def test_who_is_waited_for_is_an_actor_and_not_a_part_of_one() -> None:
    given = {"algo": "a2c", "engine": "local", "actors": "2", "envs": "8"}
    crew, _ = crew_of(**given)
    learner = crew.role("learner")
    assert learner.missing() == [0, 1, 2, 3]
    assert crew.program.acting.num_parts == 2


@pytest.mark.slow
@pytest.mark.parametrize("actors", [1, 4])
def test_other_actors_than_before_begin_new_episodes(
    actors: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them, though the state of one might fit: inference would not know where it is."""
    given: dict[str, Any] = {"algo": "a2c", "a2c": {"rollout_steps": 8}, "eval": {"episodes": 0}}
    run = rookery.train(
        "CartPole-v1",
        formation="central",
        actors=2,
        envs=4,
        steps=400,
        run=tmp_path / "run",
        **given,
    )
    with caplog.at_level(logging.WARNING):
        again = rookery.resume(run.path, actors=actors, steps=800)
    assert again.finish.steps >= 800
    assert "inference-0 begins new episodes: it was made with another number" in caplog.text


def test_metrics_are_told_and_named() -> None:
    crew, inference = crew_of(**{"algo": "a2c", "actors": "1", "envs": "2"})
    assert inference.metrics() == dict.fromkeys(METRICS, 0.0)
    crew.role("learner").start()
    inference.start()
    (actor,) = crew.roles("actor")
    for _ in range(60):
        for role in (actor, inference):
            if role.ready():
                role.step()
    told = inference.metrics()
    assert tuple(told) == METRICS
    assert told["inference/batch_envs"] == 2
    assert told["inference/requests_per_sec"] > 0
    assert 0 < told["inference/latency_ms_p50"] <= told["inference/latency_ms_p99"]
    within = [told[f"inference/within_{most}_ms"] for most in (1, 2, 5, 10, 20, 50, 100)]
    assert within == sorted(within)
    assert all(is_named(name) for name in METRICS)


def test_the_bottleneck_may_be_inference() -> None:
    waits = {"fleet/actor_wait_share": 0.8, "fleet/learner_wait_share": 0.6}
    assert bottleneck(waits | {"fleet/inference_wait_share": 0.1}) == "inference-bound 80 %"
    assert bottleneck(waits | {"fleet/inference_wait_share": 0.7}) == "learner-bound 80 %"


REFUSED = {
    "more inference than divides the actors": (
        {"actors": "3", "envs": "6", "central.num_inference": "2", "engine": "local"},
        "central.num_inference: 2 cannot have equal parts of 3 actors",
    ),
    "a bound of nothing": ({"central.max_batch_envs": "0"}, "central.max_batch_envs: must be at"),
    "another algorithm's learners": (
        {"algo": "ppo", "central.num_learners": "2"},
        "central.num_learners: is for algorithms that learn from replay",
    ),
    "another algorithm's queue": (
        {**DQN, "central.max_lag": "2"},
        "central.max_lag: is for algorithms that learn from a queue",
    ),
    "a bound below one actor's": (
        {"actors": "2", "envs": "16", "central.max_batch_envs": "3"},
        "central.max_batch_envs: 3 is less than the 8 that an actor asks for at once; give 8",
    ),
    "a batch of no whole rollouts": (
        {"algo": "impala", "actors": "2", "envs": "8", "central.batch_envs": "3"},
        "central.batch_envs: 3 cannot be made of rollouts of 4",
    ),
    "nobody acts": (
        {"algo": "dqn", "actors": "0"},
        "central.num_actors: must be at least 1, got 0; --listen",
    ),
    "another division, from replay": (
        {**DQN, "env.halves": "2"},
        "env.halves: formation central itself divides",
    ),
    "another division": ({"env.halves": "2"}, "env.halves: formation central itself divides"),
    "ranks": ({"engine": "mpi"}, "--formation central: runs under --engine inline or local"),
    "workers": ({"workers": "2"}, "--workers: formation central has actors; use --actors"),
    "old rollouts": (
        {"algo": "impala", "impala.normalize_reward": "true"},
        "impala.normalize_reward: follows each environment's return",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(case: str) -> None:
    flags, words = REFUSED[case]
    with pytest.raises(UserError) as caught:
        Plan.of(config_of(**{name.replace(".", "__"): v for name, v in flags.items()})).program()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"central.inference_device: cuda:97: .*_device cpu"):
        Plan.of(config_of(central__inference_device="cuda:97")).program()
