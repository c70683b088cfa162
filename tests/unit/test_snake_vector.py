"""Many snakes: one against many, and both against the slow reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.utils.seeding import np_random
from numpy.typing import NDArray

from rookery.envs.snake import SnakeEnv
from rookery.envs.snake_vector import SnakeVectorEnv
from tests.reference.snake_reference import ReferenceSnake
from tests.unit.snake_scenes import LEFT, RAY_DOWN, RAY_LEFT, RAY_RIGHT, RAY_UP, scene


def forager(features: NDArray[np.float32], generator: np.random.Generator) -> NDArray[np.int64]:
    """Actions of a snake that avoids walls and goes for what it lacks more: it lives long."""
    straight = np.array([RAY_LEFT, RAY_DOWN, RAY_RIGHT, RAY_UP])
    rows = np.arange(len(features))[:, None]
    thirsty = (features[:, 33] < features[:, 32]).astype(np.int64)[:, None]
    distance = features[rows, 8 * thirsty + straight]
    score = generator.random(distance.shape) + np.where(distance > 0, 100 - distance, 0)
    bad = (features[:, 16 + straight] < 0.2) | (features[:, 24 + straight] > 0)
    chosen: NDArray[np.int64] = np.where(bad, -1.0, score).argmax(axis=1)
    return chosen


def mixed_actions(features: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int64]:
    """Foragers, but one snake in four acts at random, so that all kinds of end occur."""
    actions = forager(features, rng)
    actions[::4] = rng.integers(0, 4, size=len(actions[::4]))
    return actions


# One, many and the reference --------------------------------------------------------------------


@pytest.mark.slow
def test_vector_equals_single_environments() -> None:
    count, calls = 8, 1300
    envs = SnakeVectorEnv(count, max_steps=300)
    singles = [SnakeEnv(max_steps=300) for _ in range(count)]
    features, infos = envs.reset(seed=100)
    for i, env in enumerate(singles):
        np.testing.assert_array_equal(env.reset(seed=100 + i)[0], features[i])
    rng = np.random.default_rng(0)
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(calls):
        actions = mixed_actions(features, rng)
        features, rewards, terminated, truncated, infos = envs.step(actions)
        done = terminated | truncated
        assert ("final_obs" in infos) == bool(done.any())
        for i, env in enumerate(singles):
            own, reward, own_terminated, own_truncated, info = env.step(actions[i])
            assert (reward, own_terminated, own_truncated) == (
                rewards[i],
                terminated[i],
                truncated[i],
            )
            if done[i]:
                assert infos["_final_obs"][i]
                np.testing.assert_array_equal(infos["final_obs"][i], own)
                own, info = env.reset()
            np.testing.assert_array_equal(own, features[i])
            assert info == {"food": infos["food"][i], "water": infos["water"][i]}
        ends["terminated"] += int(terminated.sum())
        ends["truncated"] += int(truncated.sum())
    assert ends["terminated"] > 50
    assert ends["truncated"] > 3


@pytest.mark.slow
def test_vector_equals_the_slow_reference() -> None:
    count, calls = 8, 1250
    envs = SnakeVectorEnv(count)
    features, _ = envs.reset(seed=list(range(40, 40 + count)))
    slow = [ReferenceSnake(np_random(40 + i)[0]) for i in range(count)]
    for i, snake in enumerate(slow):
        np.testing.assert_allclose(features[i], snake.reset(), rtol=1e-6)
    rng = np.random.default_rng(5)
    episodes, rewards_seen = count, set()
    for _ in range(calls):
        actions = mixed_actions(features, rng)
        features, rewards, terminated, _, infos = envs.step(actions)
        for i, snake in enumerate(slow):
            own, reward, dead = snake.step(int(actions[i]))
            assert (reward, dead) == (rewards[i], terminated[i])
            if dead:
                np.testing.assert_allclose(infos["final_obs"][i], own, rtol=1e-6)
                own = snake.reset()
            np.testing.assert_allclose(features[i], own, rtol=1e-6)
        episodes += int(terminated.sum())
        rewards_seen |= set(rewards.tolist())
    assert episodes > 40
    assert rewards_seen >= {0.0, -2.0}
    # Clusters beyond the first of each episode: water was used up and came back.
    assert sum(snake.clusters for snake in slow) > episodes


def test_reset_without_seed_continues_the_generators() -> None:
    envs = SnakeVectorEnv(2)
    first, _ = envs.reset(seed=[7, 8])
    second, _ = envs.reset()
    env = SnakeEnv()
    np.testing.assert_array_equal(env.reset(seed=8)[0], first[1])
    np.testing.assert_array_equal(env.reset()[0], second[1])
    third, _ = envs.reset(seed=[7, None])
    np.testing.assert_array_equal(third[0], first[0])
    np.testing.assert_array_equal(third[1], env.reset()[0])


def test_returned_arrays_are_not_overwritten() -> None:
    envs = SnakeVectorEnv(16, max_steps=2)
    envs.reset(seed=0)
    kept = [envs.step(np.zeros(16, dtype=np.int64)) for _ in range(2)]
    flat = [array for *arrays, infos in kept for array in (*arrays, *infos.values())]
    copies = [array.copy() for array in flat]
    for _ in range(4):
        envs.step(np.ones(16, dtype=np.int64))
    for array, copy in zip(flat, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_one_snake_in_a_vector_works_like_many() -> None:
    envs = SnakeVectorEnv(1)
    features, infos = envs.reset(seed=0)
    assert features.shape == (1, 35)
    assert set(infos) == {"food", "_food", "water", "_water"}
    features, rewards, terminated, truncated, _ = envs.step(np.array([1], dtype=np.uint8))
    assert rewards.shape == terminated.shape == truncated.shape == (1,)


# Time -------------------------------------------------------------------------------------------


def test_vector_death_on_the_last_step_is_a_death_not_a_truncation() -> None:
    envs = SnakeVectorEnv(2, max_steps=1)
    envs.set_state(_side_by_side(scene(head=(1, 20)), scene(head=(20, 20))))
    _, rewards, terminated, truncated, infos = envs.step(np.array([LEFT, LEFT]))
    assert rewards.tolist() == [-2.0, 0.0]
    assert terminated.tolist() == [True, False]
    assert truncated.tolist() == [False, True]
    assert infos["_final_obs"].tolist() == [True, True]


def _side_by_side(*envs: SnakeEnv) -> dict[str, Any]:
    """The state of a vector environment made of these single ones."""
    states = [env.world.get_state() for env in envs]
    return {name: np.concatenate([state[name] for state in states]) for name in states[0]}


# State ------------------------------------------------------------------------------------------


def play(envs: SnakeVectorEnv, calls: int) -> list[Any]:
    rng = np.random.default_rng(9)
    features, seen = envs.observe(), []
    for _ in range(calls):
        features, rewards, terminated, truncated, infos = envs.step(mixed_actions(features, rng))
        seen += [features, rewards, terminated, truncated, infos["food"], infos["water"]]
    return seen


def test_state_round_trip_continues_bit_exactly() -> None:
    envs = SnakeVectorEnv(6, max_steps=250)
    envs.reset(seed=1)
    play(envs, 200)
    state = envs.get_state()
    assert all(array.dtype.kind in "iu" for array in state.values())
    frozen = {name: array.copy() for name, array in state.items()}
    uninterrupted = play(envs, 300)

    other = SnakeVectorEnv(6, max_steps=250)
    other.set_state(state)
    for expected, got in zip(uninterrupted, play(other, 300), strict=True):
        np.testing.assert_array_equal(expected, got)
    for name, array in frozen.items():  # neither environment kept hold of the state
        np.testing.assert_array_equal(array, state[name])


def test_state_of_another_size_is_refused() -> None:
    envs = SnakeVectorEnv(2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="num_envs"):
        SnakeVectorEnv(3).set_state(envs.get_state())
    with pytest.raises(ValueError, match="lacks 'head'"):
        envs.set_state({name: a for name, a in envs.get_state().items() if name != "head"})
