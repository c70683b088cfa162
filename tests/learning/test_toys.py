"""Toy worlds with a known optimum, learned in seconds by every algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rookery
from rookery.runs.trained import find_trained
from rookery.training import Run
from tests import toy_worlds

QUICK: dict[str, Any] = {
    "envs": 16,
    "policy": {"hidden": [32]},
    "eval": {"episodes": 0},
    "metrics": {"sinks": ["jsonl"]},
    "log_every": 1000,
    "seed": 1,
}
REPLAYED: dict[str, Any] = {
    "gamma": 0.9,
    "batch_size": 64,
    "steps_per_update": 8,
    "learning_starts": 500,
    "capacity_steps": 5_000,
    "target_every": 50,
    "epsilon": {"start": 1.0, "end": 0.1, "steps": 3_000},
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "a2c": {"rollout_steps": 8, "gae_lambda": 0.9, "entropy_coef": 0.001, "gamma": 0.9},
    "dqn": REPLAYED,
    "apex": REPLAYED | {"n_step": 3, "epsilon": {"kind": "ladder", "start": 0.4, "end": 0.0}},
    "r2d2": REPLAYED | {"length": 8, "burn_in": 4, "n_step": 2, "batch_size": 16},
    "impala": {"rollout_steps": 8, "gae_lambda": 0.9, "entropy_coef": 0.001, "gamma": 0.9},
    "ppo": {
        "rollout_steps": 16,
        "num_epochs": 4,
        "num_minibatches": 4,
        "gamma": 0.9,
        "entropy_coef": 0.001,
    },
}
RATES = {"a2c": 5e-3, "impala": 5e-3, "ppo": 3e-3, "dqn": 3e-3, "apex": 3e-3, "r2d2": 3e-3}


def learn(world: str, path: Path, *, algo: str = "ppo", steps: int, **changes: Any) -> Run:
    """Train in one of the worlds; sections in ``changes`` are merged with the quick settings."""
    given: dict[str, Any] = {**QUICK, "algo": algo, algo: ALGORITHMS[algo], "lr": RATES[algo]}
    for name, value in changes.items():
        given[name] = given.get(name, {}) | value if isinstance(value, dict) else value
    return rookery.train(f"tests.toy_worlds:{world}", run=path / "run", steps=steps, **given)


def score(run: Run, episodes: int = 40) -> float:
    """Mean return of the most likely actions."""
    return float(run.evaluate(episodes, deterministic=True)["return_mean"])


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["a2c", "ppo"])
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "multi_binary"])
def test_every_kind_of_choice_is_learned(kind: str, algo: str, tmp_path: Path) -> None:
    run = learn("Mirror", tmp_path, algo=algo, steps=6_000, env={"kwargs": {"kind": kind}})
    assert score(run) > 0.97 * toy_worlds.MIRROR_STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "changes"),
    [("a2c", {"a2c": {"rollout_steps": 4, "normalize_advantage": True}}), ("ppo", {})],
)
def test_continuous_actions_are_learned(algo: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Off by less than 0.2 on average in bounds that are 5 apart; staying in the middle is 1.25."""
    env, policy = {"kwargs": {"kind": "box"}}, {"log_std_init": -1.5}
    run = learn("Mirror", tmp_path, algo=algo, steps=12_000, env=env, policy=policy, **changes)
    assert score(run) > 0.8 * toy_worlds.MIRROR_STEPS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
def test_choices_that_do_not_count_from_zero(kind: str, tmp_path: Path) -> None:
    env = {"kwargs": {"kind": kind, "start": 5}}
    run = learn("Mirror", tmp_path, steps=6_000, env=env)
    assert score(run) > 0.97 * toy_worlds.MIRROR_STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "core", "steps"),
    [
        pytest.param("ppo", "gru", 8_000, marks=pytest.mark.long),
        *(("ppo", "lstm", 8_000), ("a2c", "gru", 16_000)),
    ],
)
def test_memory_recalls_what_was_seen_before(
    algo: str, core: str, steps: int, tmp_path: Path
) -> None:
    policy = {"core": core, "core_size": 16}
    run = learn("Recall", tmp_path, algo=algo, steps=steps, policy=policy)
    assert score(run) == 1.0


@pytest.mark.slow
def test_without_memory_there_is_nothing_to_recall(tmp_path: Path) -> None:
    assert abs(score(learn("Recall", tmp_path, steps=6_000), episodes=200)) < 0.3


