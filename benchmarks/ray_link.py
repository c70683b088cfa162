"""Rollouts of Pong to a learner elsewhere: over the network link, and by Ray's object store:

    python -m benchmarks.ray_link
    python -m benchmarks.ray_link --secs 5 --rounds 5

The link is measured as in benchmarks/link.py. By Ray, an actor puts each rollout (`ray.put`) and
calls the learner's actor with it, two rollouts of each of two actors under way; the learner copies
it into a batch. Two nodes are two raylets of this machine, each with an object store of its own, so
that rollouts pass from store to store by TCP as between machines; on one node they stay where they
are. MB/s are of what is carried, before compression. Nothing else should run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

from benchmarks.link import ACTORS, CASES, ENVS, SKIPPED_SECS, linked

CASE = "rollouts of Pong"
STEPS = 20 * ENVS
UNDER_WAY = 2


def rollout() -> dict[str, np.ndarray]:
    """What an actor of `async` puts: all observations, and what goes with them."""
    seen = CASES[CASE]().obs
    obs = seen[np.arange(21 * ENVS) % len(seen)].reshape(21, ENVS, *seen.shape[1:])
    names = ("action", "reward", "discount", "value", "log_prob", "start")
    return {"obs": obs} | {name: np.zeros((20, ENVS), np.float32) for name in names}


class Learner:
    """Takes rollouts, and counts them."""

    def __init__(self) -> None:
        self.batch = {name: np.empty_like(array) for name, array in rollout().items()}
        self.taken = 0

    def take(self, item: dict[str, np.ndarray]) -> None:
        """Copy one into the batch, as the link does."""
        for name, array in item.items():
            self.batch[name][...] = array
        self.taken += 1

    def count(self) -> int:
        """Rollouts so far."""
        return self.taken


class Actor:
    """Puts rollouts for as long as it is let."""

    def put_for(self, learner: Any, secs: float) -> None:
        """Two under way at a time."""
        item, end = rollout(), time.perf_counter() + secs
        waiting: list[Any] = []
        while time.perf_counter() < end:
            waiting.append(learner.take.remote(ray.put(item)))
            if len(waiting) >= UNDER_WAY:
                _, waiting = ray.wait(waiting, num_returns=1)


def by_ray(secs: float) -> tuple[float, float]:
    """MB/s and environment steps/s, on the cluster that is there."""
    learner = ray.remote(Learner).options(num_cpus=1, resources={"learner": 1}).remote()
    place = {"num_cpus": 1, "resources": {"actor": 1}}
    actors = [ray.remote(Actor).options(**place).remote() for _ in range(ACTORS)]
    ray.get(learner.count.remote())
    ends = [actor.put_for.remote(learner, secs + 3 * SKIPPED_SECS) for actor in actors]
    time.sleep(2 * SKIPPED_SECS)
    before, begun = ray.get(learner.count.remote()), time.perf_counter()
    time.sleep(secs)
    rate = (ray.get(learner.count.remote()) - before) / (time.perf_counter() - begun)
    ray.get(ends)
    for actor in (learner, *actors):
        ray.kill(actor)
    num_bytes = sum(array.nbytes for array in rollout().values())
    return rate * num_bytes / 1e6, rate * STEPS


def on_nodes(num: int, secs: float, rounds: int) -> list[tuple[float, float]]:
    """The learner on the first of one or two nodes, the actors on the last."""
    first = {"learner": 1} | ({"actor": ACTORS} if num == 1 else {})
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 4, "resources": first, "include_dashboard": False},
    )
    if num == 2:
        cluster.add_node(num_cpus=4, resources={"actor": ACTORS})
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        return [by_ray(secs) for _ in range(rounds)]
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    found = {
        "network link, compressed": [linked(CASE, True, given.secs) for _ in range(given.rounds)],
        "network link, plain": [linked(CASE, False, given.secs) for _ in range(given.rounds)],
        "Ray's object store, two nodes": on_nodes(2, given.secs, given.rounds),
        "Ray's object store, one node": on_nodes(1, given.secs, given.rounds),
    }
    print(f"Ray {ray.__version__}, {CASE}, {ACTORS} actors\n")
    print("| by | MB/s | lowest to highest | steps/s |")
    print("|---|---|---|---|")
    for name, rates in found.items():
        bytes_each, steps_each = (list(each) for each in zip(*rates, strict=True))
        spread = f"{min(bytes_each):,.0f} to {max(bytes_each):,.0f}"
        middle = statistics.median(bytes_each)
        print(f"| {name} | {middle:,.0f} | {spread} | {statistics.median(steps_each):,.0f} |")


if __name__ == "__main__":
    main()
