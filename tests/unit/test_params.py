"""Parameters as one vector, optimizers over it, and weights in shared memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rookery.carriers.shared_memory import SharedArena
from rookery.core.errors import RunFailed, UserError
from rookery.core.schedule import LinearSchedule
from rookery.core.spec import ArraySpec, zeros
from rookery.nets.normalizer import RunningMoments
from rookery.params.flat import FlatParams
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig, parts_between
from rookery.transport import weights
from rookery.transport.weights import WeightsCell, WeightsPort
from tests.wired import got


class Net(nn.Module):
    """Matrices, a kernel, a bare vector, and buffers of two dtypes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(4, 7)
        self.conv = nn.Conv1d(1, 3, 2)
        self.scale = nn.Parameter(torch.randn(3))
        self.moments = RunningMoments((4,))

    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(self.moments.normalize(values)))
        out: Tensor = self.conv(hidden[:, None]).mean(-1) * self.scale
        return out


def loss(net: nn.Module, seed: int) -> Tensor:
    values = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
    out: Tensor = (net(values) - values[:, :3]).square().sum(1).mean()
    return out


# --- one vector ------------------------------------------------------------------------------


def test_parameters_and_gradients_are_views_of_two_vectors() -> None:
    net = Net()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    flat = FlatParams(net)
    assert flat.data.numel() == flat.grad.numel() == sum(p.numel() for p in before)
    offset = 0
    for parameter, old in zip(net.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old, rtol=0, atol=0)
        assert parameter.data_ptr() == flat.data[offset:].data_ptr()
        assert parameter.grad is not None
        assert parameter.grad.data_ptr() == flat.grad[offset:].data_ptr()
        offset += parameter.numel()
    flat.data.fill_(0.5)
    assert all(bool((parameter == 0.5).all()) for parameter in net.parameters())


def test_gradients_add_up_in_the_vector_until_they_are_cleared() -> None:
    net, plain = Net(), Net()
    flat = FlatParams(net)
    for _ in range(2):
        plain.zero_grad()
        loss(plain, 1).backward()  # type: ignore[no-untyped-call]
        flat.zero_grad()
        loss(net, 1).backward()  # type: ignore[no-untyped-call]
    expected = torch.cat([p.grad.flatten() for p in plain.parameters() if p.grad is not None])
    torch.testing.assert_close(flat.grad, expected)
    loss(net, 1).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(flat.grad, 2 * expected)


def test_loading_makes_another_module_the_same() -> None:
    net = Net(seed=1)
    source, target = FlatParams(net), FlatParams(Net(seed=2))
    net.moments.update(torch.randn(9, 4))
    views = [parameter.data_ptr() for parameter in target.module.parameters()]
    target.load(source.tensors())
    ours, theirs = target.module.state_dict(), source.module.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
    assert views == [parameter.data_ptr() for parameter in target.module.parameters()]
    assert set(source.tensors()) == {
        "params",
        "buffer.moments.mean",
        "buffer.moments.var",
        "buffer.moments.count",
    }


@pytest.mark.parametrize("max_norm", [0.01, 1e3])
def test_clipping_equals_torch(max_norm: float) -> None:
    net, plain = Net(), Net()
    flat = FlatParams(net)
    loss(net, 0).backward()  # type: ignore[no-untyped-call]
    loss(plain, 0).backward()  # type: ignore[no-untyped-call]
    norm = flat.clip_grad_norm(max_norm)
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
    torch.testing.assert_close(norm, expected)
    grads = torch.cat([p.grad.flatten() for p in plain.parameters() if p.grad is not None])
    torch.testing.assert_close(flat.grad, grads)


# --- optimizers ------------------------------------------------------------------------------

CONFIGS = {
    "adam": OptimizerConfig(max_grad_norm=None),
    "adam clipped": OptimizerConfig(max_grad_norm=0.5, eps=1e-3, betas=(0.8, 0.95)),
    "amsgrad": OptimizerConfig(amsgrad=True, betas=(0.5, 0.6)),
    "rmsprop": OptimizerConfig(name="rmsprop", max_grad_norm=None, alpha=0.9),
    "rmsprop clipped": OptimizerConfig(name="rmsprop", max_grad_norm=0.3, eps=1e-3),
    "sgd": OptimizerConfig(name="sgd", max_grad_norm=None),
    "sgd clipped": OptimizerConfig(name="sgd", max_grad_norm=0.3),
    "momentum": OptimizerConfig(name="momentum", max_grad_norm=None, momentum=0.8),
    "adagrad": OptimizerConfig(name="adagrad", max_grad_norm=None, eps=1e-8),
    "adagrad clipped": OptimizerConfig(name="adagrad", max_grad_norm=0.3, eps=1e-3),
    "adadelta": OptimizerConfig(name="adadelta", max_grad_norm=None, rho=0.8, eps=1e-2),
}


