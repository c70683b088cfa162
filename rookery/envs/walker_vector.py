"""Many of gymnasium's BipedalWalkers, each step the same to the bit in less than half the time.

An episode is that of a new environment of gymnasium's with the same generator and actions. The
physics is Box2D's and a reset gymnasium's own. What gymnasium does in Python around a step of
the physics is done for all walkers together: most of all the ten rays of the lidar, which cost it
as much as the physics. :func:`agrees` plays a walker beside gymnasium's own and compares, so that
an unknown version of either is noticed before anything is learned from it.

Shapes: B walkers, R = 10 rays.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import Box2D
import numpy as np
from gymnasium.envs.box2d import bipedal_walker as gym_walker
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rookery.core.seeding import GENERATOR_WORDS, decode_generator, encode_generator
from rookery.envs.lidar import Floats, edge_fractions, normals, polygon_fractions

Walker = Any
"""Gymnasium's BipedalWalker and what Box2D adds to it, which has no types."""
Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]

_LEVELS = (SPEED_HIP, SPEED_KNEE) = (gym_walker.SPEED_HIP, gym_walker.SPEED_KNEE)
_SPEEDS = np.array([*_LEVELS, *_LEVELS], np.float32)
_ANGLES = [1.5 * ray / 10.0 for ray in range(10)]
_REACH = np.array(
    [
        (math.sin(angle) * gym_walker.LIDAR_RANGE, -(math.cos(angle) * gym_walker.LIDAR_RANGE))
        for angle in _ANGLES
    ]
)
"""From a hull to the ends of its rays, [R, 2]."""
_CELLS = gym_walker.TERRAIN_LENGTH
_VIEW = math.ceil(_REACH[:, 0].max() / gym_walker.TERRAIN_STEP) + 3
"""Edges that may be met by a ray, from the one before the hull on."""
_END = (_CELLS - gym_walker.TERRAIN_GRASS) * gym_walker.TERRAIN_STEP
_EFFORT = np.float32(0.00035 * gym_walker.MOTORS_TORQUE)


class _Touch(Box2D.b2ContactListener):  # type: ignore[misc]
    """What gymnasium's ContactDetector notes of a walker, asking Box2D for each body once."""

    def __init__(self, walker: Walker) -> None:
        super().__init__()
        self.walker = walker
        self.hull, self.feet = walker.hull, (walker.legs[1], walker.legs[3])

    def BeginContact(self, contact: Any) -> None:  # noqa: N802
        """A hull on the ground is a fall."""
        bodies = (contact.fixtureA.body, contact.fixtureB.body)
        if self.hull in bodies:
            self.walker.game_over = True
        for foot in self.feet:
            if foot in bodies:
                foot.ground_contact = True

    def EndContact(self, contact: Any) -> None:  # noqa: N802
        """As gymnasium has it, a foot that leaves one edge is in the air, though on the next."""
        bodies = (contact.fixtureA.body, contact.fixtureB.body)
        for foot in self.feet:
            if foot in bodies:
                foot.ground_contact = False


