"""The rules and the senses of Snake, for N independent snakes at once.

`SnakeEnv` (one snake) and `SnakeVectorEnv` (many) are thin shells around `SnakeWorld`, so the rules
exist once. A step moves all snakes with a fixed number of NumPy calls; Python loops run only over
the few snakes that ate or start an episode.

Shapes: N snakes, C = 1600 cells of the 40x40 map (cell = 40 * y + x), K = 2 kinds of item (food,
water), R = 8 rays. Per-snake arrays are [N, ...]; tables of geometry are [C, ...].

How a snake sees. All cells on one straight line fit in one machine word, so for each kind and each
ray direction a snake keeps one word per line, a set bit for each item, counted along the ray.
Shifting out what lies behind the head, and the head itself, leaves the distance to the nearest item
as the lowest set bit. Eating or placing an item flips one bit per ray.

Draws. Each snake owns one generator, and the order of its draws decides what a seed means. An
episode: 8 uniforms for spawn x, y, the stores, restores and item counts; the clocks of the food; a
water cluster, that is its centre and then its clocks. Eating: a new place for food; for water a new
cluster, but only when it was the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rookery.core.seeding import GENERATOR_WORDS, decode_generator, encode_generator

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
CellArray = NDArray[np.uint8]
StateArray = NDArray[np.uint8] | NDArray[np.int64] | NDArray[np.uint64]

SIZE = 40
NUM_CELLS = SIZE * SIZE
NUM_ACTIONS = 4
NUM_FEATURES = 35

# Inclusive ranges of what an episode draws first: for x and y or for food and water alike.
SPAWN_RANGE = (4, 36)
STORE_RANGE = (10, 199)
RESTORE_RANGE = (10, 39)
ITEM_COUNT_RANGE = (10, 29)

STORE_CAP = 200
DEATH_REWARD = -2.0
FIRST_CLUSTER_DENSITY = 9e-3
LATER_CLUSTER_DENSITY = 1.5e-2

# (dx, dy) of each action. Opposite actions differ by 2, so `action ^ 2` is the reversal.
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
RAYS = ((-1, -1), (0, -1), (1, -1), (-1, 0), (1, 0), (-1, 1), (0, 1), (1, 1))
NUM_RAYS = len(RAYS)

DISTANCE_SCALE = 10.0 / float(np.hypot(SIZE, SIZE))
NOTHING_SEEN = -13.0 * DISTANCE_SCALE


# What a cell holds. An item of kind k is k + 1 and fills store k; everything from WALL on kills.
# Plain numbers, because a member of an Enum is a slow lookup in the loops below.
EMPTY, FOOD, WATER, WALL, SNAKE = range(5)
NUM_KINDS = 2

# Slices of the feature vector.
ITEM_FEATURES = slice(0, NUM_KINDS * NUM_RAYS)
WALL_FEATURES = slice(16, 24)
BODY_FEATURES = slice(24, 32)
STORE_FEATURES = slice(32, 34)

# Geometry tables -------------------------------------------------------------------------------

_RANGES = np.repeat([SPAWN_RANGE, STORE_RANGE, RESTORE_RANGE, ITEM_COUNT_RANGE], 2, axis=0)
_DRAW_LOW, _DRAW_SPAN = _RANGES[:, 0], _RANGES[:, 1] + 1 - _RANGES[:, 0]

_X = np.arange(NUM_CELLS) % SIZE
_Y = np.arange(NUM_CELLS) // SIZE
_STEP = np.array([dy * SIZE + dx for dx, dy in MOVES])
_INNER_CELLS = np.flatnonzero((_X % (SIZE - 1) != 0) & (_Y % (SIZE - 1) != 0))
_LINES_PER_AXIS = 2 * SIZE - 1  # as many as a map has diagonals
_WORDS_PER_LINE = 2 * NUM_KINDS
_WORDS = (NUM_RAYS // 2) * _LINES_PER_AXIS * _WORDS_PER_LINE


def _empty_map() -> CellArray:
    cells = np.full(NUM_CELLS, WALL, dtype=np.uint8)
    cells[_INNER_CELLS] = EMPTY
    return cells


def _positions_along_rays() -> IntArray:
    """[C, R]: how far along its line a cell lies, counted in the ray's direction from 0."""
    along: IntArray = np.stack([dx * _X if dx else dy * _Y for dx, dy in RAYS], axis=1)
    along -= along.min(axis=0)
    return along