def torch_optimizer(config: OptimizerConfig, net: nn.Module) -> torch.optim.Optimizer:
    of, eps = list(net.parameters()), config.eps
    theirs: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adam": lambda: torch.optim.Adam(of, betas=config.betas, eps=eps, amsgrad=config.amsgrad),
        "rmsprop": lambda: torch.optim.RMSprop(of, alpha=config.alpha, eps=eps),
        "sgd": lambda: torch.optim.SGD(of),
        "momentum": lambda: torch.optim.SGD(of, momentum=config.momentum),
        "adagrad": lambda: torch.optim.Adagrad(of, eps=eps),
        "adadelta": lambda: torch.optim.Adadelta(of, rho=config.rho, eps=eps),
    }
    return theirs[config.name]()


@pytest.mark.parametrize("name", list(CONFIGS))
def test_steps_over_the_vector_equal_those_of_torch_per_parameter(name: str) -> None:
    """Twelve steps under a changing learning rate; float32, so to 1e-6."""
    config = CONFIGS[name]
    net, plain = Net(), Net()
    flat = FlatParams(net)
    ours, theirs = FlatOptimizer(config, flat), torch_optimizer(config, plain)
    start = flat.data.clone()
    for step in range(12):
        lr = 0.01 / (1 + step)
        flat.zero_grad()
        loss(net, step).backward()  # type: ignore[no-untyped-call]
        norm = ours.step(lr)
        theirs.zero_grad()
        loss(plain, step).backward()  # type: ignore[no-untyped-call]
        max_norm = config.max_grad_norm or float("inf")
        expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
        theirs.param_groups[0]["lr"] = lr
        theirs.step()
        torch.testing.assert_close(norm, expected, rtol=1e-5, atol=1e-6)
    weights = torch.cat([parameter.detach().flatten() for parameter in plain.parameters()])
    torch.testing.assert_close(flat.data, weights, rtol=1e-5, atol=1e-6)
    assert float((flat.data - start).abs().max()) > 1e-3


def test_weights_that_get_no_gradient_stay_where_they_are() -> None:
    """Their averages sink to zero by numbers that are not normal."""
    flat = FlatParams(nn.Linear(3, 1))
    optimizer = FlatOptimizer(OptimizerConfig(name="rmsprop", alpha=0.5, eps=1e-8), flat)
    flat.grad.fill_(1.0)
    optimizer.step(0.1)
    moved, average = flat.data.clone(), optimizer.state["square_avg"]
    sizes = set()
    for _ in range(160):
        flat.zero_grad()
        optimizer.step(0.1)
        sizes.add(float(average[0]))
    assert any(0.0 < size < 1e-38 for size in sizes)
    assert float(average.max()) == 0.0
    assert torch.equal(flat.data, moved)
    flat.grad.fill_(1e-3)
    optimizer.step(0.1)
    torch.testing.assert_close(moved - flat.data, torch.full_like(moved, 0.1 * 2**0.5))


def test_amsgrad_is_not_plain_adam() -> None:
    """The gate above would not see a forgotten maximum if gradients only grew."""
    ends = []
    for amsgrad in (False, True):
        flat = FlatParams(Net())
        config = OptimizerConfig(amsgrad=amsgrad, betas=(0.5, 0.6), max_grad_norm=None)
        optimizer = FlatOptimizer(config, flat)
        for scale in (1.0, 0.1, 0.1):
            flat.grad.fill_(scale)
            optimizer.step(0.01)
        ends.append(flat.data.clone())
    assert not torch.allclose(ends[0], ends[1])


