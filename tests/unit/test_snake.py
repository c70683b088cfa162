"""Snake: every rule by name, one against many, and both against the slow reference."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rookery.envs.registration import register
from rookery.envs.snake import SnakeEnv
from rookery.envs.snake_vector import SnakeVectorEnv
from rookery.envs.snake_world import (
    EMPTY,
    FOOD,
    SNAKE,
    WALL,
    WATER,
    draw_cells,
    draw_water_cluster,
)
from tests.reference.snake_reference import ReferenceSnake

LEFT, DOWN, RIGHT, UP = range(4)
FACTOR = 10 / math.hypot(40, 40)
NONE = -13 * FACTOR
UP_LEFT, RAY_UP, UP_RIGHT, RAY_LEFT, RAY_RIGHT, DOWN_LEFT, RAY_DOWN, DOWN_RIGHT = range(8)

Place = tuple[int, int]


def cell(place: Place) -> int:
    return 40 * place[1] + place[0]


def scene(
    head: Place = (20, 20),
    food: Sequence[Place] = (),
    water: Sequence[Place] = (),
    stores: tuple[int, int] = (100, 100),
    restores: tuple[int, int] = (30, 20),
    heading: int = LEFT,
    earlier: int = LEFT,
    **options: Any,
) -> SnakeEnv:
    """A snake in a map of our own making."""
    env = SnakeEnv(**options)
    env.reset(seed=0)
    state = env.world.get_state()
    back = {LEFT: (1, 0), DOWN: (0, -1), RIGHT: (-1, 0), UP: (0, 1)}
    neck = (head[0] + back[heading][0], head[1] + back[heading][1])
    tail = (neck[0] + back[earlier][0], neck[1] + back[earlier][1])
    cells = state["cells"][0]
    cells[cells != WALL] = EMPTY
    cells[[cell(place) for place in (tail, neck, head)]] = SNAKE
    cells[[cell(place) for place in food]] = FOOD
    cells[[cell(place) for place in water]] = WATER
    state["head"][0], state["heading"][0], state["earlier"][0] = cell(head), heading, earlier
    state["stores"][0], state["restores"][0] = stores, restores
    state["cluster"][0] = state["water"][0] = len(water)
    env.world.set_state(state)
    return env


def places(env: SnakeEnv, content: int) -> set[Place]:
    return {(int(i) % 40, int(i) // 40) for i in np.flatnonzero(env.world.cells[0] == content)}


def head(env: SnakeEnv) -> Place:
    return int(env.world.head[0]) % 40, int(env.world.head[0]) // 40


def look(env: SnakeEnv) -> NDArray[np.float32]:
    """Features as [food, water, wall, body] x [8 rays]."""
    features: NDArray[np.float32] = env.world.observe()[0][:32].reshape(4, 8)
    return features


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


# Gymnasium's contract ---------------------------------------------------------------------------


def test_check_env_passes_without_warnings() -> None:
    register()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("rookery/Snake-v0").unwrapped)


def test_register_is_idempotent_and_makes_both_environments() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register()
        register()
    spec = gym.spec("rookery/Snake-v0")
    assert spec.max_episode_steps is None
    envs = gym.make_vec("rookery/Snake-v0", num_envs=3, max_steps=7)
    assert isinstance(envs, SnakeVectorEnv)
    assert envs.max_steps == 7


def test_registration_imports_no_torch() -> None:
    code = "import sys, rookery.envs.registration as r; r.register(); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_spaces_and_dtypes() -> None:
    env = SnakeEnv()
    features, _ = env.reset(seed=0)
    assert env.observation_space.shape == (35,)
    assert features.dtype == np.float32
    assert env.action_space == gym.spaces.Discrete(4)
    envs = SnakeVectorEnv(5)
    assert envs.reset(seed=0)[0] in envs.observation_space
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_a_step_before_reset_is_refused() -> None:
    with pytest.raises(gym.error.ResetNeeded):
        SnakeEnv().step(0)


@pytest.mark.parametrize("action", [-1, 4])
def test_unknown_actions_are_refused(action: int) -> None:
    with pytest.raises(ValueError, match=r"0\.\.3"):
        scene().step(action)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ValueError, match="max_steps"):
        SnakeEnv(max_steps=0)
    with pytest.raises(ValueError, match="render_mode"):
        SnakeEnv(render_mode="human")
    with pytest.raises(ValueError, match="num_envs"):
        SnakeVectorEnv(0)
    with pytest.raises(ValueError, match="2 seeds for 3"):
        SnakeVectorEnv(3).reset(seed=[1, 2])
    with pytest.raises(ValueError, match="shape"):
        SnakeVectorEnv(3).step(np.zeros(2, dtype=np.int64))


def test_render_rgb_array() -> None:
    picture = scene(head=(5, 7), food=[(9, 2)], render_mode="rgb_array").render()
    assert isinstance(picture, np.ndarray)
    assert picture.shape == (400, 400, 3)
    assert picture.dtype == np.uint8
    colour_at = {
        place: tuple(picture[10 * place[1] + 5, 10 * place[0] + 5])
        for place in [(0, 0), (1, 1), (9, 2), (5, 7), (6, 7)]
    }
    assert len(set(colour_at.values())) == 5


def test_render_ansi() -> None:
    text = scene(head=(5, 7), food=[(9, 2)], water=[(3, 3)], render_mode="ansi").render()
    assert isinstance(text, str)
    lines = text.split("\n")
    assert [len(line) for line in lines] == [40] * 40
    assert lines[0] == "#" * 40
    assert lines[7][5:8] == "@oo"
    assert lines[2][9] == "f"
    assert lines[3][3] == "~"


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


# Time -------------------------------------------------------------------------------------------


def test_no_step_limit_by_default_and_truncation_by_max_steps() -> None:
    circle = [DOWN, RIGHT, UP, LEFT]
    free, limited = scene(stores=(199, 199)), scene(stores=(199, 199), max_steps=6)
    for i in range(1, 150):
        assert free.step(circle[i % 4])[2:4] == (False, False)
    ends = [limited.step(circle[i % 4])[2:4] for i in range(6)]
    assert ends == [(False, False)] * 5 + [(False, True)]


def test_a_death_on_the_last_step_is_a_death_not_a_truncation() -> None:
    _, reward, terminated, truncated, _ = scene(head=(1, 20), max_steps=1).step(LEFT)
    assert (reward, terminated, truncated) == (-2.0, True, False)


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


# Features ---------------------------------------------------------------------------------------


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


# One, many and the reference --------------------------------------------------------------------


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