def _words_of_cells() -> IntArray:
    """[K, C, R]: which of a snake's words holds the bit of a cell, per kind and ray.

    Opposite rays (r and 7 - r) share their lines; the four words of a line, two ways and two kinds,
    lie side by side, because they are always looked up together.
    """
    words = np.zeros((NUM_KINDS, NUM_CELLS, NUM_RAYS), dtype=np.int64)
    for ray in range(NUM_RAYS):
        axis = min(ray, NUM_RAYS - 1 - ray)
        dx, dy = RAYS[axis]
        line = _X * dy - _Y * dx  # constant along the axis
        line += axis * _LINES_PER_AXIS - line.min()
        for kind in range(NUM_KINDS):
            words[kind, :, ray] = line * _WORDS_PER_LINE + (ray != axis) * NUM_KINDS + kind
    return words


def _feature(steps: int | IntArray, ray: tuple[int, int]) -> FloatArray:
    """The feature of something `steps` cells away along `ray`."""
    return np.asarray(steps * float(np.hypot(*ray)) * DISTANCE_SCALE, dtype=np.float32)


def _wall_features() -> FloatArray:
    """[C, R]: the wall features of a head in each cell."""
    features = np.zeros((NUM_CELLS, NUM_RAYS), dtype=np.float32)
    for i, (dx, dy) in enumerate(RAYS):
        to_x = {-1: _X, 0: np.full(NUM_CELLS, SIZE), 1: SIZE - 1 - _X}[dx]
        to_y = {-1: _Y, 0: np.full(NUM_CELLS, SIZE), 1: SIZE - 1 - _Y}[dy]
        features[:, i] = _feature(np.minimum(to_x, to_y), RAYS[i])
    return features


def _body_features() -> FloatArray:
    """[heading, earlier heading, R]: a length of 3 is fully described by the last two moves."""
    features = np.full((NUM_ACTIONS, NUM_ACTIONS, NUM_RAYS), NOTHING_SEEN, dtype=np.float32)
    for now, (dx, dy) in enumerate(MOVES):
        for before, (ex, ey) in enumerate(MOVES):
            neck, tail = (-dx, -dy), (-dx - ex, -dy - ey)
            if tail in RAYS:
                features[now, before, RAYS.index(tail)] = _feature(1, tail)
            features[now, before, RAYS.index(neck)] = _feature(1, neck)  # hides a tail behind it
    return features


def _distance_features() -> tuple[FloatArray, IntArray]:
    """Table from the float exponent of a lowest set bit to the feature, and the ray's offset in it.

    The exponent field of the double 2**k is 1023 + k, that of 0 is 0; bit k is k + 1 cells away.
    """
    size = 1023 + SIZE
    table = np.full((2, size), NOTHING_SEEN, dtype=np.float32)
    steps = np.arange(1, SIZE + 1)
    table[0, 1023:] = _feature(steps, (1, 0))
    table[1, 1023:] = _feature(steps, (1, 1))
    offset = np.array([size * (dx != 0 and dy != 0) for dx, dy in RAYS] * NUM_KINDS)
    return table.ravel(), offset


def _squared_distances() -> NDArray[np.float64]:
    """Squared distance from the middle of a map so large that any map fits around its centre."""
    offset = np.arange(1.0 - SIZE, SIZE) ** 2
    return offset[:, None] + offset


