"""What hogwild workers share: counts, statistics, weights, and what they tell."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from rookery.core.errors import RunFailed
from rookery.core.patience import Patience
from rookery.core.spec import zeros
from rookery.nets.normalizer import RunningMoments
from rookery.params.flat import FlatParams
from rookery.params.hogwild import APPLIED, HogwildMemory, HogwildOptimizer, hogwild_specs
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig
from rookery.roles.tally import Tally
from rookery.transport import ring
from rookery.transport.reports import Reports, ReportsPort
from rookery.transport.ring import Rings, ring_specs
from tests.wired import ends

SHAPE = (3,)


def memory_of(
    num_workers: int, config: OptimizerConfig, num_params: int = 15, *, shared: bool = True
) -> HogwildMemory:
    moments = {"obs": SHAPE}
    specs = hogwild_specs(num_workers, num_params, config, moments, shared_statistics=shared)
    return HogwildMemory(zeros(specs))


def small_net() -> FlatParams:
    torch.manual_seed(0)
    return FlatParams(torch.nn.Linear(4, 3))


# --- rings -----------------------------------------------------------------------------------


def test_rows_come_once_and_in_the_order_of_each_writer() -> None:
    rings = Rings(zeros(ring_specs(2, 4, 3)))
    taken: list[list[float]] = []
    for turn in range(10):
        rings.push(0, np.array([turn, 0.5]))
        if turn % 3 == 0:
            rings.push(1, np.array([100.0 + turn, 1.0, 2.0]))
        if turn % 2:
            taken += rings.take().tolist()
    assert [row[0] for row in taken if row[0] < 100] == list(range(10))
    assert [row[0] for row in taken if row[0] >= 100] == [100, 103, 106, 109]
    assert rings.take().shape == (0, 3)


def reports(num_workers: int = 1) -> tuple[list[Reports], Reports]:
    return ends(ReportsPort(num_workers, 2), replicas=num_workers)


def test_more_episodes_than_a_ring_holds_come_with_their_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker tells an update after its episodes; who hears must not wait for that."""
    monkeypatch.setattr("rookery.transport.reports.EPISODES_KEPT", 8)
    (worker_end,), session_end = reports()
    tally = Tally(session_end, (), lambda told: (0, 0))

    def tell() -> None:
        episodes = np.array([[number, 10.0] for number in range(50)])
        worker_end.report({"train/loss": 1.0}, episodes)

    worker = threading.Thread(target=tell, daemon=True)
    worker.start()
    heard, patience = None, Patience(30.0)
    while heard is None and not patience.over():
        heard = tally.take() if tally.waiting() else None
    worker.join(30.0)
    assert heard is not None
    assert heard.returns.tolist() == list(range(50))
    assert tally.take() is None


def test_a_full_ring_makes_its_writer_wait_and_loses_nothing() -> None:
    rings = Rings(zeros(ring_specs(1, 8, 1)))

    def write() -> None:
        for number in range(500):
            rings.push(0, np.array([number]))

    thread = threading.Thread(target=write)
    thread.start()
    taken: list[float] = []
    while len(taken) < 500:
        taken += rings.take()[:, 0].tolist()
    thread.join()
    assert taken == list(range(500))


def test_a_ring_that_nobody_reads_is_an_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "FULL_TIMEOUT_SECS", 0.05)
    rings = Rings(zeros(ring_specs(1, 2, 1)))
    for number in range(2):
        rings.push(0, np.array([number]))
    with pytest.raises(RunFailed, match=r"worker-0 told 2 things that nobody read"):
        rings.push(0, np.array([2]))


# --- statistics ------------------------------------------------------------------------------


def samples(seed: int, count: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(3.0, 2.0, (count, *SHAPE)).astype(np.float32))


