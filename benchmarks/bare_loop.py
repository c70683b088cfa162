"""The ceiling for Atari on this machine: a loop with nothing in it but the work itself.

    python benchmarks/bare_loop.py [--epochs 1] [--secs 60] [--processes 2]

One process a core, each with one compute thread: ALE's native vector environment, the Nature
network, preallocated buffers, images laid out by pixels while they are bytes, freed memory kept, a
fused Adam, minibatches of 256. No exchange between the processes, no metrics, no checkpoints.
Prints one JSON line: the environment steps a second of all processes together, and where the time
of the first went.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

NUM_ENVS, NUM_STEPS, MINIBATCH = 32, 32, 256
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.1


def loop(core: int, game: str, epochs: int, secs: float, told: Connection) -> None:
    """Act and learn for ``secs`` after one update to warm up; tell how many steps and where."""
    os.sched_setaffinity(0, {core})
    import numpy as np
    import torch
    from ale_py import AtariVectorEnv

    from rookery.core.heap import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(core)
    envs = AtariVectorEnv(game, NUM_ENVS, num_threads=1, reward_clipping=True)
    actions = int(envs.single_action_space.n)
    nn = torch.nn
    torso = nn.Sequential(
        nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    heads = nn.Linear(512, actions + 1)
    optimizer = torch.optim.Adam([*torso.parameters(), *heads.parameters()], 2.5e-4, fused=True)

    images = torch.zeros((NUM_STEPS + 1, NUM_ENVS, 84, 84, 4), dtype=torch.uint8)
    chosen = torch.zeros((NUM_STEPS, NUM_ENVS), dtype=torch.int64)
    behaviour = torch.zeros((NUM_STEPS, NUM_ENVS))
    values = torch.zeros((NUM_STEPS + 1, NUM_ENVS))
    rewards = torch.zeros((NUM_STEPS, NUM_ENVS))
    goes_on = torch.zeros((NUM_STEPS, NUM_ENVS))
    advantages = torch.zeros((NUM_STEPS, NUM_ENVS))

    def network(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        floats = batch.movedim(-1, 1).to(torch.float32).mul_(1 / 255)
        out = heads(torso(floats))
        return out[:, :-1].log_softmax(-1), out[:, -1]

    spent = {"environment": 0.0, "acting": 0.0, "learning": 0.0}
    obs, _ = envs.reset(seed=core)
    torch.stack(torch.from_numpy(np.asarray(obs)).unbind(1), -1, out=images[0])
    steps, begun, mark = 0, 0.0, time.perf_counter()

    def note(part: str) -> None:
        nonlocal mark
        moment = time.perf_counter()
        spent[part] += moment - mark
        mark = moment

    while not begun or time.perf_counter() - begun < secs:
        with torch.inference_mode():
            for t in range(NUM_STEPS):
                logits, values[t] = network(images[t])
                chosen[t] = (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)
                behaviour[t] = logits.gather(-1, chosen[t][:, None]).squeeze(-1)
                note("acting")
                obs, reward, ended, cut, _ = envs.step(chosen[t].numpy())
                torch.stack(torch.from_numpy(np.asarray(obs)).unbind(1), -1, out=images[t + 1])
                rewards[t] = torch.from_numpy(np.asarray(reward, np.float32))
                goes_on[t] = torch.from_numpy(~(ended | cut)).float()
                note("environment")
            values[-1] = network(images[-1])[1]
            following = torch.zeros(NUM_ENVS)
            for t in range(NUM_STEPS - 1, -1, -1):
                delta = rewards[t] + GAMMA * goes_on[t] * values[t + 1] - values[t]
                following = delta + GAMMA * LAMBDA * goes_on[t] * following
                advantages[t] = following
        targets = (advantages + values[:-1]).flatten()
        flat = [x.flatten(0, 1) for x in (images[:-1], chosen, behaviour, advantages)]
        note("acting")
        for _ in range(epochs):
            for index in torch.randperm(NUM_STEPS * NUM_ENVS).split(MINIBATCH):
                batch, taken, before, advantage = (x[index] for x in flat)
                logits, value = network(batch)
                ratio = (logits.gather(-1, taken[:, None]).squeeze(-1) - before).exp()
                gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
                entropy = -(logits.exp() * logits).sum(-1)
                error = (value - targets[index]).square()
                loss = (0.5 * error - gain - 0.01 * entropy).mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        images[0] = images[-1]
        note("learning")
        if not begun:
            begun, spent = time.perf_counter(), dict.fromkeys(spent, 0.0)
        else:
            steps += NUM_STEPS * NUM_ENVS
    told.send((steps / (time.perf_counter() - begun), spent))


def on_every_core(
    work: Callable[..., None], processes: int, *words: Any
) -> list[tuple[float, dict[str, float]]]:
    """What each of ``processes`` tells that run ``work(core, *words, told)``."""
    context = multiprocessing.get_context("spawn")
    cores, lines = sorted(os.sched_getaffinity(0)), []
    for place in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        given = (cores[place % len(cores)], *words, theirs)
        context.Process(target=work, args=given, daemon=True).start()
        theirs.close()  # so that a dead process is an error here, not a wait
        lines.append(ours)
    return [line.recv() for line in lines]


def shares(spent: dict[str, float]) -> dict[str, float]:
    """Of the whole time."""
    return {part: round(secs / sum(spent.values()), 3) for part, secs in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", default="pong")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--secs", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    told = on_every_core(loop, args.processes, args.game, args.epochs, args.secs)
    rate = sum(rate for rate, _ in told)
    print(json.dumps({"steps_per_s": rate, "share": shares(told[0][1])}))


if __name__ == "__main__":
    main()
