"""The way through a maze, for tests."""

from __future__ import annotations

from collections import deque

from rookery.envs.maze import MOVES, MazeEnv


def way_out(env: MazeEnv) -> list[int]:
    """The fewest actions from the start to the goal."""
    found: dict[tuple[int, int], list[int]] = {(1, 1): []}
    queue = deque(found)
    while queue:
        here = queue.popleft()
        for action, (down, right) in enumerate(MOVES):
            there = (here[0] + down, here[1] + right)
            if not env.walls[there] and there not in found:
                found[there] = [*found[here], action]
                queue.append(there)
    return found[env.goal]