class _Ground:
    """What rays may meet: the points of the ground [B, cells, 2], polygons by the hull's cell."""

    def __init__(self, num_envs: int) -> None:
        self.points = np.zeros((num_envs, _CELLS + _VIEW + 1, 2), np.float32)
        # Polygon 0 of each walker has no sides: what stands where there is none.
        self.corners = np.zeros((num_envs, 1, 4, 2), np.float32)
        self.normals = np.zeros((num_envs, 1, 4, 2), np.float32)
        self.near = np.zeros((num_envs, _CELLS, 1), np.intp)
        self._rows = np.arange(num_envs)[:, None]

    def learn(self, row: int, walker: Walker) -> None:
        """Take the ground of a walker's new episode."""
        points = self.points[row]
        points[:_CELLS, 0], points[:_CELLS, 1] = walker.terrain_x, walker.terrain_y
        points[_CELLS:] = points[_CELLS - 1]
        polygons = [body.fixtures[0].shape.vertices for body in walker.terrain[_CELLS - 1 :]]
        self.near[row] = 0
        if not polygons:
            return
        corners = np.array(polygons, np.float32)
        self._make_room(polygons=1 + len(corners))
        self.corners[row, 1 : 1 + len(corners)] = corners
        sides = np.roll(corners, -1, axis=1) - corners
        self.normals[row, 1 : 1 + len(corners)] = normals(sides)
        left = np.arange(_CELLS)[:, None] * gym_walker.TERRAIN_STEP
        reach = (_VIEW - 1) * gym_walker.TERRAIN_STEP
        first, last = corners[..., 0].min(1), corners[..., 0].max(1)
        in_view = (last >= left - gym_walker.TERRAIN_STEP) & (first <= left + reach)
        self._make_room(views=int(in_view.sum(1).max()))
        for cell, seen in enumerate(in_view):
            ids = np.flatnonzero(seen) + 1
            self.near[row, cell, : len(ids)] = ids

    def _make_room(self, *, polygons: int = 0, views: int = 0) -> None:
        for name, count, axis in (
            ("corners", polygons, 1),
            ("normals", polygons, 1),
            ("near", views, 2),
        ):
            old = getattr(self, name)
            if count > old.shape[axis]:
                widths = [(0, 0)] * old.ndim
                widths[axis] = (0, count - old.shape[axis])
                setattr(self, name, np.pad(old, widths))

    def fractions(self, position: Doubles) -> Floats:
        """How far each ray of hulls at ``position`` [B, 2] goes, ``[B, R]``."""
        start = position.astype(np.float32)
        ray = (position[:, None] + _REACH).astype(np.float32) - start[:, None]
        cell = np.clip(np.floor(position[:, 0] / gym_walker.TERRAIN_STEP), 0, _CELLS - 1)
        cell = cell.astype(np.intp)
        seen = np.maximum(cell - 1, 0)[:, None] + np.arange(_VIEW)
        found = edge_fractions(
            start, ray, self.points[self._rows, seen], self.points[self._rows, seen + 1]
        )
        if self.corners.shape[1] == 1:
            return found
        near = self.near[self._rows[:, 0], cell]
        corners, normal = self.corners[self._rows, near], self.normals[self._rows, near]
        return np.minimum(found, polygon_fractions(start, ray, corners, normal))


