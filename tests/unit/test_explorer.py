"""The actions of an actor that learns from replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rookery
from rookery.core.sequence import Steps
from rookery.core.spec import Array, zeros
from rookery.core.tensors import Tensors
from rookery.formations.replay import settings_of, step_spec
from rookery.params.flat import FlatParams
from rookery.programs.place import Place, Ports
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_flags
from rookery.roles.build import build_explorer
from rookery.roles.explorer import Explorer
from rookery.transport.step_rings import Slot, slot_specs

NUM_ACTIONS = 5


class Counting(gym.Env[Any, Any]):
    """Counts what is done in it; of the five actions three are legal where masks are seen."""

    counts = np.zeros(NUM_ACTIONS, int)

    def __init__(self, masked: bool) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(NUM_ACTIONS)
        self.legal = np.array([0, 1, 0, 1, 1] if masked else [1] * NUM_ACTIONS, np.int8)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**given)
        return self._seen(), {"action_mask": self.legal}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.counts[int(action)] += 1
        return self._seen(), 0.0, False, False, {"action_mask": self.legal}

    def _seen(self) -> Any:
        return np.array([0.5, -0.3], np.float32)


def counted(tmp_path: Path, *, masked: bool, epsilon: float, value_gain: float) -> list[int]:
    """How often each action is taken in 400 steps, before anything is learned."""
    Counting.counts = np.zeros(NUM_ACTIONS, int)
    rookery.train(
        Counting,
        algo="dqn",
        run=tmp_path / "run",
        steps=400,
        env={"num_envs": 2, "kwargs": {"masked": masked}, "action_mask_key": "action_mask"},
        policy={"hidden": [8], "value_gain": value_gain},
        dqn={"learning_starts": 400, "epsilon": {"start": epsilon, "end": epsilon}},
        eval={"episodes": 0, "every_steps": None},
    )
    return list(Counting.counts.tolist())


@pytest.mark.parametrize(("epsilon", "value_gain"), [(0.0, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("masked", [False, True])
def test_of_actions_that_are_alike_any_is_taken(
    tmp_path: Path, masked: bool, epsilon: float, value_gain: float
) -> None:
    """Values of nothing are all 0; and whatever they are, chance does not look at them."""
    counts = counted(tmp_path, masked=masked, epsilon=epsilon, value_gain=value_gain)
    legal = [1, 3, 4] if masked else range(NUM_ACTIONS)
    for action, count in enumerate(counts):
        expected = 400 / len(legal) if action in legal else 0
        assert count == pytest.approx(expected, abs=45 if expected else 0)


def test_the_best_is_taken_where_values_differ(tmp_path: Path) -> None:
    counts = counted(tmp_path, masked=False, epsilon=0.0, value_gain=1.0)
    assert sorted(counts)[:-1] == [0] * (NUM_ACTIONS - 1)


# --- one step of an actor ------------------------------------------------------------------------


class Paying(gym.Env[Any, Any]):
    """Pays 5 for each of the three steps of an episode, and shows small pictures."""

    observation_space = gym.spaces.Box(0, 255, (2, 8, 8), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**given)
        self.left = 3
        return np.full((2, 8, 8), 200, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.full((2, 8, 8), 100, np.uint8), 5.0, self.left == 0, False, {}


class Shelf:
    """A sink that keeps all that it is given."""

    def __init__(self, plan: Plan) -> None:
        self.slot = slot_specs(step_spec(plan), plan.envs_each, 2)
        self.steps: list[Steps] = []
        self.episodes: list[Array] = []
        self.anew: list[Array | None] = []

    def can_put(self) -> bool:
        return True

    def reserve(self) -> Steps:
        return Slot(zeros(self.slot), np.arange(4)).steps

    def put(
        self, steps: Steps, episodes: Array, *, ended: bool, valued: bool, anew: Array | None
    ) -> None:
        assert not valued
        steps.final_obs, steps.final_extra = steps.final_obs if ended else None, None
        self.steps.append(steps)
        self.episodes.extend(episodes)
        self.anew.append(anew)

    def total_steps(self) -> int:
        return sum(len(steps.stream) for steps in self.steps)

    def wait(self, timeout_secs: float) -> None:
        raise AssertionError("there is always room")


class Published:
    """Weights that change when ``version`` does; counts how often they were taken."""

    def __init__(self, params: Tensors) -> None:
        self.params, self.version, self.taken = params, 0, 0

    def get(self, newer_than: int, into: Tensors) -> int | None:
        if self.version <= newer_than:
            return None
        self.taken += 1
        for name, value in self.params.items():
            into[name].copy_(value)
        return self.version


PAID = {"algo": "dqn", "envs": "4", "env.backend": "serial", "dqn.reward_max": "1"}


def plan() -> Plan:
    return Plan.of(settings_from_flags(f"{__name__}:Paying", PAID))


def paid() -> tuple[Explorer, Shelf, Published]:
    made = plan()
    shelf, published = Shelf(made), Published(FlatParams(made.policy()).tensors())
    ports = Ports({"steps": shelf, "params": published, "actor_state": None})
    _, algo = settings_of(made.config)
    return build_explorer(Place(plan=made, ports=ports), algo), shelf, published


def test_what_is_learned_is_clipped_and_what_is_told_is_not() -> None:
    explorer, shelf, _ = paid()
    while len(shelf.episodes) < 4:
        assert explorer.ready()
        explorer.step()
    assert {float(reward) for steps in shelf.steps for reward in steps.reward[steps.valid]} == {1.0}
    assert [row.tolist() for row in shelf.episodes] == [[15.0, 3.0]] * 4


def test_one_call_of_the_network_acts_for_all_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    explorer, shelf, _ = paid()
    batches: list[tuple[int, ...]] = []
    values = explorer.policy.values

    def counted_values(obs: Tensors, *args: Any) -> Any:
        batches.append(tuple(obs["obs"].shape))
        return values(obs, *args)

    monkeypatch.setattr(explorer.policy, "values", counted_values)
    while len(shelf.steps) < 6:
        assert explorer.ready()
        explorer.step()
    assert batches == [(4, 2, 8, 8)] * len(shelf.steps)


def test_weights_are_taken_when_they_changed_and_not_else() -> None:
    explorer, shelf, published = paid()
    for version in (0, 1):
        published.version = version
        while len(shelf.steps) < 5 * (version + 1):
            assert explorer.ready()
            explorer.step()
        assert published.taken == version + 1


def test_pictures_go_to_replay_as_bytes() -> None:
    explorer, shelf, _ = paid()
    assert explorer.ready()
    explorer.step()
    assert shelf.steps[0].obs["obs"].dtype == np.uint8
    (port,) = [edge.port for edge in plan().program().edges if edge.port.name == "steps"]
    pictures = [spec for spec in port.layout().values() if spec.shape[-3:] == (2, 8, 8)]
    assert pictures
    assert {spec.dtype for spec in pictures} == {np.dtype(np.uint8)}


def test_only_the_first_step_of_an_actor_is_of_other_episodes_than_the_one_before() -> None:
    explorer, shelf, _ = paid()
    while len(shelf.steps) < 5:
        assert explorer.ready()
        explorer.step()
    first, *later = shelf.anew
    assert first is not None
    assert first.all()
    assert later == [None] * 4