@pytest.mark.parametrize("name", list(CONFIGS))
def test_an_optimizer_goes_on_from_its_saved_state(name: str) -> None:
    """Stopped after three steps and loaded anew, three more are bit for bit the same."""
    config = CONFIGS[name]

    def train(flat: FlatParams, optimizer: FlatOptimizer, seeds: range) -> None:
        for seed in seeds:
            flat.zero_grad()
            loss(flat.module, seed).backward()  # type: ignore[no-untyped-call]
            optimizer.step(0.01)

    flat = FlatParams(Net())
    optimizer = FlatOptimizer(config, flat)
    train(flat, optimizer, range(3))
    saved = {k: v.clone() for k, v in optimizer.state_tensors().items()}
    weights = {k: v.clone() for k, v in flat.tensors().items()}
    train(flat, optimizer, range(3, 6))

    other = FlatParams(Net(seed=9))
    other.load(weights)
    resumed = FlatOptimizer(config, other)
    resumed.load_state_tensors(saved)
    train(other, resumed, range(3, 6))
    assert torch.equal(flat.data, other.data)
    for key, value in optimizer.state_tensors().items():
        assert torch.equal(resumed.state_tensors()[key], value), key


def test_a_loaded_state_is_a_copy() -> None:
    flat = FlatParams(Net())
    optimizer = FlatOptimizer(OptimizerConfig(), flat)
    saved = {k: v.clone() for k, v in optimizer.state_tensors().items()}
    optimizer.load_state_tensors(saved)
    flat.grad.fill_(1.0)
    optimizer.step(0.1)
    assert not any(value.any() for value in saved.values())


def test_the_state_of_another_network_is_refused() -> None:
    small = FlatOptimizer(OptimizerConfig(), FlatParams(nn.Linear(2, 2)))
    with pytest.raises(UserError, match="belongs to another network"):
        FlatOptimizer(OptimizerConfig(), FlatParams(Net())).load_state_tensors(
            small.state_tensors()
        )


@pytest.mark.parametrize("other", [OptimizerConfig(amsgrad=True), OptimizerConfig(name="rmsprop")])
def test_the_state_of_another_optimizer_is_refused(other: OptimizerConfig) -> None:
    saved = FlatOptimizer(OptimizerConfig(), FlatParams(Net())).state_tensors()
    with pytest.raises(UserError, match=r"keep optimizer\.name and optimizer\.amsgrad"):
        FlatOptimizer(other, FlatParams(Net())).load_state_tensors(saved)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"lr": -1e-3}, "optimizer.lr: -0.001 is below 0"),
        ({"lr": float("nan")}, "optimizer.lr"),
        ({"lr": LinearSchedule(start=1e-3, end=-1e-3, until_steps=10)}, "optimizer.lr"),
        ({"max_grad_norm": 0.0}, "null switches clipping off"),
        ({"betas": (0.9, 1.0)}, "betas, alpha"),
        ({"alpha": -0.1}, "betas, alpha"),
        ({"momentum": 1.0}, "momentum"),
        ({"rho": -0.1}, "rho"),
    ],
)
def test_optimizers_that_cannot_be_are_refused(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        OptimizerConfig(**bad)
    assert said in str(caught.value)


# --- shared memory ---------------------------------------------------------------------------


def params(fill: float) -> dict[str, Tensor]:
    return {
        "params": torch.full((1000,), fill),
        "buffer.count": torch.full((), fill, dtype=torch.float64),
        "buffer.flags": torch.full((2, 3), fill > 0),
    }


def specs() -> dict[str, ArraySpec]:
    like = {
        name: ArraySpec(tuple(value.shape), value.numpy().dtype)
        for name, value in params(0.0).items()
    }
    return WeightsPort(like).layout()


def cell() -> WeightsCell:
    return WeightsCell(zeros(specs()))


def assert_params(found: dict[str, Tensor], fill: float) -> None:
    assert found.keys() == params(fill).keys()
    for name, value in params(fill).items():
        assert torch.equal(found[name], value)
        assert found[name].dtype == value.dtype


def test_what_is_published_is_got_once() -> None:
    shared = cell()
    assert got(shared) is None, "nothing was published yet"
    shared.publish(0, params(1.5))
    found = got(shared, newer_than=-1)
    assert found is not None
    assert found[0] == 0
    assert_params(found[1], 1.5)
    assert got(shared, newer_than=0) is None
    shared.publish(3, params(2.5))
    found = got(shared, newer_than=0)
    assert found is not None
    assert found[0] == 3
    assert_params(found[1], 2.5)


def test_what_was_got_does_not_change_when_more_is_published() -> None:
    shared = cell()
    shared.publish(0, params(1.0))
    found = got(shared, newer_than=-1)
    shared.publish(1, params(2.0))
    assert found is not None
    assert_params(found[1], 1.0)


def test_both_ends_may_be_different_objects_over_the_same_memory() -> None:
    arena = SharedArena.create(specs())
    writer, reader = WeightsCell(arena.arrays), WeightsCell(arena.arrays)
    arena.close()
    writer.publish(7, params(1.0))
    found = got(reader, newer_than=6)
    assert found is not None
    assert found[0] == 7
    assert_params(found[1], 1.0)


def test_a_reader_waits_while_the_writer_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An odd sequence number: half of the weights are old. The reader looks again."""
    shared = cell()
    shared.publish(0, params(1.0))
    shared.header[0] += 1
    shared.values["params"][:500] = 2.0
    slept = 0

    def finish(_: float) -> None:
        nonlocal slept
        slept += 1
        if slept == 3:
            shared.header[0] -= 1
            shared.publish(1, params(2.0))

    monkeypatch.setattr("rookery.transport.weights.time.sleep", finish)
    found = got(shared, newer_than=-1)
    assert slept == 3
    assert found is not None
    assert found[0] == 1
    assert_params(found[1], 2.0)


class Overtaken:
    """A copy's destination: the writer publishes anew while it is being filled."""

    def __init__(self, shared: WeightsCell, into: Tensor) -> None:
        self.shared = shared
        self.into = into
        self.copies = 0

    def copy_(self, value: Tensor) -> None:
        self.into.copy_(value)
        self.copies += 1
        if self.copies == 1:
            self.shared.publish(2, params(9.0))


def test_a_copy_that_was_overtaken_is_made_again() -> None:
    shared = cell()
    shared.publish(1, params(1.0))
    into = params(0.0)
    overtaken: Any = Overtaken(shared, into["params"])
    assert shared.get(0, into | {"params": overtaken}) == 2
    assert overtaken.copies == 2
    assert_params(into, 9.0)


def test_a_writer_that_died_while_writing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "READ_TIMEOUT_SECS", 0.01)
    shared = cell()
    shared.header[0] += 1
    with pytest.raises(RunFailed, match="the learner died while publishing"):
        got(shared, newer_than=-1)


