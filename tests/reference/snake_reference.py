"""Snake's rules once more, slowly: one snake, lists and loops, nothing shared with `rookery.envs`.

Only the order and form of the random draws follow `rookery.envs.snake_world`, so that one seed
gives one episode in both.
"""

from __future__ import annotations

import math

import numpy as np

SIZE = 40
MOVES = {0: (-1, 0), 1: (0, 1), 2: (1, 0), 3: (0, -1)}
RAYS = [(-1, -1), (0, -1), (1, -1), (-1, 0), (1, 0), (-1, 1), (0, 1), (1, 1)]

Place = tuple[int, int]


class ReferenceSnake:
    """`reset()` gives the features, `step(action)` the features, the reward and whether it died."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator
        self.inner = [(x, y) for y in range(1, SIZE - 1) for x in range(1, SIZE - 1)]
        everywhere = [(x, y) for y in range(SIZE) for x in range(SIZE)]
        self.walls = {place for place in everywhere if self.is_wall(place)}
        self.clusters = 0

    def reset(self) -> list[float]:
        u = self.generator.random(8)
        x, y = self.between(4, 36, u[0]), self.between(4, 36, u[1])
        self.body: list[Place] = [(x + 1, y + 1), (x + 1, y), (x, y)]
        self.food_store, self.water_store = self.between(10, 199, u[2]), self.between(10, 199, u[3])
        self.food_gain, self.water_gain = self.between(10, 39, u[4]), self.between(10, 39, u[5])
        food_count, self.water_count = self.between(10, 29, u[6]), self.between(10, 29, u[7])
        self.food: set[Place] = set()
        self.water: set[Place] = set()
        empty = self.empty_places()
        self.food = self.earliest(empty, [1.0] * len(empty), food_count)
        self.add_cluster(9e-3)
        return self.features()

    def step(self, action: int) -> tuple[list[float], float, bool]:
        head, neck = self.body[-1], self.body[-2]
        dx, dy = MOVES[action]
        target = (head[0] + dx, head[1] + dy)
        if target == neck:  # a reversal: go straight on instead
            target = (2 * head[0] - neck[0], 2 * head[1] - neck[1])
        if self.is_wall(target) or target in self.body:
            return self.features(), -2.0, True

        self.body = [*self.body[1:], target]
        if target in self.food:
            self.food_store = min(200, self.food_store + self.food_gain)
            self.food.remove(target)
            self.food.add(self.random_empty_place())
        elif target in self.water:
            self.water_store = min(200, self.water_store + self.water_gain)
            self.water.remove(target)
            if not self.water:
                self.add_cluster(1.5e-2)
        else:
            self.food_store -= 1
            self.water_store -= 1
        reward = 0.0
        if self.food_store < 0:
            reward -= 2.0
        if self.water_store < 0:
            reward -= 2.0
        return self.features(), reward, reward < 0

    def features(self) -> list[float]:
        diagonal = math.sqrt(SIZE**2 + SIZE**2)
        values = []
        for things in (self.food, self.water, self.walls, set(self.body[:-1])):
            for ray in RAYS:
                distance = self.distance(ray, things)
                values.append((-13 if distance is None else distance) * 10 / diagonal)
        return [*values, self.food_store / 200, self.water_store / 200, 0.0]

    def distance(self, ray: Place, things: set[Place]) -> float | None:
        (x, y), (dx, dy) = self.body[-1], ray
        for steps in range(1, SIZE):
            if (x + steps * dx, y + steps * dy) in things:
                return math.sqrt((steps * dx) ** 2 + (steps * dy) ** 2)
        return None

    def add_cluster(self, density: float) -> None:
        centre = self.random_empty_place()
        empty = self.empty_places()
        squared = [(x - centre[0]) ** 2 + (y - centre[1]) ** 2 for x, y in empty]
        farthest = max(squared)
        costs = [float(d2 if d2 <= density * farthest else farthest) for d2 in squared]
        self.water = self.earliest(empty, costs, self.water_count)
        self.clusters += 1

    def earliest(self, places: list[Place], costs: list[float], count: int) -> set[Place]:
        clocks = self.generator.standard_exponential(len(places))
        order = sorted(range(len(places)), key=lambda i: float(clocks[i]) * costs[i])
        return {places[i] for i in order[:count]}

    def random_empty_place(self) -> Place:
        while True:
            place = self.inner[int(self.generator.random() * len(self.inner))]
            if self.is_empty(place):
                return place

    def empty_places(self) -> list[Place]:
        return [place for place in self.inner if self.is_empty(place)]

    def is_empty(self, place: Place) -> bool:
        return place not in self.body and place not in self.food and place not in self.water

    @staticmethod
    def is_wall(place: Place) -> bool:
        return min(place) <= 0 or max(place) >= SIZE - 1

    @staticmethod
    def between(low: int, high: int, uniform: float) -> int:
        return low + int(uniform * (high - low + 1))