class WalkerVector(VectorEnv[Floats, Floats, Any]):
    """``num_envs`` independent walkers.

        envs = WalkerVector(num_envs=64, hardcore=True, max_episode_steps=2000)
        obs, infos = envs.reset(seed=0)                # walker i is seeded with 0 + i
        obs, rewards, terminated, truncated, infos = envs.step(actions)

    An ended episode begins anew within the same step; ``infos["final_obs"]`` [B, 24] then holds its
    last observation where ``infos["_final_obs"]``.
    """

    def __init__(
        self, num_envs: int = 1, hardcore: bool = False, max_episode_steps: int | None = None
    ) -> None:
        self.num_envs = num_envs
        self.max_episode_steps = max_episode_steps
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        single = gym_walker.BipedalWalker(hardcore=hardcore)
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self._hardcore = hardcore
        self._walkers: list[Walker] = []
        self._ground = _Ground(num_envs)
        self._steps = np.zeros(num_envs, np.int64)
        self._shaping: Doubles = np.zeros(num_envs)
        # What an episode follows from: its generator as it began, and the actions since.
        self._begun = np.zeros((num_envs, GENERATOR_WORDS), np.uint64)
        self._taken = np.zeros((num_envs, 64, 4), np.float32)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Floats, dict[str, Any]]:
        """Begin an episode of every walker; see the class for ``seed``."""
        if not self._walkers:
            make = functools.partial(gym_walker.BipedalWalker, hardcore=self._hardcore)
            self._walkers = [make() for _ in range(self.num_envs)]
        seeds = (
            [None if seed is None else seed + row for row in range(self.num_envs)]
            if seed is None or isinstance(seed, int)
            else seed
        )
        return np.stack([self._begin(row, own) for row, own in enumerate(seeds)]), {}

    def _begin(self, row: int, seed: int | None = None) -> Floats:
        """Gymnasium's own reset of one walker; its first observation."""
        walker = self._walkers[row]
        if seed is not None:
            walker.np_random = seeding.np_random(seed)[0]
        self._begun[row] = encode_generator(walker.np_random)
        # What happened in a world before changes the order in which Box2D adds. In a new one an
        # episode follows from its generator and its actions alone, and can be played anew.
        walker.world, walker.terrain = Box2D.b2World(), []
        obs: Floats = walker.reset()[0]
        # The world does not hold on to its listener, the walker must.
        walker.touch = walker.world.contactListener = _Touch(walker)
        self._ground.learn(row, walker)
        self._steps[row], self._shaping[row] = 0, walker.prev_shaping
        return obs

    def step(
        self, actions: Floats
    ) -> tuple[Floats, NDArray[np.float32], Bools, Bools, dict[str, Any]]:
        """Move every walker by its action [B, 4]."""
        actions = np.asarray(actions, np.float32)
        self._note(actions)
        effort = _effort(actions)
        bodies = np.array(
            [_moved(*each) for each in zip(self._walkers, *_motors(actions), strict=True)]
        )
        position, fallen = bodies[:, :2], bodies[:, 16] > 0
        obs = self._observe(bodies)
        rewards = self._reward(position[:, 0], bodies[:, 2], effort)
        lost = fallen | (position[:, 0] < 0)
        rewards[lost] = -100
        terminated = lost | (position[:, 0] > _END)
        self._steps += 1
        truncated = np.zeros(self.num_envs, np.bool_)
        if self.max_episode_steps is not None:
            truncated = self._steps >= self.max_episode_steps
        done = terminated | truncated
        infos: dict[str, Any] = {}
        if done.any():
            infos = {"final_obs": obs.copy(), "_final_obs": done}
            for row in np.flatnonzero(done):
                obs[row] = self._begin(int(row))
        return obs, rewards, terminated, truncated, infos

    def _note(self, actions: Floats) -> None:
        room = self._taken.shape[1]
        if self._steps.max() >= room:
            self._taken = np.pad(self._taken, ((0, 0), (0, room), (0, 0)))
        self._taken[np.arange(self.num_envs), self._steps] = actions

    def get_state(self) -> dict[str, NDArray[Any]]:
        """What the running episodes follow from; the state of a Box2D world cannot be taken out."""
        since = np.arange(int(self._steps.max())) < self._steps[:, None]  # not of earlier episodes
        return {
            "begun": self._begun.copy(),
            "steps": self._steps.copy(),
            "taken": np.where(since[..., None], self._taken[:, : since.shape[1]], 0),
        }

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Play the episodes of :meth:`get_state` anew, to where they were."""
        for row, (words, count) in enumerate(zip(state["begun"], state["steps"], strict=True)):
            decode_generator(words, self._walkers[row].np_random)
            self._begin(row)
            walker = self._walkers[row]
            for action in state["taken"][row, :count]:
                _moved(walker, *_motors(action))
            if count:
                x, angle = walker.hull.position.x, walker.hull.angle
                self._shaping[row] = _shaping(np.array(x), np.array(angle))
        self._steps = state["steps"].astype(np.int64)
        longest = state["taken"].shape[1]
        self._taken = np.zeros((self.num_envs, max(2 * longest, 64), 4), np.float32)
        self._taken[:, :longest] = state["taken"]

    def _observe(self, bodies: Doubles) -> Floats:
        """What the walkers see, [B, 24], of what :func:`_moved` gave."""
        state = np.empty((self.num_envs, 24))
        state[:, 0] = bodies[:, 2]
        state[:, 1] = 2.0 * bodies[:, 3] / gym_walker.FPS
        width = gym_walker.VIEWPORT_W / gym_walker.SCALE
        height = gym_walker.VIEWPORT_H / gym_walker.SCALE
        state[:, 2] = 0.3 * bodies[:, 4] * width / gym_walker.FPS
        state[:, 3] = 0.3 * bodies[:, 5] * height / gym_walker.FPS
        for leg in (0, 1):
            hip, hip_speed, knee, knee_speed, contact = bodies[:, 6 + 5 * leg : 11 + 5 * leg].T
            seen = state[:, 4 + 5 * leg : 9 + 5 * leg]
            seen[:, 0], seen[:, 1] = hip, hip_speed / SPEED_HIP
            seen[:, 2], seen[:, 3] = knee + 1.0, knee_speed / SPEED_KNEE
            seen[:, 4] = contact
        state[:, 14:] = self._ground.fractions(bodies[:, :2])
        return state.astype(np.float32)

    def _reward(self, x: Doubles, angle: Doubles, effort: Floats) -> NDArray[np.float32]:
        """Progress less effort, [B]; efforts are taken off in single precision, as by gymnasium."""
        shaping = _shaping(x, angle)
        rewards = (shaping - self._shaping).astype(np.float32)
        self._shaping = shaping
        for joint in range(4):
            rewards -= _EFFORT * effort[:, joint]
        return rewards

    def close_extras(self, **kwargs: Any) -> None:
        """Let the worlds go."""
        self._walkers = []


def _effort(actions: Floats) -> Floats:
    effort: Floats = np.clip(np.abs(actions), 0, 1)
    return effort


def _motors(actions: Floats) -> tuple[list[Any], list[Any]]:
    """Speeds and torques of the four joints by ``actions`` [..., 4]."""
    torques = np.float32(gym_walker.MOTORS_TORQUE) * _effort(actions)
    return (_SPEEDS * np.sign(actions)).tolist(), torques.tolist()


def _shaping(x: Doubles, angle: Doubles) -> Doubles:
    """What progress is measured by."""
    shaping: Doubles = 130 * x / gym_walker.SCALE - 5.0 * np.abs(angle)
    return shaping


def _moved(walker: Walker, speeds: list[float], torques: list[float]) -> tuple[float, ...]:
    """One step of a walker's physics: where its hull is, how it turns and moves; each leg's hip,
    knee and contact; and whether it fell."""
    joints = walker.joints
    for joint, speed, torque in zip(joints, speeds, torques, strict=True):
        joint.motorSpeed = speed
        joint.maxMotorTorque = torque
    walker.world.Step(1.0 / gym_walker.FPS, 6 * 30, 2 * 30)
    hull, legs = walker.hull, walker.legs
    position, velocity = hull.position, hull.linearVelocity
    hip_a, knee_a, hip_b, knee_b = joints
    return (
        position.x, position.y, hull.angle, hull.angularVelocity, velocity.x, velocity.y,
        hip_a.angle, hip_a.speed, knee_a.angle, knee_a.speed, legs[1].ground_contact,
        hip_b.angle, hip_b.speed, knee_b.angle, knee_b.speed, legs[3].ground_contact,
        walker.game_over,
    )  # fmt: skip


@functools.cache
def agrees() -> bool:
    """Whether a walker of ours does what gymnasium's own does, to the bit, on this machine."""
    try:
        return _rays_agree() and _steps_agree()
    except (AttributeError, TypeError, ValueError, IndexError, AssertionError):
        return False  # a gymnasium or Box2D that is built otherwise


