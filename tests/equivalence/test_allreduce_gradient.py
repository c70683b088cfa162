"""N workers of B environments learn what one process with N * B environments learns.

Tolerance as in test_sync_gradient: float32, other orders of addition; 1e-5 through three updates.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rookery.core.update import Update
from rookery.formations.allreduce import AllreduceConfig
from rookery.roles.evaluator import EvalConfig
from rookery.roles.worker import Worker
from rookery.runs.config import RunConfig
from rookery.transport.eventfd import EventFd
from tests.equivalence.test_sync_gradient import ATOL, CORES, B, Formation, N, one, run_config
from tests.wired import Crew

UPDATES = 3


def config_of(name: str, core: str) -> RunConfig:
    config = run_config(name, core, N, B)
    whole: dict[str, Any] = {"num_minibatches": 1} if name == "ppo" else {}
    algo = replace(config.algo_config, **whole)
    formation = AllreduceConfig(num_actors=N, check_every=1)
    return replace(
        config,
        algo_config=algo,
        formation="allreduce",
        formation_config=formation,
        eval=EvalConfig(episodes=0),
    )


def workers_of(config: RunConfig) -> list[Worker]:
    crew = Crew(config, wakeups={"worker": [EventFd.create() for _ in range(N)]})
    workers: list[Worker] = crew.roles("worker")
    for worker in workers:
        worker.group.timeout_secs = 60.0  # type: ignore[attr-defined]
        worker.start()
    return workers


def step_all(workers: list[Worker]) -> list[Update]:
    """One update of every worker, each in a thread."""
    updates: list[Any] = [None] * len(workers)

    def step(rank: int) -> None:
        updates[rank] = workers[rank].step()

    threads = [threading.Thread(target=step, args=(rank,)) for rank in range(len(workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return updates


def reference(name: str, core: str) -> Formation:
    formation = one(name, core)
    if name == "ppo":
        algorithm = formation.learner.algorithm
        algorithm.config = replace(algorithm.config, num_minibatches=1)  # type: ignore[call-arg]
    return formation


@pytest.mark.slow
@CORES
@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_workers_and_one_process_with_all_their_environments_learn_the_same(
    name: str, core: str
) -> None:
    workers, alone = workers_of(config_of(name, core)), reference(name, core)
    for _ in range(UPDATES):
        alone.act()
        ended = alone.block.batch.episode_length > 0
        lengths = sorted(alone.block.batch.episode_length[ended].tolist())
        alone.learn()
        updates = step_all(workers)
        assert {update.steps for update in updates} == {alone.learner.steps}
        assert sorted(updates[0].lengths.tolist()) == lengths
        grads = [worker.learner.flat.grad.numpy() for worker in workers]
        np.testing.assert_allclose(grads[0], alone.learner.flat.grad.numpy(), atol=ATOL)
        assert np.abs(grads[0]).max() > 1e-3
        mine, theirs = workers[0].learner.flat.tensors(), alone.learner.flat.tensors()
        for part, tensor in theirs.items():
            torch.testing.assert_close(mine[part], tensor, atol=ATOL, rtol=1e-5)
        for other in workers[1:]:
            for part, tensor in other.learner.flat.tensors().items():
                assert torch.equal(tensor, mine[part]), part  # to the bit


def test_weights_that_come_apart_are_noticed_by_all() -> None:
    workers = workers_of(config_of("a2c", "none"))
    step_all(workers)
    workers[1].learner.flat.data[3] += 1e-6
    said: list[str] = []

    def check(worker: Worker) -> None:
        try:
            worker.learner.check_agreement()
        except Exception as error:
            said.append(str(error))

    threads = [threading.Thread(target=check, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == N
    assert all("the weights of worker-1 differ from worker-0's after update 1" in s for s in said)