_EMPTY_MAP = _empty_map()
_SQUARED_DISTANCE = _squared_distances()
_POSITION = _positions_along_rays()
_BIT = np.int64(1) << _POSITION
_WORD = _words_of_cells()
_SEEN_WORD = np.concatenate(_WORD, axis=1)  # [C, K * R], the order of the features
_SEEN_SHIFT = np.tile(_POSITION + 1, (1, NUM_KINDS))
_WALL = _wall_features()
_BODY = _body_features()
_DISTANCE, _DISTANCE_OFFSET = _distance_features()


# Drawing places --------------------------------------------------------------------------------


def draw_empty_cell(cells: CellArray, generator: np.random.Generator) -> int:
    """A uniformly drawn empty cell of one map [C]; most of it is empty, so rejection is quick."""
    while True:
        cell = int(_INNER_CELLS[int(generator.random() * len(_INNER_CELLS))])
        if cells[cell] == EMPTY:
            return cell


def draw_cells(
    candidates: IntArray,
    cost: NDArray[np.float64] | float,
    count: int,
    generator: np.random.Generator,
) -> IntArray:
    """Draw `count` candidates without replacement, each with weight 1 / cost.

    The first `count` of independent exponential clocks of rate 1 / cost are exactly such a draw. A
    cost of 0 is a weight of infinity: that candidate is always drawn.
    """
    clocks = generator.standard_exponential(len(candidates)) * cost
    return candidates[np.argpartition(clocks, count)[:count]]


def draw_water_cluster(
    cells: CellArray, count: int, density: float, generator: np.random.Generator
) -> IntArray:
    """The cells of a new water cluster around a random empty centre of one map [C]."""
    centre = draw_empty_cell(cells, generator)
    empty = (cells == EMPTY).nonzero()[0]
    y, x = divmod(centre, SIZE)
    around = _SQUARED_DISTANCE[SIZE - 1 - y : 2 * SIZE - 1 - y, SIZE - 1 - x : 2 * SIZE - 1 - x]
    squared = around.ravel().take(empty)
    farthest = squared.max()
    cost = np.where(squared <= density * farthest, squared, farthest)
    return draw_cells(empty, cost, count, generator)


# The world -------------------------------------------------------------------------------------