class _Nearest(Box2D.b2RayCastCallback):  # type: ignore[misc]
    """How far a ray of Box2D's goes."""

    fraction = 1.0

    def ReportFixture(  # noqa: N802
        self, fixture: Any, point: Any, normal: Any, fraction: float
    ) -> float:
        """Keep the nearest."""
        self.fraction = fraction
        return fraction


def _rays_agree(count: int = 64) -> bool:
    """Whether slopes are met as by Box2D: a compiler may have fused its multiplications."""
    rng = np.random.default_rng(0)
    starts, ends, begin, end = rng.normal(0, 2, (4, count, 2)).astype(np.float32)
    ours = edge_fractions(starts, (ends - starts)[:, None], begin[:, None], end[:, None])
    theirs = []
    for row in range(count):
        world, nearest = Box2D.b2World(), _Nearest()
        corners = [begin[row].tolist(), end[row].tolist()]
        world.CreateStaticBody(shapes=Box2D.b2EdgeShape(vertices=corners))
        world.RayCast(nearest, starts[row].tolist(), ends[row].tolist())
        theirs.append(nearest.fraction)
    return bool(np.array_equal(ours[:, 0], np.array(theirs, np.float32)))


def _steps_agree() -> bool:
    rng = np.random.default_rng(0)
    ours = WalkerVector(hardcore=True)
    theirs = gym_walker.BipedalWalker(hardcore=True)
    same = np.array_equal(ours.reset(seed=0)[0][0], theirs.reset(seed=0)[0])
    for _ in range(60):
        action = rng.uniform(-1.2, 1.2, 4).astype(np.float32)
        obs, reward, ended, *_ = theirs.step(action)
        mine, rewards, terminated, _, infos = ours.step(action[None])
        last = infos["final_obs"] if ended and terminated[0] else mine
        same = same and np.array_equal(last[0], obs) and float(rewards[0]) == float(reward)
        if ended or not same:
            break
    return bool(same)
