"""Our vector of BipedalWalkers against gymnasium's, to the bit; its rays against Box2D's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import Box2D
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.box2d import bipedal_walker as gym_walker

import rookery
from rookery.core.seeding import seed_of
from rookery.core.spec import Array
from rookery.envs import pooled, walker_vector
from rookery.envs.conformance import check_vector
from rookery.envs.lidar import MISSED, edge_fractions, normals, polygon_fractions
from rookery.envs.make import EnvConfig, make_env, make_seeded, make_vector
from rookery.envs.native import NativeVector
from rookery.envs.serial import SerialVector
from rookery.envs.walker_vector import WalkerVector

FLAT, HARDCORE = "BipedalWalker-v3", "BipedalWalkerHardcore-v3"


@pytest.fixture(autouse=True)
def fresh_verdict() -> Iterator[None]:
    walker_vector.agrees.cache_clear()
    yield
    walker_vector.agrees.cache_clear()


class Renewed(gym.Wrapper[Any, Any, Any, Any]):
    """A new environment for each episode, which goes on with the generator of the one before."""

    def __init__(self, config: EnvConfig) -> None:
        super().__init__(make_env(config))
        self.config = config

    def reset(self, **given: Any) -> Any:
        generator, self.env = self.env.unwrapped.np_random, make_env(self.config)
        self.env.unwrapped.np_random = generator
        return self.env.reset(**given)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [FLAT, HARDCORE])
def test_it_is_a_plain_loop_over_gymnasiums(env_id: str) -> None:
    config = EnvConfig(id=env_id, backend="native", num_envs=6, max_episode_steps=70)
    envs = make_vector(config, run_seed=5)
    assert isinstance(envs, NativeVector)
    first = seed_of(5, "env", 0)
    check_vector(
        envs,
        [Renewed(config) for _ in range(6)],
        seed_for=lambda index, episode: first + index if episode == 0 else None,
        num_steps=250,
    )


@pytest.mark.slow
def test_a_trained_walker_meets_the_same_obstacles() -> None:
    """Random walkers fall where they start; this one gets over stumps, stairs and pits."""
    agent, count = rookery.load("zoo:bipedal-hardcore"), 6
    ours = WalkerVector(count, hardcore=True, max_episode_steps=2000)
    theirs = [Renewed(EnvConfig(id=HARDCORE)) for _ in range(count)]
    obs, _ = ours.reset(seed=3)
    for row, env in enumerate(theirs):
        np.testing.assert_array_equal(env.reset(seed=3 + row)[0], obs[row])
    state, farthest = None, 0.0
    for _ in range(450):
        actions, state = agent.act(obs, state)
        obs, rewards, terminated, truncated, infos = ours.step(actions)
        for row, env in enumerate(theirs):
            seen, reward, fell, late, _ = env.step(actions[row])
            ended = fell or late
            np.testing.assert_array_equal((infos["final_obs"] if ended else obs)[row], seen)
            assert (rewards[row], terminated[row], truncated[row]) == (reward, fell, late)
            if ended:
                np.testing.assert_array_equal(env.reset()[0], obs[row])
            farthest = max(farthest, env.unwrapped.hull.position.x)  # type: ignore[attr-defined]
    assert farthest > 40  # of 93: past many of them


def test_episodes_go_on_where_their_state_was_taken() -> None:
    rng = np.random.default_rng(0)
    envs = WalkerVector(3, hardcore=True, max_episode_steps=90)
    envs.reset(seed=4)
    for _ in range(100):  # some have begun anew, with what their generators gave then
        envs.step(rng.uniform(-1, 1, (3, 4)).astype(np.float32))
    state = envs.get_state()
    assert all(array.dtype != object for array in state.values())
    others = WalkerVector(3, hardcore=True, max_episode_steps=90)
    others.reset(seed=0)
    others.set_state(state)
    for _ in range(100):
        actions = rng.uniform(-1, 1, (3, 4)).astype(np.float32)
        for one, other in zip(envs.step(actions)[:4], others.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(one, other)
    for name, array in envs.get_state().items():
        np.testing.assert_array_equal(array, others.get_state()[name])


# Rays.


class Nearest(Box2D.b2RayCastCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.fraction = 1.0

    def ReportFixture(  # noqa: N802
        self, fixture: Any, point: Any, normal: Any, fraction: float
    ) -> float:
        self.fraction = fraction
        return fraction


def cast(world: Any, start: Array, end: Array) -> float:
    nearest = Nearest()
    world.RayCast(nearest, start.tolist(), end.tolist())
    return nearest.fraction


def test_edges_are_met_as_in_box2d() -> None:
    rng = np.random.default_rng(1)
    starts, ends = (rng.normal(0, 2, (40, 2)).astype(np.float32) for _ in range(2))
    begin, end = (rng.normal(0, 2, (5, 2)).astype(np.float32) for _ in range(2))
    world = Box2D.b2World()
    for one, other in zip(begin, end, strict=True):
        world.CreateStaticBody(shapes=Box2D.b2EdgeShape(vertices=[one.tolist(), other.tolist()]))
    near = [np.broadcast_to(part, (40, 5, 2)) for part in (begin, end)]
    ours = edge_fractions(starts, (ends - starts)[:, None], *near)[:, 0]
    theirs = [cast(world, *points) for points in zip(starts, ends, strict=True)]
    np.testing.assert_array_equal(ours, np.array(theirs, np.float32))
    assert 5 < np.count_nonzero(ours < MISSED) < 40


def test_polygons_are_met_as_in_box2d() -> None:
    rng = np.random.default_rng(2)
    starts, ends = (rng.normal(0, 3, (60, 2)).astype(np.float32) for _ in range(2))
    world, corners = Box2D.b2World(), []
    for _ in range(4):
        x, y = rng.normal(0, 2, 2)
        width, height = rng.uniform(0.3, 2, 2)
        box = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
        body = world.CreateStaticBody(shapes=Box2D.b2PolygonShape(vertices=box))
        corners.append(body.fixtures[0].shape.vertices)
    boxes = np.array(corners, np.float32)
    sides = normals(np.roll(boxes, -1, axis=1) - boxes)
    near = [np.broadcast_to(part, (60, 4, 4, 2)) for part in (boxes, sides)]
    ours = polygon_fractions(starts, (ends - starts)[:, None], *near)[:, 0]
    theirs = [cast(world, *points) for points in zip(starts, ends, strict=True)]
    np.testing.assert_array_equal(ours, np.array(theirs, np.float32))
    assert 5 < np.count_nonzero(ours < MISSED) < 60


def test_nothing_is_met_where_nothing_is() -> None:
    start, ray = np.zeros((1, 2), np.float32), np.ones((1, 1, 2), np.float32)
    none = np.zeros((1, 2, 4, 2), np.float32)
    assert polygon_fractions(start, ray, none, none).item() == MISSED
    assert edge_fractions(start, ray, none[:, :, 0], none[:, :, 0]).item() == MISSED


# When it is used.


def test_training_uses_it_without_envpool_and_evaluation_never_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pooled, "installed", lambda: False)
    config = EnvConfig(id=HARDCORE, num_envs=2)
    envs = make_vector(config, run_seed=0)
    assert isinstance(envs, NativeVector)
    assert isinstance(envs._env, WalkerVector)
    assert envs.reset()["obs"].shape == (2, 24)
    played, waves = make_seeded(config, 2, 2, lambda row: row)
    assert isinstance(played, SerialVector)
    assert not waves


@pytest.mark.parametrize(
    "chosen",
    [{"kwargs": {"render_mode": None}}, {"frame_stack": 2}, {"on_env_error": "restart"}],
)
def test_auto_steps_gymnasiums_where_it_cannot_do_the_same(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any]
) -> None:
    monkeypatch.setattr(pooled, "installed", lambda: False)
    envs = make_vector(EnvConfig(id=FLAT, num_envs=2, **chosen), run_seed=0)
    assert isinstance(envs, SerialVector)


def test_another_gymnasium_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert walker_vector.agrees()
    walker_vector.agrees.cache_clear()
    step = gym_walker.BipedalWalker.step

    def generous(self: Any, action: Array) -> Any:
        obs, reward, *rest = step(self, action)
        return obs, reward + 1e-3, *rest

    monkeypatch.setattr(gym_walker.BipedalWalker, "step", generous)
    monkeypatch.setattr(pooled, "installed", lambda: False)
    with caplog.at_level(logging.WARNING):
        envs = make_vector(EnvConfig(id=FLAT, num_envs=2), run_seed=0)
    assert isinstance(envs, SerialVector)
    assert "differs here" in caplog.text


def test_fused_multiplications_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Box2D rounded once where we round twice, on slopes: where it begins there are none."""

    def fused(start: Array, ray: Array, begin: Array, end: Array) -> Array:
        found = edge_fractions(start, ray, begin, end)
        single = begin.shape[1] == 1  # of those that are compared with Box2D's one by one
        return np.where(found < 1, np.nextafter(found, np.float32(0)), found) if single else found

    assert walker_vector._rays_agree()
    monkeypatch.setattr(walker_vector, "edge_fractions", fused)
    assert walker_vector._steps_agree()
    assert not walker_vector.agrees()


def test_a_gymnasium_built_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(self: Any, **kwargs: Any) -> Any:
        raise AttributeError("no such part")

    monkeypatch.setattr(gym_walker.BipedalWalker, "reset", reset)
    assert not walker_vector.agrees()