@pytest.mark.slow
def test_normalised_observations_let_a_whisper_through(tmp_path: Path) -> None:
    plain = learn("Whisper", tmp_path / "plain", steps=6_000)
    assert score(plain) < 0.8 * toy_worlds.MIRROR_STEPS
    normalised = learn("Whisper", tmp_path / "fine", steps=6_000, policy={"normalize_obs": True})
    assert score(normalised) == toy_worlds.MIRROR_STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "final", "value"),
    [
        *(("a2c", False, 10.0), ("ppo", True, 4.14)),
        pytest.param("a2c", True, 4.14, marks=pytest.mark.long),
        pytest.param("ppo", False, 10.0, marks=pytest.mark.long),
    ],
)
def test_a_time_limit_is_no_end(algo: str, final: bool, value: float, tmp_path: Path) -> None:
    """The value of a world cut by a time limit is that of the uncut one."""
    run = learn("Endless", tmp_path, algo=algo, steps=12_000, env={"kwargs": {"final": final}})
    policy = find_trained(run.path).policy
    with torch.inference_mode():
        found = policy.value({"obs": torch.ones(1, 1)}, {}, torch.zeros(1, dtype=torch.bool))
    assert float(found) == pytest.approx(value, rel=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_masked_actions_are_never_taken(algo: str, tmp_path: Path) -> None:
    """The world breaks at the first forbidden action, in training and in evaluation."""
    env = {"action_mask_key": "open"}
    run = learn("Fenced", tmp_path, algo=algo, steps=6_000, env=env)
    assert score(run) == toy_worlds.FENCED_STEPS
    with pytest.raises(rookery.EnvironmentFault, match=r"door \d is closed"):
        learn("Fenced", tmp_path / "unmasked", algo=algo, steps=1_000)


# --- from rollouts that are an update old or more ----------------------------------------------

QUEUED: dict[str, Any] = {
    "formation": "async",
    "async": {"num_actors": 2, "slots_per_actor": 2, "batch_envs": 8},
    "envs": 16,
}
"""Under ``inline`` all slots are filled before each update: rollouts are three updates old."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["discrete", "multi_binary"])
def test_async_learns_choices_from_old_rollouts(kind: str, tmp_path: Path) -> None:
    env = {"kwargs": {"kind": kind}}
    run = learn("Mirror", tmp_path, algo="impala", steps=8_000, env=env, **QUEUED)
    assert score(run) > 0.97 * toy_worlds.MIRROR_STEPS
    assert '"train/lag_mean": 3.0' in (run.path / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_async_recalls_what_was_seen_before(tmp_path: Path) -> None:
    policy = {"core": "lstm", "core_size": 16}
    run = learn("Recall", tmp_path, algo="impala", steps=16_000, policy=policy, **QUEUED)
    assert score(run) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("final", "value"), [(False, 10.0), (True, 4.14)])
def test_async_takes_a_time_limit_for_no_end(final: bool, value: float, tmp_path: Path) -> None:
    env = {"kwargs": {"final": final}}
    run = learn("Endless", tmp_path, algo="impala", steps=12_000, env=env, **QUEUED)
    policy = find_trained(run.path).policy
    with torch.inference_mode():
        found = policy.value({"obs": torch.ones(1, 1)}, {}, torch.zeros(1, dtype=torch.bool))
    assert float(found) == pytest.approx(value, rel=0.12)


# --- from replay ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"double": False, "loss": "squared"},
        {"priority_exponent": 0.6, "target_tau": 0.02},
        {"rescale": True, "n_step": 3},
    ],
)
def test_dqn_learns_choices(changes: dict[str, Any], tmp_path: Path) -> None:
    run = learn("Mirror", tmp_path, algo="dqn", steps=6_000, dqn=changes)
    assert score(run) > 0.97 * toy_worlds.MIRROR_STEPS


@pytest.mark.slow
def test_dueling_apex_learns_choices(tmp_path: Path) -> None:
    policy, replay = {"dueling": True}, {"num_actors": 2}
    given: dict[str, Any] = {"policy": policy, "replay": replay, "envs": 16}
    run = learn("Mirror", tmp_path, algo="apex", steps=8_000, **given)
    assert score(run) > 0.97 * toy_worlds.MIRROR_STEPS


@pytest.mark.slow
@pytest.mark.parametrize("core", [pytest.param("gru", marks=pytest.mark.long), "lstm"])
def test_r2d2_recalls_what_was_seen_before(core: str, tmp_path: Path) -> None:
    policy = {"core": core, "core_size": 16}
    run = learn("Recall", tmp_path, algo="r2d2", steps=16_000, policy=policy)
    assert score(run) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("final", "n_step", "value"),
    [
        *((False, 3, 10.0), (True, 1, 5.26)),
        pytest.param(False, 1, 10.0, marks=pytest.mark.long),
        pytest.param(True, 3, 5.02, marks=pytest.mark.long),
    ],
)
def test_dqn_takes_a_time_limit_for_no_end(
    final: bool, n_step: int, value: float, tmp_path: Path
) -> None:
    """What ends is worth ``V = 1 + 0.9 (0.9 V)`` if all steps look alike and one of ten is last."""
    env, dqn = {"kwargs": {"final": final}}, {"n_step": n_step, "loss": "squared"}
    run = learn("Endless", tmp_path, algo="dqn", steps=12_000, env=env, dqn=dqn)
    policy = find_trained(run.path).policy
    with torch.inference_mode():
        shown = {"obs": torch.ones(1, 1)}
        _, found, _ = policy.distribution(shown, {}, torch.zeros(1, dtype=torch.bool))
    assert float(found) == pytest.approx(value, rel=0.12)


@pytest.mark.slow
def test_dqn_never_takes_masked_actions(tmp_path: Path) -> None:
    env = {"action_mask_key": "open"}
    run = learn("Fenced", tmp_path, algo="dqn", steps=6_000, env=env)
    assert score(run) == toy_worlds.FENCED_STEPS


# --- by parameter servers ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"num_servers": 3, "compression": "bf16"},
        {"compression": "topk", "topk_share": 0.1},
        {"num_servers": 2, "num_actors": 3, "num_gradients": 2},
        {"num_actors": 3, "mode": "async", "max_staleness": 4, "damping": 0.5},
    ],
    ids=["bf16", "topk", "two of three", "async"],
)
def test_paramserver_learns_choices(given: dict[str, Any], tmp_path: Path) -> None:
    """Several workers are threads."""
    threads = given.get("num_actors", 1) > 1
    run = learn(
        "Mirror",
        tmp_path,
        algo="a2c",
        steps=12_000 if threads else 6_000,
        envs=18 if threads else 16,
        formation="paramserver",
        paramserver=given,
        threads=threads,
    )
    assert score(run) > 0.97 * toy_worlds.MIRROR_STEPS
