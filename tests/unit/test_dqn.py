"""DQN's losses on hand-made sequences, its settings, and how actors explore."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rookery.algos.dqn import BEST, DQN, TAKEN, ApeXConfig, DQNConfig, R2D2Config
from rookery.algos.epsilon import EpsilonConfig
from rookery.core.errors import UserError
from rookery.core.sequence import Sequences, StepSpec
from rookery.core.signature import Signature
from rookery.core.spec import ArraySpec, LeafSpec
from rookery.nets.policy import PolicyConfig
from rookery.nets.q_network import QNetwork, greedy, legal_values
from rookery.recipes.settings import settings_from_python

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
SIGNATURE = Signature(
    obs={"obs": LeafSpec("box", (3,), FLOAT)},
    action=LeafSpec("discrete", (), INT, sizes=(4,)),
)
N = 6


def network(seed: int = 0, **settings: Any) -> QNetwork:
    torch.manual_seed(seed)
    return QNetwork(PolicyConfig(hidden=(8,), **settings), SIGNATURE)


def sequences(config: DQNConfig, policy: QNetwork, rng: np.random.Generator) -> Sequences:
    """Some whole, some that end within, by their task's rules or by a cut."""
    spec = StepSpec(
        obs={"obs": ArraySpec((3,), FLOAT)}, action=ArraySpec((), INT), state=policy.state_spec
    )
    total = config.sequence.num_steps
    out = spec.sequences(total, N)
    out.obs["obs"][:] = rng.normal(size=out.obs["obs"].shape)
    out.action[:] = rng.integers(0, 4, out.action.shape)
    out.reward[:] = rng.normal(size=out.reward.shape)
    out.mask[:] = True
    for column, (length, cut) in enumerate([(total, None), (total, None), (total, True)]):
        _end(out, column, length, cut)
    for column, cut in ((3, True), (4, False), (5, False)):
        _end(out, column, config.burn_in + max(1, (total - config.burn_in) // 2), cut)
    for leaf in out.state.values():
        leaf[:] = rng.normal(size=leaf.shape)
    return out


def _end(out: Sequences, column: int, length: int, cut: bool | None) -> None:
    if cut is not None:
        (out.truncated if cut else out.terminated)[length - 1, column] = True
    out.mask[length:, column] = False
    out.reward[length:, column] = 0.0
    out.action[length:, column] = 0
    for leaf in out.obs.values():
        leaf[length + 1 :, column] = 0.0


def batch_of(algorithm: DQN, given: Sequences) -> Any:
    return algorithm.prepare(given, np.full(N, 1.0 / N), steps=0)


def built(config: DQNConfig, *, recurrent: bool = False) -> DQN:
    return DQN(config, recurrent=recurrent, device=torch.device("cpu"))


def slow_targets(
    config: DQNConfig, given: Sequences, choice: torch.Tensor, aims: torch.Tensor
) -> np.ndarray[Any, Any]:
    """``[T, N]`` by loops, from values ``[T+1, N, A]`` of both networks."""
    total = config.sequence.num_steps
    out = np.zeros((total, N))
    for column in range(N):
        for t in range(total):
            sum_, factor, row = 0.0, 1.0, t
            while row < total and row < t + config.n_step:
                sum_ += factor * float(given.reward[row, column])
                factor *= config.gamma
                row += 1
                if given.terminated[row - 1, column]:
                    factor = 0.0
                if given.terminated[row - 1, column] or given.truncated[row - 1, column]:
                    break
            best = int(choice[row, column].argmax())
            out[t, column] = sum_ + factor * float(aims[row, column, best])
    return out


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_loss_of_single_steps_is_that_of_the_definition(double: bool, n_step: int) -> None:
    config = DQNConfig(double=double, n_step=n_step, loss="squared", gamma=0.9)
    algorithm, online, target = built(config), network(0), network(1)
    given = sequences(config, online, np.random.default_rng(0))
    learned = algorithm.learn(online, target, batch_of(algorithm, given))
    with torch.no_grad():
        rows = torch.from_numpy(given.obs["obs"])
        reset = torch.zeros(rows.shape[:2], dtype=torch.bool)
        mine, theirs = (net.unroll({"obs": rows}, {}, reset)[0] for net in (online, target))
    goal = slow_targets(config, given, mine if double else theirs, theirs)[0]
    taken = mine[0].gather(-1, torch.from_numpy(given.action[0])[:, None]).squeeze(-1).numpy()
    assert float(learned.loss) == pytest.approx(0.5 * np.mean((taken - goal) ** 2), rel=1e-5)
    assert learned.priorities.numpy() == pytest.approx(np.abs(goal - taken), rel=1e-4)


def test_a_sequence_of_one_step_is_a_step() -> None:
    """The short way for single steps and the way for sequences agree."""
    config = DQNConfig(n_step=3, loss="squared", rescale=True)
    algorithm, online, target = built(config), network(0), network(1)
    batch = batch_of(algorithm, sequences(config, online, np.random.default_rng(1)))
    short = algorithm._flat(online, target, batch)
    long = algorithm._unrolled(online, target, batch)
    for mine, theirs in zip(short, long, strict=True):
        assert torch.allclose(mine, theirs[..., :1, :], atol=1e-6)
    assert not long[2][1:].any()


@pytest.mark.parametrize("burn_in", [0, 4])
def test_a_recurrent_loss_is_that_of_the_definition(burn_in: int) -> None:
    config = R2D2Config(length=5, burn_in=burn_in, n_step=2, gamma=0.9, rescale=False)
    online, target = network(0, core="lstm", core_size=8), network(1, core="lstm", core_size=8)
    algorithm = built(config, recurrent=True)
    given = sequences(config, online, np.random.default_rng(2))
    batch = batch_of(algorithm, given)
    learned = algorithm.learn(online, target, batch)
    with torch.no_grad():
        mine, theirs = (
            net.unroll(batch.obs, batch.state, batch.reset)[0] for net in (online, target)
        )
    goal = slow_targets(config, given, mine, theirs)
    taken = mine[:-1].gather(-1, batch.action[..., None]).squeeze(-1).numpy()
    mask = given.mask.copy()
    mask[:burn_in], mask[-1] = False, False
    error = np.where(mask, np.abs(goal - taken), 0.0)
    assert float(learned.loss) == pytest.approx(0.5 * (error**2).sum() / mask.sum(), rel=1e-4)
    means = error.sum(0) / np.maximum(mask.sum(0), 1)
    assert learned.priorities.numpy() == pytest.approx(0.9 * error.max(0) + 0.1 * means, rel=1e-4)


def test_burn_in_is_not_learned_from() -> None:
    """What is seen in burn-in reaches the loss through the state, but no gradient goes back."""
    config = R2D2Config(length=4, burn_in=3, n_step=1)
    online, target = network(0, core="gru", core_size=8), network(1, core="gru", core_size=8)
    algorithm = built(config, recurrent=True)
    batch = batch_of(algorithm, sequences(config, online, np.random.default_rng(3)))
    batch.obs["obs"].requires_grad_(True)
    algorithm.learn(online, target, batch).loss.backward()  # type: ignore[no-untyped-call]
    slopes = batch.obs["obs"].grad
    assert slopes is not None
    assert not slopes[:3].any()
    assert slopes[3:7].any()
    changed = replace(batch, obs={"obs": batch.obs["obs"].detach().clone()})
    changed.obs["obs"][0] += 1.0
    losses = [float(algorithm.learn(online, target, b).loss) for b in (batch, changed)]
    assert losses[0] != losses[1]


def test_importance_weighs_the_loss() -> None:
    config = DQNConfig(importance=1.0, loss="squared", priority_exponent=1.0)
    algorithm, online, target = built(config), network(0), network(1)
    given = sequences(config, online, np.random.default_rng(4))
    probability = np.array([0.4, 0.2, 0.1, 0.1, 0.1, 0.1])
    even = algorithm.learn(online, target, batch_of(algorithm, given))
    odd = algorithm.learn(online, target, algorithm.prepare(given, probability, 0))
    errors = even.priorities.numpy()
    wanted = 0.5 * np.mean(errors**2 * probability.min() / probability)
    assert float(odd.loss) == pytest.approx(wanted, rel=1e-4)


def test_first_priorities_are_the_errors_of_the_actor() -> None:
    config = ApeXConfig(n_step=2, gamma=0.5, eta=1.0, rescale=False)
    out = StepSpec(
        obs={},
        action=ArraySpec((), INT),
        extra={TAKEN: ArraySpec((), FLOAT), BEST: ArraySpec((), FLOAT)},
    ).sequences(2, 2)
    out.mask[:] = True
    out.reward[:] = [[1.0, 1.0], [2.0, 2.0]]
    out.extra[TAKEN][0] = [0.5, 0.5]
    out.extra[BEST][:] = [[9.0, 9.0], [9.0, 9.0], [4.0, 4.0]]
    out.terminated[1, 1] = True
    found = built(config).first_priorities(out)
    assert found.tolist() == [1.0 + 0.5 * 2.0 + 0.25 * 4.0 - 0.5, 1.0 + 0.5 * 2.0 - 0.5]


def test_dueling_values_count_advantages_from_their_mean() -> None:
    policy = network(dueling=True)
    obs = {"obs": torch.randn(5, 3)}
    values, _ = policy.values(obs, {}, torch.zeros(5, dtype=torch.bool))
    assert policy.state_head is not None
    features = policy.torso(policy.encoder(obs))
    assert torch.allclose(values.mean(-1), policy.state_head(features).squeeze(-1), atol=1e-6)


@pytest.mark.parametrize("dueling", [False, True])
def test_values_may_all_be_zero_at_first(dueling: bool) -> None:
    none, usual = (network(dueling=dueling, value_gain=gain) for gain in (0.0, 1.0))
    obs, reset = {"obs": torch.randn(5, 3)}, torch.zeros(5, dtype=torch.bool)
    assert not none.values(obs, {}, reset)[0].any()
    assert usual.values(obs, {}, reset)[0].all()
    with pytest.raises(UserError, match=r"policy\.value_gain"):
        network(value_gain=-1.0)


def test_forbidden_actions_are_neither_best_nor_drawn() -> None:
    values = torch.tensor([[5.0, 1.0, 2.0, 0.0]])
    mask = torch.tensor([[0, 1, 1, 0]])
    legal = legal_values(values, {"action_mask": mask})
    assert legal.argmax(-1).tolist() == [2]
    dist = greedy(legal, 0.5, mask)
    rng = np.random.default_rng(0)
    drawn = {int(dist.sample(rng)) for _ in range(200)}
    assert drawn == {1, 2}
    assert dist.log_probs.exp()[0].tolist() == pytest.approx([0.0, 0.25, 0.75, 0.0], abs=1e-6)


# --- exploration ---------------------------------------------------------------------------------


def test_epsilon_falls_linearly_or_by_a_factor_or_stands_on_a_ladder() -> None:
    streams = np.arange(4)
    linear = EpsilonConfig(start=1.0, end=0.1, steps=100)
    assert linear.at(0, streams, 4).tolist() == [1.0] * 4
    assert linear.at(50, streams, 4) == pytest.approx([0.55] * 4)
    assert linear.at(1000, streams, 4) == pytest.approx([0.1] * 4)
    falling = EpsilonConfig(kind="exponential", start=1.0, end=0.1, factor=0.99)
    assert falling.at(10, streams, 4) == pytest.approx([0.99**10] * 4)
    assert falling.at(10_000, streams, 4) == pytest.approx([0.1] * 4)
    ladder = EpsilonConfig(kind="ladder", start=0.4, end=0.0, power=7.0)
    assert ladder.at(5, streams, 4) == pytest.approx([0.4 ** (1 + 7 * i / 3) for i in range(4)])
    assert ladder.at(5, np.array([0]), 1) == pytest.approx([0.4])
    assert ladder.mean(5, 4) == pytest.approx(float(ladder.at(5, streams, 4).mean()))
    assert falling.mean(10, 4) == pytest.approx(0.99**10)
    floored = EpsilonConfig(kind="ladder", start=0.4, end=0.02)
    assert floored.at(0, streams, 4).min() == 0.02


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_size": 0}, "algo.batch_size: must be at least 1, got 0"),
        ({"steps_per_update": 0.0}, "algo.steps_per_update: must be positive or null"),
        ({"steps_per_update": float("nan")}, "must be positive or null, got nan"),
        ({"steps_per_update": float("inf")}, "must be positive or null, got inf"),
        ({"target_tau": 2.0}, "algo.target_tau: must be within 0 and 1"),
        ({"learning_starts": 500, "capacity_steps": 400}, "replay would never hold so many"),
        ({"overlap": 1}, "overlap=1 must be less than length=1"),
        ({"n_step": 0}, "n_step=0 must be at least 1"),
        ({"priority_exponent": -1.0}, "algo.priority_exponent: must not be negative"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        DQNConfig(**settings)


def test_burn_in_is_not_longer_than_what_is_learned() -> None:
    says = r"algo.burn_in: 9 steps are more than .* \(algo.length, 8\); set burn_in to 8 or less"
    with pytest.raises(UserError, match=says):
        built(R2D2Config(length=8, burn_in=9), recurrent=True)
    built(R2D2Config(length=8, burn_in=8), recurrent=True)


def test_burn_in_needs_a_memory_and_a_memory_needs_sequences() -> None:
    with pytest.raises(UserError, match=r"set policy.core to lstm or gru, or burn_in to 0"):
        built(R2D2Config())
    with pytest.raises(UserError, match="learns nothing to remember from one step"):
        built(DQNConfig(), recurrent=True)


@pytest.mark.parametrize(
    "action",
    [
        LeafSpec("box", (2,), FLOAT),
        LeafSpec("multi_discrete", (2,), INT, sizes=(2, 3)),
    ],
)
def test_only_discrete_actions_have_values_each(action: LeafSpec) -> None:
    with pytest.raises(UserError, match="use --algo ppo, a2c or impala"):
        QNetwork(PolicyConfig(), Signature(obs=SIGNATURE.obs, action=action))


@pytest.mark.parametrize(
    "settings",
    [{"start": 1.5}, {"start": 0.1, "end": 0.2}, {"steps": 0}, {"power": -1.0}],
)
def test_wrong_epsilons_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UserError, match="epsilon"):
        EpsilonConfig(**settings)  # type: ignore[arg-type]


def test_an_algorithm_and_a_formation_must_fit() -> None:
    with pytest.raises(UserError, match="dqn learns from replay; use --formation replay"):
        settings_from_python("CartPole-v1", {"algo": "dqn", "formation": "sync"})
    with pytest.raises(UserError, match="ppo learns from rollouts as they come"):
        settings_from_python("CartPole-v1", {"algo": "ppo", "formation": "replay"})
    assert settings_from_python("CartPole-v1", {"algo": "r2d2"}).formation == "replay"
    with pytest.raises(UserError, match=r"env\.halves: actors of formation replay step all"):
        settings_from_python("CartPole-v1", {"algo": "dqn", "env": {"halves": 2}})
