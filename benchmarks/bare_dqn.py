"""The ceiling for DQN on this machine: a loop with nothing in it but the work itself.

    python benchmarks/bare_dqn.py [--secs 60] [--processes 2]

One process a core, each with one compute thread, its own games, frames and network:
Q-learning by the Nature network, an update of 32 for every 4 steps, uniform choice from an
uncompressed ring, images laid out by pixels while they are bytes, freed memory kept, a fused Adam.
No exchange between the processes, no metrics, no checkpoints. Prints one JSON line: the environment
steps a second of all together, and where the time of the first went.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from multiprocessing.connection import Connection

from bare_loop import on_every_core, shares

NUM_ENVS, STEPS_PER_UPDATE, BATCH = 8, 4, 32
ROWS = 1_000  # times NUM_ENVS steps in the ring
GAMMA, EPSILON, TARGET_EVERY = 0.99, 0.1, 1_000


def loop(core: int, game: str, secs: float, told: Connection) -> None:
    """Act and learn for ``secs`` once there is something to learn; tell how many steps, where."""
    os.sched_setaffinity(0, {core})
    import numpy as np
    import torch
    from ale_py import AtariVectorEnv

    from rookery.core.heap import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(core)
    rng = np.random.default_rng(core)
    envs = AtariVectorEnv(game, NUM_ENVS, num_threads=1, reward_clipping=True)
    actions = int(envs.single_action_space.n)
    nn = torch.nn

    def network() -> torch.nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions),
        ).to(memory_format=torch.channels_last)  # fmt: skip

    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), 1e-4, fused=True)
    # Each frame once, as a stack is made of the last four.
    images = torch.zeros((ROWS, NUM_ENVS, 84, 84), dtype=torch.uint8)
    chosen = torch.zeros((ROWS, NUM_ENVS), dtype=torch.int64)
    rewards, goes_on = torch.zeros((ROWS, NUM_ENVS)), torch.zeros((ROWS, NUM_ENVS))
    back = torch.arange(-3, 1)

    def floats(batch: torch.Tensor) -> torch.Tensor:
        by_pixels = torch.stack(batch.unbind(1), -1).movedim(-1, 1)
        return by_pixels.to(torch.float32).mul_(1 / 255)

    def learn(filled: int, newest: int) -> None:
        age = torch.from_numpy(rng.integers(1, filled - 4, BATCH))
        row, column = (newest - age) % ROWS, torch.from_numpy(rng.integers(0, NUM_ENVS, BATCH))
        now, then = (
            floats(images[(row[:, None] + shift + back) % ROWS, column[:, None]])
            for shift in (0, 1)
        )
        with torch.no_grad():
            following = target(then).amax(-1)
            goal = rewards[row, column] + GAMMA * goes_on[row, column] * following
        value = online(now).gather(-1, chosen[row, column][:, None]).squeeze(-1)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.smooth_l1_loss(value, goal).backward()
        optimizer.step()

    spent = {"environment": 0.0, "acting": 0.0, "learning": 0.0}
    obs, _ = envs.reset(seed=core)
    steps, updates, at, begun, mark = 0, 0, 0, 0.0, time.perf_counter()

    def note(part: str) -> None:
        nonlocal mark
        moment = time.perf_counter()
        spent[part] += moment - mark
        mark = moment

    while not begun or time.perf_counter() - begun < secs:
        place = at % ROWS
        images[place] = torch.from_numpy(np.asarray(obs))[:, -1]
        with torch.inference_mode():
            greedy = online(floats(torch.from_numpy(np.asarray(obs)))).argmax(-1).numpy()
        any_one = rng.integers(0, actions, NUM_ENVS)
        action = np.where(rng.random(NUM_ENVS) < EPSILON, any_one, greedy)
        note("acting")
        obs, reward, ended, cut, _ = envs.step(action)
        chosen[place] = torch.from_numpy(action)
        rewards[place] = torch.from_numpy(np.asarray(reward, np.float32))
        goes_on[place] = torch.from_numpy(~(ended | cut)).float()
        at += 1
        note("environment")
        if at * NUM_ENVS < 1_000:
            continue
        for _ in range(NUM_ENVS // STEPS_PER_UPDATE):
            learn(min(at, ROWS), place)
            updates += 1
            if updates % TARGET_EVERY == 0:
                target.load_state_dict(online.state_dict())
        note("learning")
        if not begun:
            begun, spent = time.perf_counter(), dict.fromkeys(spent, 0.0)
        else:
            steps += NUM_ENVS
    told.send((steps / (time.perf_counter() - begun), spent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", default="pong")
    parser.add_argument("--secs", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    told = on_every_core(loop, args.processes, args.game, args.secs)
    rate = sum(rate for rate, _ in told)
    print(json.dumps({"steps_per_s": rate, "share": shares(told[0][1])}))


if __name__ == "__main__":
    main()