def test_a_reader_never_sees_weights_of_two_versions() -> None:
    arena = SharedArena.create(specs())
    writer, reader = WeightsCell(arena.arrays), WeightsCell(arena.arrays)
    arena.close()
    enough = threading.Event()

    def write() -> None:
        version = 0
        while not enough.is_set():
            writer.publish(version, params(float(version)))
            version += 1

    thread = threading.Thread(target=write)
    thread.start()
    newest, seen = -1, 0
    try:
        while seen < 40:
            found = got(reader, newer_than=newest)
            if found is not None:
                assert found[0] > newest
                newest = found[0]
                assert_params(found[1], float(newest))
                seen += 1
    finally:
        enough.set()
        thread.join()


def test_the_memory_is_laid_out_by_the_specs() -> None:
    layout = specs()
    assert layout["value/params"].shape == (1000,)
    assert layout["value/buffer.count"].dtype == np.float64
    assert layout["value/buffer.flags"].dtype == np.bool_


def test_weights_are_copied_straight_into_the_vector_of_the_network() -> None:
    shared = cell()
    shared.publish(4, params(3.0))
    into = params(0.0)
    places = {name: value.data_ptr() for name, value in into.items()}
    assert shared.get(3, into) == 4
    assert_params(into, 3.0)
    assert {name: value.data_ptr() for name, value in into.items()} == places


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 10, [(0, 2, 1.0), (2, 4, 0.5), (4, 7, 1.0), (7, 9, 3.0), (9, 10, 1.0)]),
        (3, 8, [(3, 4, 0.5), (4, 7, 1.0), (7, 8, 3.0)]),
        (4, 7, [(4, 7, 1.0)]),
        (2, 4, [(2, 4, 0.5)]),
        (5, 5, []),
    ],
)
def test_a_vector_is_cut_where_rates_change(
    start: int, stop: int, expected: list[tuple[int, int, float]]
) -> None:
    scales = [(slice(7, 9), 3.0), (slice(2, 4), 0.5)]
    found = parts_between(start, stop, scales)
    assert [(part.start, part.stop, scale) for part, scale in found] == expected
