"""Snake's world: every rule by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rookery.envs.snake import SnakeEnv
from rookery.envs.snake_vector import SnakeVectorEnv
from rookery.envs.snake_world import EMPTY, FOOD, SNAKE, WALL, WATER, draw_cells, draw_water_cluster
from tests.unit.snake_scenes import DOWN, LEFT, RIGHT, UP, Place, cell, head, places, scene

# The start of an episode ------------------------------------------------------------------------


def test_spawn_shape_range_and_heading() -> None:
    env = SnakeEnv()
    xs, ys = set(), set()
    env.reset(seed=3)
    for _ in range(1500):
        env.reset()
        x, y = head(env)
        assert places(env, SNAKE) == {(x + 1, y + 1), (x + 1, y), (x, y)}
        xs.add(x)
        ys.add(y)
    assert xs == ys == set(range(4, 37))
    x, y = head(env)
    env.step(RIGHT)  # a reversal, so it goes on to -x: it faced -x
    assert head(env) == (x - 1, y)


@pytest.mark.slow
def test_ranges_of_stores_restores_and_item_counts() -> None:
    envs = SnakeVectorEnv(4000)
    envs.reset(seed=0)
    world = envs.world
    food = (world.cells == FOOD).sum(axis=1)
    water = (world.cells == WATER).sum(axis=1)
    for drawn, low, high in (
        (world.stores, 10, 199),
        (world.restores, 10, 39),
        (food, 10, 29),
        (water, 10, 29),
    ):
        assert set(np.unique(drawn).tolist()) == set(range(low, high + 1))
    assert (water == world.cluster).all()


def test_border_is_wall_and_the_inside_is_not() -> None:
    env = scene()
    inside = {(x, y) for x in range(1, 39) for y in range(1, 39)}
    assert places(env, WALL) == {(x, y) for x in range(40) for y in range(40)} - inside


@pytest.mark.slow
def test_food_is_uniform_over_empty_cells() -> None:
    envs = SnakeVectorEnv(4000)
    envs.reset(seed=1)
    count = (envs.world.cells == FOOD).sum(axis=0).reshape(40, 40)[1:39, 1:39]
    halves = [count[:, :19].sum(), count[:, 19:].sum(), count[:19].sum(), count[19:].sum()]
    assert np.abs(np.array(halves) / count.sum() - 0.5).max() < 0.01
    assert count.min() > 20  # 54 expected: no corner is left out


# Moving -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "target"), [(LEFT, (19, 20)), (DOWN, (20, 21)), (UP, (20, 19))])
def test_actions_are_absolute_directions(action: int, target: Place) -> None:
    env = scene()
    env.step(action)
    assert head(env) == target
    assert places(env, SNAKE) == {target, (20, 20), (21, 20)}  # length stays 3


def test_action_two_is_plus_x() -> None:
    env = scene(heading=UP, earlier=UP)
    env.step(RIGHT)
    assert head(env) == (21, 20)


@pytest.mark.parametrize(
    ("heading", "straight_on"),
    [(LEFT, (19, 20)), (DOWN, (20, 21)), (RIGHT, (21, 20)), (UP, (20, 19))],
)
def test_reversal_is_ignored(heading: int, straight_on: Place) -> None:
    env = scene(heading=heading, earlier=heading)
    _, reward, terminated, _, _ = env.step((heading + 2) % 4)
    assert (reward, terminated) == (0.0, False)
    assert head(env) == straight_on


@pytest.mark.parametrize(("start", "action"), [((1, 20), LEFT), ((20, 38), DOWN), ((20, 1), UP)])
def test_wall_kills_with_minus_two_and_costs_no_store(start: Place, action: int) -> None:
    env = scene(head=start)
    _, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated) == (-2.0, True, False)
    assert info == {"food": 100, "water": 100}
    assert head(env) == start


def test_a_snake_in_the_way_kills_with_minus_two() -> None:
    # Three cells cannot bite themselves (the tail is never next to the head), so put one there.
    env = scene()
    env.world.cells[0, cell((20, 21))] = SNAKE
    _, reward, terminated, _, _ = env.step(DOWN)
    assert (reward, terminated) == (-2.0, True)


def test_a_tight_circle_never_bites() -> None:
    env = scene()
    for action in [DOWN, RIGHT, UP, LEFT] * 5:
        assert not env.step(action)[2]


# Stores and items -------------------------------------------------------------------------------


def test_an_empty_cell_costs_one_of_each_store() -> None:
    env = scene(stores=(50, 60))
    features, reward, _, _, info = env.step(LEFT)
    assert info == {"food": 49, "water": 59}
    assert reward == 0.0
    np.testing.assert_allclose(features[32:], [49 / 200, 59 / 200, 0.0], rtol=1e-6)


@pytest.mark.parametrize("stores", [(0, 50), (50, 0)])
def test_starvation_or_thirst_is_minus_two(stores: tuple[int, int]) -> None:
    _, reward, terminated, truncated, info = scene(stores=stores).step(LEFT)
    assert (reward, terminated, truncated) == (-2.0, True, False)
    assert -1 in info.values()


def test_a_store_of_zero_is_alive() -> None:
    _, reward, terminated, _, info = scene(stores=(1, 1)).step(LEFT)
    assert (reward, terminated) == (0.0, False)
    assert info == {"food": 0, "water": 0}


def test_both_stores_at_once_are_minus_four() -> None:
    env = scene(stores=(0, 0))
    features, reward, terminated, _, _ = env.step(LEFT)
    assert (reward, terminated) == (-4.0, True)
    assert features in env.observation_space


@pytest.mark.parametrize(
    ("kind", "after"), [("food", {"food": 80, "water": 0}), ("water", {"food": 50, "water": 20})]
)
def test_eating_costs_nothing_and_restores(kind: str, after: dict[str, int]) -> None:
    env = scene(**{kind: [(19, 20)]}, stores=(50, 0), restores=(30, 20))  # type: ignore[arg-type]
    _, reward, terminated, _, info = env.step(LEFT)
    assert (reward, terminated) == (0.0, False)
    assert info == after
    assert head(env) == (19, 20)


@pytest.mark.parametrize("kind", ["food", "water"])
def test_stores_are_capped_at_200(kind: str) -> None:
    env = scene(**{kind: [(19, 20)]}, stores=(190, 190))  # type: ignore[arg-type]
    assert env.step(LEFT)[4] == {"food": 190, "water": 190} | {kind: 200}


def test_food_respawns_at_once_on_an_empty_cell() -> None:
    for _ in range(20):
        env = scene(food=[(19, 20), (5, 5)], water=[(7, 7)])
        env.step(LEFT)
        food = places(env, FOOD)
        assert len(food) == 2
        assert (5, 5) in food
        assert (19, 20) not in food
        assert places(env, WATER) == {(7, 7)}
        assert len(places(env, SNAKE)) == 3


def test_water_does_not_respawn_while_some_is_left() -> None:
    env = scene(water=[(19, 20), (5, 5)])
    env.step(LEFT)
    assert places(env, WATER) == {(5, 5)}


def test_a_used_up_cluster_is_followed_by_another_of_the_same_size() -> None:
    line = [(x, 20) for x in range(19, 7, -1)]
    env = scene(water=line, food=[(30, 30)])
    for eaten in range(1, 12):
        env.step(LEFT)
        assert len(places(env, WATER)) == 12 - eaten
    env.step(LEFT)
    assert len(places(env, WATER)) == 12
    assert int(env.world.water[0]) == 12
    assert places(env, FOOD) == {(30, 30)}
    assert len(places(env, SNAKE)) == 3


def test_weighted_draw_without_replacement() -> None:
    rng = np.random.default_rng(0)
    candidates, cost = np.array([10, 11, 12]), np.array([1.0, 2.0, 4.0])  # weights 4 : 2 : 1
    draws = np.array([draw_cells(candidates, cost, 1, rng)[0] for _ in range(20000)])
    np.testing.assert_allclose(np.bincount(draws - 10) / 20000, np.array([4, 2, 1]) / 7, atol=0.012)
    pairs = np.array([draw_cells(candidates, cost, 2, rng).sum() for _ in range(20000)])
    both = 4 / 7 * 2 / 3 + 2 / 7 * 4 / 5  # first 10 then 11, or 11 then 10
    assert abs((pairs == 21).mean() - both) < 0.012


@pytest.mark.parametrize("density", [9e-3, 1.5e-2])
def test_water_clusters_follow_the_stated_weights(density: float) -> None:
    """One item besides the centre, so its cell must be drawn by the plain weights."""
    cells = scene().world.cells[0]
    centre = cell((20, 25))
    rng = np.random.default_rng(0)
    squared = [(i % 40 - 20) ** 2 + (i // 40 - 25) ** 2 for i in np.flatnonzero(cells == EMPTY)]
    limit = density * max(squared)
    near = sum(1 / d2 for d2 in squared if 0 < d2 <= limit)
    far = sum(1 / max(squared) for d2 in squared if d2 > limit)
    draws, inside = 1500, 0
    for _ in range(draws):
        drawn = draw_water_cluster(cells, 2, density, _centred(centre, rng))
        assert centre in drawn  # the centre itself always
        (other,) = set(drawn.tolist()) - {centre}
        inside += (other % 40 - 20) ** 2 + (other // 40 - 25) ** 2 <= limit
    assert abs(inside / draws - near / (near + far)) < 0.04


def _centred(centre: int, rng: np.random.Generator) -> np.random.Generator:
    """`rng`, but its next single uniform falls on `centre`."""
    x, y = centre % 40, centre // 40

    class Centred:
        def random(self) -> float:
            return ((y - 1) * 38 + (x - 1) + 0.5) / 38**2

        standard_exponential = rng.standard_exponential

    return Centred()  # type: ignore[return-value]


def test_first_clusters_use_one_density_and_later_ones_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def spy(cells: Any, count: int, density: float, generator: Any) -> Any:
        seen.append(density)
        return draw_water_cluster(cells, count, density, generator)

    monkeypatch.setattr("rookery.envs.snake_world.draw_water_cluster", spy)
    env = scene(water=[(19, 20)])
    env.step(LEFT)
    assert seen == [9e-3, 1.5e-2]
