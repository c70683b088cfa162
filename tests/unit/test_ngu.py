"""NGU and Agent57: settings, networks, targets, and short runs of every kind."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rookery
from rookery.algos.agent57 import Agent57, Agent57Config
from rookery.algos.dqn import BEST, TAKEN
from rookery.algos.family import FamilyConfig
from rookery.algos.ngu import BONUS, NGU, NGUConfig
from rookery.algos.novelty import NoveltyConfig
from rookery.core.errors import UserError
from rookery.core.sequence import Sequences, StepSpec
from rookery.nets.policy import PolicyConfig
from rookery.nets.q_network import ARM, LAST
from rookery.ops.q_learning import unrescale
from rookery.params.flat import FlatParams
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig
from rookery.recipes.settings import settings_from_python
from tests.curious import FLAT, network
from tests.wired import Crew, step_spec_of

CPU = torch.device("cpu")
FAMILY = FamilyConfig(num_arms=4, beta_max=0.5, gamma_min=0.9)
LSTM = PolicyConfig(hidden=(8,), core="lstm", core_size=4)
SEQUENCE: dict[str, Any] = FLAT | {"length": 4, "burn_in": 2, "n_step": 2}


def some_sequences(spec: StepSpec, num_steps: int, num: int, seed: int = 0) -> Sequences:
    """Sequences of arms 0, 1, ... with everything in them drawn."""
    rng = np.random.default_rng(seed)
    out = spec.sequences(num_steps, num)
    for leaf in (*out.obs.values(), *out.state.values()):
        drawn = rng.normal(size=leaf.shape) if leaf.dtype.kind == "f" else rng.integers(256)
        leaf[:] = drawn
    out.action[:] = rng.integers(4, size=out.action.shape)
    out.reward[:] = rng.normal(size=out.reward.shape)
    out.mask[:] = True
    for name, leaf in out.extra.items():
        leaf[:] = rng.random(leaf.shape) if name != ARM else np.arange(num) % 4
    out.extra[LAST][..., 0] = rng.integers(5, size=out.reset.shape)
    return out


def build(kind: Any, config: Any, policy: PolicyConfig | None = None, **given: Any) -> Any:
    """The algorithm, two networks, and the shape of a step."""
    online, target = network(config, policy, **given), network(config, policy, **given)
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.mul_(1.1)
    algorithm = kind(config, recurrent=online.recurrent, device=CPU)
    return algorithm, online, target, step_spec_of(config, online)


# --- networks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [NGUConfig, Agent57Config])
@pytest.mark.parametrize("policy", [PolicyConfig(hidden=(8,)), LSTM], ids=["plain", "lstm"])
def test_a_step_at_a_time_is_the_whole_sequence(kind: Any, policy: PolicyConfig) -> None:
    config = kind(**SEQUENCE, family=FAMILY)
    net = network(config, policy)
    obs = {"obs": torch.randn(5, 3, 3), ARM: torch.tensor([0, 2, 3]).expand(5, 3)}
    reset = torch.zeros(5, 3, dtype=torch.bool)
    whole = net.mixed(net.unroll(obs, net.initial_state(3), reset), obs)
    state = net.initial_state(3)
    assert len(state) == (0 if policy.core == "none" else 4 if config.separate else 2)
    for step in range(5):
        row = {name: leaf[step] for name, leaf in obs.items()}
        values, state = net.values(row, state, reset[step])
        assert torch.allclose(values, whole[step], atol=1e-5)


@pytest.mark.parametrize("kind", [NGUConfig, Agent57Config])
def test_arms_differ_and_evaluation_plays_the_first(kind: Any) -> None:
    net = network(kind(**FLAT, family=FAMILY))
    obs, reset = {"obs": torch.randn(2, 3)}, torch.zeros(2, dtype=torch.bool)

    def values(arm: int) -> Any:
        return net.values(obs | {ARM: torch.full((2,), arm)}, {}, reset)[0]

    assert torch.allclose(net.values(obs, {}, reset)[0], values(0), atol=1e-5)
    advantage = [values(arm) - values(arm).mean(-1, keepdim=True) for arm in range(4)]
    assert not torch.allclose(advantage[0], advantage[3], atol=1e-3)
    ranks = [(values(0) - values(3))[row] for row in (0, 1)]
    assert not torch.allclose(ranks[0], ranks[1], atol=1e-4), "the arm and what is seen interact"


def test_only_exploring_arms_see_the_step_before() -> None:
    net = network(NGUConfig(**FLAT, family=FAMILY))
    obs, reset = {"obs": torch.randn(4, 3), ARM: torch.arange(4)}, torch.zeros(4, dtype=torch.bool)
    last = torch.tensor([4.0, 1.0, 2.0]).expand(4, 3)
    differs = (net.values(obs, {}, reset)[0] != net.values(obs | {LAST: last}, {}, reset)[0]).any(1)
    assert differs.tolist() == [False, True, True, True]


@pytest.mark.parametrize("rescale", [False, True])
def test_agent57_mixes_by_beta(rescale: bool) -> None:
    net = network(Agent57Config(**FLAT, family=FAMILY, rescale=rescale))
    obs = {"obs": torch.randn(4, 3), ARM: torch.arange(4)}
    extrinsic, intrinsic = net.parts(obs)
    assert not torch.allclose(extrinsic, intrinsic)
    mixed, beta = net.mixed(net.parts(obs), obs), FAMILY.betas()[:, None]
    if rescale:
        mixed, extrinsic, intrinsic = (unrescale(part) for part in (mixed, extrinsic, intrinsic))
    assert torch.allclose(mixed, extrinsic + beta * intrinsic, atol=1e-4)


def test_the_random_network_does_not_learn_and_the_rest_does() -> None:
    algorithm, online, target, spec = build(NGU, NGUConfig(**FLAT, family=FAMILY))
    before = {name: value.clone() for name, value in online.state_dict().items()}
    flat = FlatParams(online)
    optimizer = FlatOptimizer(OptimizerConfig(lr=1e-2), flat)
    batch = algorithm.prepare(some_sequences(spec, 5, 8), np.ones(8), 0)
    first = algorithm.learn(online, target, batch)
    for _ in range(30):
        flat.zero_grad()
        learned = algorithm.learn(online, target, batch)
        learned.loss.backward()
        optimizer.step(1e-2)
    assert learned.metrics["novelty_error"] < 0.5 * first.metrics["novelty_error"]
    assert learned.metrics["inverse_accuracy"] >= first.metrics["inverse_accuracy"]
    moved = {name for name, value in online.state_dict().items() if not value.equal(before[name])}
    assert not {name for name in moved if name.startswith("novelty.target")}
    for part in ("novelty.embedding", "novelty.inverse", "novelty.predictor", "advantage_head"):
        assert any(name.startswith(part) for name in moved), part


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_novelty_learns_at_a_rate_of_its_own(name: Any) -> None:
    """A part that steps three times as far is one with three times the rate."""
    config = NGUConfig(**FLAT, family=FAMILY, novelty=NoveltyConfig(lr_scale=3.0))
    nets = [network(config) for _ in range(3)]
    [(part, scale)] = NGU(config, recurrent=False, device=CPU).lr_scales(nets[0])
    assert (part, scale) == (nets[0].novelty, 3.0)
    flats = [FlatParams(net) for net in nets]
    where = flats[0].part(part)
    assert flats[0].data[where].numel() == sum(p.numel() for p in part.parameters())
    scaled = FlatOptimizer(OptimizerConfig(name=name), flats[0], [(where, scale)])
    plain = [FlatOptimizer(OptimizerConfig(name=name), flat) for flat in flats[1:]]
    rng = torch.Generator().manual_seed(0)
    for _ in range(3):
        grad = torch.randn(flats[0].grad.shape, generator=rng)
        for flat in flats:
            flat.grad.copy_(grad)
        scaled.step(1e-3)
        plain[0].step(1e-3)
        plain[1].step(3e-3)
    outside = torch.ones_like(flats[0].data, dtype=torch.bool)
    outside[where] = False
    assert torch.equal(flats[0].data[outside], flats[1].data[outside])
    assert torch.allclose(flats[0].data[where], flats[2].data[where], atol=1e-6)


# --- targets -------------------------------------------------------------------------------------


def test_a_target_of_ngu_by_hand() -> None:
    """One step, the arm's own beta and gamma, and the target network's value of its choice."""
    given = FLAT | {"n_step": 1, "rescale": False}
    algorithm, online, target, spec = build(NGU, NGUConfig(**given, family=FAMILY, double=True))
    sequences = some_sequences(spec, 1, 4)
    sequences.terminated[0, 3] = True
    batch = algorithm.prepare(sequences, np.ones(4), 0)
    _, goal, _ = algorithm._flat(online, target, batch)
    for arm in range(4):
        after = {name: leaf[1, arm : arm + 1] for name, leaf in batch.obs.items()}
        best = online.parts(after)[0, 0].argmax()
        value = 0.0 if arm == 3 else target.parts(after)[0, 0, best].item()
        reward = sequences.reward[0, arm] + FAMILY.betas()[arm] * sequences.extra[BONUS][0, arm]
        wanted = reward + FAMILY.gammas(0.997)[arm] * value
        assert float(goal[0, 0, arm]) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("kind", [(NGU, NGUConfig), (Agent57, Agent57Config)], ids=["ngu", "a57"])
def test_separate_targets_by_hand(kind: tuple[Any, Any]) -> None:
    """Each reward by its own network, for the action that the mixture likes best."""
    given = FLAT | {"n_step": 1, "rescale": True, "gamma": 0.99, "separate": True}
    algorithm, online, target, spec = build(kind[0], kind[1](**given, family=FAMILY))
    sequences = some_sequences(spec, 1, 4)
    batch = algorithm.prepare(sequences, np.ones(4), 0)
    _, goal, _ = algorithm._flat(online, target, batch)
    gammas, betas = FAMILY.gammas(0.99), FAMILY.betas()
    for arm in range(4):
        after = {name: leaf[1, arm : arm + 1] for name, leaf in batch.obs.items()}
        plain = unrescale(online.parts(after)[:, 0])
        best = (plain[0] + betas[arm] * plain[1]).argmax()
        for number, reward in enumerate((sequences.reward, sequences.extra[BONUS])):
            value = unrescale(target.parts(after)[number, 0, best])
            wanted = reward[0, arm] + gammas[arm] * value.detach()
            assert float(unrescale(goal[number, 0, arm])) == pytest.approx(float(wanted), rel=1e-3)


@pytest.mark.parametrize("kind", [(NGU, NGUConfig), (Agent57, Agent57Config)])
def test_first_priorities_are_those_of_the_mixture(kind: Any) -> None:
    given = FLAT | {"n_step": 1, "rescale": False, "gamma": 0.99}
    algorithm, _, _, spec = build(kind[0], kind[1](**given, family=FAMILY))
    sequences = some_sequences(spec, 1, 4)
    found = algorithm.first_priorities(sequences)
    extra = sequences.extra
    for arm in range(4):
        reward = sequences.reward[0, arm] + float(FAMILY.betas()[arm]) * extra[BONUS][0, arm]
        goal = reward + float(FAMILY.gammas(0.99)[arm]) * extra[BEST][1, arm]
        assert found[arm] == pytest.approx(abs(goal - extra[TAKEN][0, arm]), rel=1e-4)


def test_padding_does_not_change_a_sequences_arm() -> None:
    algorithm, _, _, spec = build(NGU, NGUConfig(**SEQUENCE, family=FAMILY), LSTM)
    sequences = some_sequences(spec, 7, 4)
    sequences.extra[ARM][:3] = 0
    sequences.mask[:3] = False
    batch = algorithm.prepare(sequences, np.ones(4), 0)
    assert batch.obs[ARM].shape == (8, 4)
    assert batch.obs[ARM][0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [(NGU, NGUConfig), (Agent57, Agent57Config)], ids=["ngu", "a57"])
@pytest.mark.parametrize(
    ("given", "policy", "space"),
    [
        (FLAT, PolicyConfig(hidden=(8,), dueling=True), None),
        (SEQUENCE, LSTM, None),
        (SEQUENCE, PolicyConfig(hidden=(8,)), None),
        (FLAT, PolicyConfig(hidden=(8,)), spaces.Box(0, 255, (4, 36, 36), np.uint8)),
        (SEQUENCE, LSTM, spaces.Box(0, 255, (4, 36, 36), np.uint8)),
    ],
    ids=["mlp", "mlp lstm", "mlp sequences", "cnn", "cnn lstm"],
)
def test_every_kind_of_network_learns(kind: Any, given: Any, policy: Any, space: Any) -> None:
    if policy.core == "none" and given is SEQUENCE:
        given = given | {"burn_in": 0}
    algorithm, online, target, spec = build(
        kind[0], kind[1](**given, family=FAMILY), policy, space=space
    )
    num_steps = algorithm.config.sequence.num_steps
    batch = algorithm.prepare(some_sequences(spec, num_steps, 4), np.ones(4), 0)
    learned = algorithm.learn(online, target, batch)
    learned.loss.backward()
    without = {name for name, p in online.named_parameters() if p.grad is None}
    assert all(name.startswith("novelty.target") for name in without)
    assert learned.priorities.shape == (4,)
    assert np.isfinite([float(value) for value in learned.metrics.values()]).all()


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"limit": 0.5}, "set novelty.life_long to false"),
        ({"capacity": 5}, "num_neighbours: 10 is more than novelty.capacity, 5; raise capacity"),
        ({"lr_scale": 0.0}, "lr_scale: must be positive"),
        ({"train_steps": 0}, "train_steps: must be at least 1"),
        ({"cluster_distance": -1.0}, "cluster_distance: must not be negative"),
    ],
)
def test_wrong_novelty(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        NoveltyConfig(**wrong)


def test_nested_blocks_keep_the_algorithms_defaults() -> None:
    given = {"algo": "agent57", "agent57": {"family": {"num_arms": 6}}}
    config = settings_from_python("rookery/Maze-v0", given).algo_config
    assert isinstance(config, Agent57Config)
    assert (config.family.num_arms, config.family.choice) == (6, "bandit")
    with pytest.raises(UserError, match=r"discounts must fall from ngu.gamma, 0.5"):
        settings_from_python("rookery/Maze-v0", {"algo": "ngu", "ngu": {"gamma": 0.5}})


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(UserError, match="use --algo ppo"):
        rookery.train("Pendulum-v1", algo="ngu", steps=10)


# --- short runs ----------------------------------------------------------------------------------

TINY: dict[str, Any] = {
    "envs": 3,
    "policy": {"hidden": [8]},
    "eval": {"episodes": 1, "max_steps": 20},
    "log_every": 100,
    "metrics": {"sinks": ["jsonl"]},
    "env": {"kwargs": {"max_steps": 20}},
}


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("core", "algo"),
    [
        *(("none", "ngu"), ("gru", "agent57")),
        pytest.param("none", "agent57", marks=pytest.mark.long),
        pytest.param("gru", "ngu", marks=pytest.mark.long),
    ],
)
def test_a_short_run_tells_what_it_did(algo: str, core: str, tmp_path: Path) -> None:
    shape = {} if core == "none" else {"length": 6, "burn_in": 3}
    family = {"num_arms": 4, "epsilons": [0.5, 0.25]}
    settings = FLAT | shape | {"family": family, "novelty": {"capacity": 30}}
    run = rookery.train(
        "rookery/Maze-v0",
        algo=algo,
        run=tmp_path / "run",
        steps=500,
        **(TINY | {"policy": {"hidden": [8], "core": core, "core_size": 8}, algo: settings}),
    )
    last = [record for record in records(run.path) if "train/loss" in record][-1]
    assert last["train/intrinsic_reward"] > 0
    assert last["train/novelty_error"] > 0
    assert 0 <= last["train/inverse_accuracy"] <= 1
    assert 0 <= last["rollout/info_arm_mean"] <= 3
    assert 0 <= last["rollout/info_exploiting_mean"] <= 1
    assert 0.25 <= last["rollout/info_epsilon_mean"] <= 0.5
    assert last["rollout/info_intrinsic_reward_mean"] > 0
    agent = rookery.load(run.path)
    obs = np.zeros(agent.signature.obs["obs"].shape, np.float32)
    action, _ = agent.act(obs, deterministic=True)
    assert action in range(4)


def test_arms_are_constant_within_an_episode() -> None:
    """As they lie in replay: one arm from the beginning of an episode to its end."""
    given = TINY | {"ngu": FLAT | {"family": {"num_arms": 4, "choice": "uniform"}}}
    config = settings_from_python("rookery/Maze-v0", given | {"algo": "ngu"})
    crew = Crew(config)
    (actor,), replay, learner = crew.roles("actor"), crew.role("replay"), crew.role("learner")
    stored: list[Any] = []
    put = actor.lane.sink.put

    def keep(steps: Any, episodes: Any, **how: Any) -> None:
        ended = steps.truncated | steps.terminated
        stored.append((steps.extra[ARM].copy(), ended, episodes))
        put(steps, episodes, **how)

    actor.lane.sink.put = keep
    for role in (learner, replay):
        role.start()
    while len(stored) < 60:
        worked = [role.step() for role in (actor, replay, learner) if role.ready()]
        assert worked
    actor.close()
    changes = 0
    for (arm, ended, _), (following, _, _) in pairwise(stored):
        assert (arm[~ended] == following[~ended]).all()
        changes += int((arm != following).sum())
    assert changes > 3
    told = np.concatenate([episodes for _, _, episodes in stored])
    ends = sum(int(ended.sum()) for _, ended, _ in stored)
    assert len(told) == ends >= 9


@pytest.mark.slow
def test_a_bundle_holds_the_whole_network(tmp_path: Path) -> None:
    from rookery.zoo.bundle import read_bundle, write_bundle
    from rookery.zoo.pack import pack

    settings = FLAT | {"family": {"num_arms": 4}}
    run = rookery.train(
        "rookery/Maze-v0",
        run=tmp_path / "run",
        algo="agent57",
        steps=150,
        **(TINY | {"agent57": settings}),
    )
    packed = pack(run.path, name="maze", episodes=2)
    path = tmp_path / "maze.safetensors"
    write_bundle(path, packed.info, packed.arrays)
    policy = read_bundle(path).policy()
    assert policy.kind == "curious-q-network"
    assert policy.settings["split"] is True


def test_what_tells_the_new_learns_from_all_sequences_of_a_batch() -> None:
    """Five of forty steps of each of 32, not all steps of every eighth."""
    config = NGUConfig(
        **FLAT | {"length": 40, "n_step": 1}, novelty=NoveltyConfig(train_steps=5), family=FAMILY
    )
    algorithm, online, target, spec = build(NGU, config)
    sequences = some_sequences(spec, 40, 32)
    sequences.obs["obs"][:] = np.arange(32)[:, None]
    seen: list[torch.Tensor] = []
    told = online.novelty_errors
    online.novelty_errors = lambda obs: seen.append(obs["obs"][:, 0]) or told(obs)
    algorithm.learn(online, target, algorithm.prepare(sequences, np.ones(32), 0))
    counts = torch.bincount(seen[0].long(), minlength=32)
    assert counts.sum() == 5 * 32
    assert counts.min() >= 3


@pytest.mark.parametrize("begin", [0, 40_000_000])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_first_arm_learns_from_what_others_did(share: float, begin: int) -> None:
    family = FamilyConfig(num_arms=4, exploit_share=share)
    algorithm, _, _, spec = build(NGU, NGUConfig(**FLAT, family=family))
    counts, firsts = [], []
    for steps in range(begin, begin + 800, 8):
        sequences = some_sequences(spec, 5, 16)
        sequences.extra[ARM][:] = 3
        batch = algorithm.prepare(sequences, np.ones(16), steps)
        exploited = batch.obs[ARM][0] == 0
        counts.append(int(exploited.sum()))
        firsts.append(bool(exploited[0]))
        if exploited.any():
            assert (algorithm._gamma(batch.extra)[exploited] == algorithm.gammas[0]).all()
    assert np.mean(counts) == pytest.approx(16 * share, abs=0.1)
    assert np.mean(firsts) == pytest.approx(share, abs=0.05), "not the same places each time"