def test_merged_statistics_are_those_of_all_samples() -> None:
    memory = memory_of(3, OptimizerConfig())
    pools = [memory.pool("obs", SHAPE, worker) for worker in range(3)]
    seen = []
    for turn in range(9):
        worker = turn % 3
        seen.append(samples(turn, 5 + turn))
        merged = pools[worker].add(seen[-1])
    everything = torch.cat(seen).double()
    assert float(merged.count) == len(everything)
    torch.testing.assert_close(merged.mean, everything.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(merged.var, everything.var(0, unbiased=False), rtol=1e-9, atol=0)


def test_one_worker_has_the_statistics_it_would_have_alone_to_the_bit() -> None:
    alone, pooled = RunningMoments(SHAPE), RunningMoments(SHAPE)
    pooled.pool = memory_of(1, OptimizerConfig()).pool("obs", SHAPE, 0)
    for turn in range(20):
        alone.update(samples(turn, 7))
        pooled.update(samples(turn, 7))
    for mine, theirs in zip(alone.moments, pooled.moments, strict=True):
        assert torch.equal(mine, theirs)


def test_a_replacement_goes_on_and_half_a_page_is_never_read() -> None:
    memory = memory_of(2, OptimizerConfig())
    first = memory.pool("obs", SHAPE, 0)
    first.add(samples(0, 10))
    unread = (int(first.turns[0]) + 1) % 2
    first.pages[0, unread] = np.nan  # killed while it wrote
    replacement = memory.pool("obs", SHAPE, 0)
    merged = replacement.add(samples(1, 30))
    assert float(merged.count) == 40
    assert torch.isfinite(merged.mean).all()


# --- the optimizer ---------------------------------------------------------------------------


CONFIGS: list[dict[str, Any]] = [{}, {"amsgrad": True}, {"name": "rmsprop"}]


@pytest.mark.parametrize("settings", CONFIGS)
@pytest.mark.parametrize("shared", [True, False])
def test_one_worker_steps_as_it_would_alone_to_the_bit(
    settings: dict[str, Any], shared: bool
) -> None:
    config = OptimizerConfig(**settings)
    alone, own = small_net(), small_net()
    memory = memory_of(1, config, shared=shared)
    memory.weights.copy_(own.data)
    plain, hogwild = FlatOptimizer(config, alone), HogwildOptimizer(config, own, memory, 0)
    for turn in range(30):
        gradient = torch.from_numpy(np.random.default_rng(turn).normal(size=15).astype(np.float32))
        for params, optimizer in ((alone, plain), (own, hogwild)):
            params.grad.copy_(gradient)
            optimizer.step(1e-2)
    assert torch.equal(alone.data, own.data)
    assert torch.equal(alone.data, memory.weights)
    for name, state in plain.state_tensors().items():
        assert torch.equal(state, hogwild.state_tensors()[name]), name


def test_staleness_counts_what_others_applied_meanwhile() -> None:
    config = OptimizerConfig()
    memory = memory_of(3, config)
    workers = [HogwildOptimizer(config, small_net(), memory, worker) for worker in range(3)]
    for worker in workers:
        worker.params.grad.fill_(0.1)
        worker.pull()
    for index in (0, 1, 2, 0, 0, 2):
        workers[index].step(1e-3)
    assert [worker.staleness for worker in workers] == [[0, 2, 0], [1], [2, 2]]
    assert memory.total(APPLIED) == 6
    assert memory.ledger[:, APPLIED].tolist() == [3, 1, 2, 0]


def test_a_gradient_that_is_not_finite_is_not_applied() -> None:
    config = OptimizerConfig()
    memory, net = memory_of(1, config), small_net()
    memory.weights.copy_(net.data)
    before = memory.weights.clone()
    optimizer = HogwildOptimizer(config, net, memory, 0)
    net.grad.fill_(float("nan"))
    assert not torch.isfinite(optimizer.step(1e-3))
    assert torch.equal(memory.weights, before)
    assert memory.total(APPLIED) == 0


def test_private_statistics_are_each_workers_own() -> None:
    config = OptimizerConfig()
    memory = memory_of(2, config, shared=False)
    for worker, slope in ((0, 1.0), (1, -3.0)):
        optimizer = HogwildOptimizer(config, small_net(), memory, worker)
        optimizer.params.grad.fill_(slope)
        optimizer.step(1e-3)
    first, second = (memory.statistics(worker)["exp_avg"] for worker in range(2))
    assert (first > 0).all()
    assert (second < 0).all()
    memory.spread_statistics()
    assert torch.equal(memory.statistics(1)["exp_avg"], first)


def test_names_of_metrics_travel() -> None:
    (worker,), session = reports()
    assert session.names() == []
    worker.report({"train/loss": 1.0, "train/lr": 2.0}, np.empty((0, 2)))
    assert session.names() == ["train/loss", "train/lr"]
    assert session.updates.take()[0, :2].tolist() == [1.0, 2.0]
