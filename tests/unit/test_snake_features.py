"""What a snake sees: distances along eight rays."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from rookery.envs.snake import SnakeEnv
from tests.unit.snake_scenes import (
    DOWN_RIGHT,
    LEFT,
    RAY_LEFT,
    RAY_RIGHT,
    RAY_UP,
    RIGHT,
    Place,
    scene,
)

FACTOR = 10 / math.hypot(40, 40)
NONE = -13 * FACTOR


def look(env: SnakeEnv) -> NDArray[np.float32]:
    """Features as [food, water, wall, body] x [8 rays]."""
    features: NDArray[np.float32] = env.world.observe()[0][:32].reshape(4, 8)
    return features


def test_factor_and_the_value_for_none() -> None:
    assert pytest.approx(0.1768, abs=5e-5) == FACTOR
    assert pytest.approx(-2.298, abs=5e-4) == NONE
    food, water, wall, _ = look(scene())
    np.testing.assert_allclose(food, NONE, rtol=1e-6)
    np.testing.assert_allclose(water, NONE, rtol=1e-6)
    assert (wall > 0).all()


def test_ray_order() -> None:
    around = [(-1, -1), (0, -1), (1, -1), (-1, 0), (1, 0), (-1, 1), (0, 1), (1, 1)]
    for ray, (dx, dy) in enumerate(around):
        steps = 3 + ray
        env = scene(food=[(20 + steps * dx, 20 + steps * dy)])
        expected = np.full(8, NONE)
        expected[ray] = steps * math.hypot(dx, dy) * FACTOR
        np.testing.assert_allclose(look(env)[0], expected, rtol=1e-6)


def test_groups_are_food_water_wall_body() -> None:
    env = scene(head=(10, 15), food=[(10, 12)], water=[(6, 15)])
    food, water, wall, body = look(env) / FACTOR
    assert food[RAY_UP] == pytest.approx(3)
    assert water[RAY_LEFT] == pytest.approx(4)
    expected = [10 * math.sqrt(2), 15, 15 * math.sqrt(2), 10, 29, 10 * math.sqrt(2), 24]
    np.testing.assert_allclose(wall, [*expected, 24 * math.sqrt(2)], rtol=1e-6)
    assert body[RAY_RIGHT] == pytest.approx(1)


def test_the_nearest_of_several_counts_and_nothing_occludes() -> None:
    # Water, food and the snake's own body stand between the head and the food.
    env = scene(food=[(25, 20), (30, 20)], water=[(23, 20), (24, 20)])
    food, water, wall, body = look(env)[:, RAY_RIGHT] / FACTOR
    np.testing.assert_allclose([food, water, wall, body], [5, 3, 19, 1], rtol=1e-6)


def test_items_beside_the_rays_are_not_seen() -> None:
    env = scene(food=[(22, 21), (18, 23), (1, 2)])
    np.testing.assert_allclose(look(env)[0], NONE, rtol=1e-6)


@pytest.mark.parametrize("corner", [(1, 1), (38, 1), (1, 38), (38, 38)])
def test_rays_reach_from_corner_to_corner(corner: Place) -> None:
    opposite = (39 - corner[0], 39 - corner[1])
    heading = LEFT if corner[0] == 1 else RIGHT
    food = look(scene(head=corner, food=[opposite], heading=heading, earlier=heading))[0]
    assert food.max() == pytest.approx(37 * math.sqrt(2) * FACTOR)
    assert (food > 0).sum() == 1


def test_body_rays_do_not_see_the_head() -> None:
    body = look(scene())[3]  # stretched out along +x
    expected = np.full(8, NONE)
    expected[RAY_RIGHT] = FACTOR
    np.testing.assert_allclose(body, expected, rtol=1e-6)


def test_body_rays_see_neck_and_bent_tail() -> None:
    env = SnakeEnv()
    env.reset(seed=0)  # spawns bent: neck at +x, tail at (+x, +y)
    expected = np.full(8, NONE)
    expected[RAY_RIGHT] = FACTOR
    expected[DOWN_RIGHT] = math.sqrt(2) * FACTOR
    np.testing.assert_allclose(look(env)[3], expected, rtol=1e-6)
