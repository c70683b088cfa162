"""The ceiling for central Double DQN on Super Mario here: a loop with nothing in it but the work.

    python benchmarks/bare_mario.py [--secs 60] [--actors 4]

A process for each actor with one game, and one that chooses for whoever waits, in one batch, and
learns: an update of 32 for every 3 steps, Nature network, uniform choice from an uncompressed
ring, fused Adam, images laid out by pixels. Observations pass through shared memory. No metrics, no
checkpoints, no restarts. Prints one JSON line: environment steps a second.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import time

import numpy as np

SHAPE, ACTIONS = (4, 84, 84), 2
BATCH, STEPS_PER_UPDATE, ROWS, GAMMA, EPSILON, TARGET_EVERY = 32, 3, 4_000, 0.9, 0.1, 3_333
FIRST = 500
"""Steps before it learns."""


def shared(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Memory that forked processes have in common."""
    count = int(np.prod(shape))
    return np.frombuffer(mmap.mmap(-1, count * np.dtype(dtype).itemsize), dtype).reshape(shape)


class Seats:
    """What actors and the one who chooses exchange; a byte through a pipe wakes either."""

    def __init__(self, actors: int) -> None:
        self.obs, self.last = (shared((actors, *SHAPE), "uint8") for _ in range(2))
        self.reward, self.done = shared((actors,), "float32"), shared((actors,), "uint8")
        self.action, self.asks = shared((actors,), "int64"), shared((actors,), "uint8")
        self.asked = os.eventfd(0)
        self.answered = [os.eventfd(0) for _ in range(actors)]


def act(seats: Seats, actor: int) -> None:
    """Step one game with the actions that come."""
    from rookery.envs.mario import MarioEnv

    env = MarioEnv(actions="right_jump")
    obs, _ = env.reset(seed=actor)
    seats.obs[actor] = obs
    while True:
        seats.asks[actor] = 1
        os.eventfd_write(seats.asked, 1)
        os.eventfd_read(seats.answered[actor])
        obs, reward, done, _, _ = env.step(int(seats.action[actor]))
        seats.last[actor], seats.reward[actor], seats.done[actor] = obs, reward, done
        seats.obs[actor] = env.reset()[0] if done else obs


def serve(seats: Seats, actors: int, secs: float) -> float:
    """Choose and learn; steps a second once there is something to learn."""
    import torch

    from rookery.core.heap import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng, nn = np.random.default_rng(0), torch.nn

    def network() -> torch.nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, ACTIONS),
        ).to(memory_format=torch.channels_last)  # fmt: skip

    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), 2.5e-4, fused=True)
    now = torch.zeros((ROWS, *SHAPE), dtype=torch.uint8)
    then = torch.zeros((ROWS, *SHAPE), dtype=torch.uint8)
    chosen = torch.zeros(ROWS, dtype=torch.int64)
    rewards, goes_on = torch.zeros(ROWS), torch.zeros(ROWS)

    def floats(batch: torch.Tensor) -> torch.Tensor:
        by_pixels = torch.stack(batch.unbind(1), -1).movedim(-1, 1)
        return by_pixels.to(torch.float32).mul_(1 / 255)

    def learn(filled: int) -> None:
        some = torch.from_numpy(rng.integers(0, filled, BATCH))
        with torch.no_grad():
            following = floats(then[some])
            best = online(following).argmax(-1, keepdim=True)
            value = target(following).gather(-1, best).squeeze(-1)
            goal = rewards[some] + GAMMA * goes_on[some] * value
        value = online(floats(now[some])).gather(-1, chosen[some][:, None]).squeeze(-1)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.smooth_l1_loss(value, goal).backward()
        optimizer.step()

    held: list[tuple[np.ndarray, int] | None] = [None] * actors
    made = updates = steps = 0
    begun = 0.0
    while not begun or time.perf_counter() - begun < secs:
        waiting = np.flatnonzero(seats.asks.copy())
        if not len(waiting):
            os.eventfd_read(seats.asked)
            continue
        seats.asks[waiting] = 0
        seen = seats.obs[waiting]
        for actor in waiting:
            before = held[actor]
            if before is None:
                continue
            row = made % ROWS
            now[row], chosen[row] = torch.from_numpy(before[0]), before[1]
            then[row] = torch.from_numpy(seats.last[actor])
            rewards[row], goes_on[row] = float(seats.reward[actor]), 1.0 - float(seats.done[actor])
            made += 1
        with torch.inference_mode():
            greedy = online(floats(torch.from_numpy(seen))).argmax(-1).numpy()
        random = rng.random(len(waiting)) < EPSILON
        actions = np.where(random, rng.integers(0, ACTIONS, len(waiting)), greedy)
        for index, actor in enumerate(waiting):
            held[actor] = (seen[index], int(actions[index]))
            seats.action[actor] = actions[index]
            os.eventfd_write(seats.answered[actor], 1)
        while made >= FIRST and updates < (made - FIRST) // STEPS_PER_UPDATE:
            learn(min(made, ROWS))
            updates += 1
            if updates % TARGET_EVERY == 0:
                target.load_state_dict(online.state_dict())
            begun, steps = begun or time.perf_counter(), steps or made
    return (made - steps) / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=60.0)
    parser.add_argument("--actors", type=int, default=4)
    given = parser.parse_args()
    seats, children = Seats(given.actors), []
    for actor in range(given.actors):
        pid = os.fork()
        if pid == 0:
            act(seats, actor)
        children.append(pid)
    try:
        print(json.dumps({"steps_per_s": serve(seats, given.actors, given.secs)}))
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