class SnakeWorld:
    """N snakes, each alone on its own map.

        world = SnakeWorld(generators)
        world.reset(range(len(generators)))
        features = world.observe()
        reward = world.step(actions)          # negative: this snake died, `reset` it

    Attributes (all [N, ...], read-only for callers):
        cells: contents of each map, EMPTY to SNAKE [N, C].
        head: cell of the head.
        heading, earlier: the last two moves, as actions; with `head` they place the whole body.
        stores: food and water left [N, K].
        restores: what one item of each kind gives back [N, K].
        cluster: items in a full water cluster.
        water: items left in the present cluster.
        steps: steps survived in this episode.
    """

    _ARRAYS = (
        *("cells", "head", "heading", "earlier"),
        *("stores", "restores", "cluster", "water", "steps"),
    )

    def __init__(self, generators: Sequence[np.random.Generator]) -> None:
        self.generators = list(generators)
        count = len(self.generators)
        self.cells: CellArray = np.tile(_EMPTY_MAP, (count, 1))
        self.head: IntArray = np.zeros(count, dtype=np.int64)
        self.heading: IntArray = np.zeros(count, dtype=np.int64)
        self.earlier: IntArray = np.zeros(count, dtype=np.int64)
        self.stores: IntArray = np.zeros((count, NUM_KINDS), dtype=np.int64)
        self.restores: IntArray = np.zeros((count, NUM_KINDS), dtype=np.int64)
        self.cluster: IntArray = np.zeros(count, dtype=np.int64)
        self.water: IntArray = np.zeros(count, dtype=np.int64)
        self.steps: IntArray = np.zeros(count, dtype=np.int64)
        self._first_cell: IntArray = np.arange(count, dtype=np.int64) * NUM_CELLS
        self._first_word: IntArray = np.arange(count, dtype=np.int64) * _WORDS
        self._words: IntArray = np.zeros(count * _WORDS, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.generators)

    # Episodes

    def reset(self, snakes: Iterable[int]) -> None:
        """Start a new episode for each of `snakes`."""
        for snake in snakes:
            self._reset_one(int(snake))

    def _reset_one(self, snake: int) -> None:
        generator = self.generators[snake]
        drawn = _DRAW_LOW + (generator.random(len(_RANGES)) * _DRAW_SPAN).astype(np.int64)
        x, y, _, _, _, _, food, water = drawn.tolist()
        self.stores[snake] = drawn[2:4]
        self.restores[snake] = drawn[4:6]
        self.head[snake] = y * SIZE + x
        self.heading[snake] = 0  # the neck is at (x+1, y)
        self.earlier[snake] = 3  # and the tail at (x+1, y+1)
        self.cluster[snake] = self.water[snake] = water
        self.steps[snake] = 0

        cells = self.cells[snake]
        cells[:] = _EMPTY_MAP
        cells[self.body(snake)] = SNAKE
        self._words[snake * _WORDS : (snake + 1) * _WORDS] = 0
        empty = (cells == EMPTY).nonzero()[0]
        self._place(snake, draw_cells(empty, 1.0, food, generator), FOOD)
        self._place_cluster(snake, FIRST_CLUSTER_DENSITY)

    def body(self, snake: int) -> list[int]:
        """The cells of one snake: tail, neck, head."""
        head = int(self.head[snake])
        neck = head - int(_STEP[self.heading[snake]])
        return [neck - int(_STEP[self.earlier[snake]]), neck, head]

    # Steps

    def step(self, actions: IntArray) -> NDArray[np.float64]:
        """Move every snake; return the rewards [N], negative exactly where a snake died.

        A snake that runs into something stays where it was. Dead snakes must be reset before the
        next step.
        """
        actions = actions.astype(np.int64, casting="same_kind", copy=False)
        if (actions & ~3).any():
            raise ValueError(f"actions must be 0..3, got {actions.min()}..{actions.max()}")
        heading = np.where(actions == self.heading ^ 2, self.heading, actions)
        target = self.head + _STEP[heading]
        found = self.cells.ravel().take(self._first_cell + target)
        blocked = found >= WALL
        self._move(heading, target, ~blocked)
        self._feed(found)
        self.steps += 1
        deaths: IntArray = blocked + (self.stores < 0).sum(axis=1)
        return np.multiply(deaths, DEATH_REWARD) + 0.0  # + 0.0 turns the living's -0.0 into 0.0

    def _move(self, heading: IntArray, target: IntArray, free: BoolArray) -> None:
        """Advance the snakes whose way is `free` to `target`."""
        tail = self.head - _STEP[self.heading] - _STEP[self.earlier]
        cells = self.cells.ravel()
        cells[(self._first_cell + tail)[free]] = EMPTY
        cells[(self._first_cell + target)[free]] = SNAKE
        np.copyto(self.head, target, where=free)
        np.copyto(self.earlier, self.heading, where=free)
        np.copyto(self.heading, heading, where=free)

    def _feed(self, found: CellArray) -> None:
        """Settle the stores of snakes that moved onto `found`, and replace what they ate."""
        self.stores -= (found == EMPTY)[:, None]
        for item in (FOOD, WATER):
            eaters = np.flatnonzero(found == item)
            if len(eaters):
                self._eat(eaters, item)

    def _eat(self, eaters: IntArray, item: int) -> None:
        kind = item - 1
        filled = self.stores[eaters, kind] + self.restores[eaters, kind]
        self.stores[eaters, kind] = np.minimum(filled, STORE_CAP)
        self._flip(self._first_word[eaters, None], self.head[eaters], item)
        if item == FOOD:
            self._respawn_food(eaters)
            return
        self.water[eaters] -= 1
        for snake in eaters[self.water[eaters] == 0]:
            self.water[snake] = self.cluster[snake]
            self._place_cluster(int(snake), LATER_CLUSTER_DENSITY)

    def _respawn_food(self, eaters: IntArray) -> None:
        drawn = [draw_empty_cell(self.cells[i], self.generators[i]) for i in eaters.tolist()]
        places = np.array(drawn, dtype=np.int64)
        self.cells[eaters, places] = FOOD
        self._flip(self._first_word[eaters, None], places, FOOD)

    def _place_cluster(self, snake: int, density: float) -> None:
        count, generator = int(self.water[snake]), self.generators[snake]
        places = draw_water_cluster(self.cells[snake], count, density, generator)
        self._place(snake, places, WATER)

    def _place(self, snake: int, places: IntArray, item: int) -> None:
        """Put items of one kind on empty `places` of one map."""
        self.cells[snake, places] = item
        self._flip(snake * _WORDS, places, item)

    def _flip(self, first_word: IntArray | int, places: IntArray, item: int) -> None:
        """Items appeared or vanished at `places`: flip their bits in the words of all rays.

        `first_word` is where the words of the snake begin, one for all places or a column [n, 1].
        """
        words = _WORD[item - 1].take(places, axis=0) + first_word  # [n, R]
        np.bitwise_xor.at(self._words, words.ravel(), _BIT.take(places, axis=0).ravel())

    # Senses

    def observe(self, snakes: IntArray | None = None) -> FloatArray:
        """A fresh array of the features of `snakes` (all by default) [n, 35]."""
        which: IntArray | slice = slice(None) if snakes is None else snakes
        head = self.head[which]
        features = np.empty((len(head), NUM_FEATURES), dtype=np.float32)
        features[:, ITEM_FEATURES] = self._item_features(head, self._first_word[which])
        features[:, WALL_FEATURES] = _WALL[head]
        features[:, BODY_FEATURES] = _BODY[self.heading[which], self.earlier[which]]
        features[:, STORE_FEATURES] = self.stores[which] * (1.0 / STORE_CAP)
        features[:, STORE_FEATURES.stop :] = 0.0  # reserved
        return features

    def _item_features(self, head: IntArray, first_word: IntArray) -> FloatArray:
        """The rays to food and water of heads at `head` [n, K * R]."""
        words = self._words.take(_SEEN_WORD.take(head, axis=0) + first_word[:, None])
        ahead = words >> _SEEN_SHIFT.take(head, axis=0)
        nearest = (ahead & -ahead).astype(np.float64)
        return _DISTANCE.take((nearest.view(np.int64) >> 52) + _DISTANCE_OFFSET)

    # State

    def get_state(self) -> dict[str, StateArray]:
        """Everything that decides the future, as plain numeric arrays (copies)."""
        state: dict[str, StateArray] = {name: getattr(self, name).copy() for name in self._ARRAYS}
        state["generators"] = np.stack([encode_generator(g) for g in self.generators])
        return state

    def set_state(self, state: Mapping[str, StateArray]) -> None:
        """Continue exactly where `get_state` was called; the number of snakes must be the same."""
        expected = {name: getattr(self, name).shape for name in self._ARRAYS}
        expected["generators"] = (len(self), GENERATOR_WORDS)
        for name, shape in expected.items():
            if name not in state:
                raise ValueError(f"snake state lacks {name!r}; it holds {sorted(state)}")
            if state[name].shape != shape:
                raise ValueError(
                    f"snake state {name!r} has shape {state[name].shape}, expected {shape}: "
                    "restore it into an environment of the same num_envs"
                )
        for name in self._ARRAYS:
            getattr(self, name)[...] = state[name]
        for generator, words in zip(self.generators, state["generators"], strict=True):
            decode_generator(words, generator)
        self._rebuild_words()

    def _rebuild_words(self) -> None:
        self._words[:] = 0
        for item in (FOOD, WATER):
            snakes, places = np.nonzero(self.cells == item)
            self._flip(self._first_word[snakes, None], places, item)
