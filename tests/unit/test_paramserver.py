"""Parameter servers: rounds, arrivals, late and stale gradients, who comes back, what is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rookery.core.errors import UserError
from rookery.core.ports import End
from rookery.core.spec import zeros
from rookery.formations.paramserver import ParamserverConfig
from rookery.params.compression import Compression
from rookery.params.optimizer import OptimizerConfig
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_python
from rookery.roles.parameter_server import (
    Arrivals,
    PartOptimizer,
    Rounds,
    Rule,
    Shard,
    kept_specs,
    parts_of,
)
from rookery.transport.shards import APPLIED, LATE, REFUSED, WEIGHTS, Answer, ShardClient, ShardPort
from tests.wired import Crew

NUM = 5
WHOLE = Compression()
SGD = OptimizerConfig(name="sgd", max_grad_norm=None)


class Scene:
    """One shard and the workers around it, in one thread."""

    def __init__(
        self,
        rule: Callable[[Callable[[str], None]], Rule],
        workers: int = 3,
        *,
        optimizer: OptimizerConfig = SGD,
        compression: Compression = WHOLE,
    ) -> None:
        self.port = ShardPort(workers, NUM, compression, {})
        self.arrays, self.optimizer = zeros(self.port.layout()), optimizer
        self.said: list[str] = []
        self.kept = {
            name: torch.from_numpy(array)
            for name, array in zeros(kept_specs(NUM, optimizer, {})).items()
        }
        self.clients = [self.client(worker) for worker in range(workers)]
        self.weights = [torch.full((NUM,), torch.nan) for _ in range(workers)]
        self.rule = rule(self.said.append)
        self.shard, self.lost = self.serve()
        for worker in range(workers):
            self.pull(worker)
        self.turn()
        for worker in range(workers):
            assert self.take(worker) is not None

    def client(self, worker: int) -> ShardClient:
        return self.port.client(End(self.arrays, worker)).of_length(NUM)

    def serve(self) -> tuple[Shard, int]:
        """A server in the place of the one before; how many updates it has lost."""
        server = self.port.server(End(self.arrays)).of_length(NUM)
        optimizer = PartOptimizer(self.optimizer, NUM)
        shard = Shard(server, optimizer, {}, start_steps=100, warn=self.said.append)
        return shard, shard.load(self.kept, slice(0, NUM))

    def keep(self) -> None:
        self.kept = {
            name: torch.from_numpy(np.array(array)) for name, array in self.shard.kept().items()
        }

    def pull(self, worker: int) -> None:
        if self.clients[worker].lost() or self.clients[worker].version < 0:
            self.clients[worker].pull()

    def push(self, worker: int, value: float | Tensor, *, weight: float = 1.0) -> None:
        gradient = torch.full((NUM,), value) if isinstance(value, float) else value
        self.clients[worker].push(gradient, lr=1.0, weight=weight)

    def turn(self) -> None:
        for request in self.shard.take():
            self.rule.hear(self.shard, request)
        self.rule.go_on(self.shard)

    def take(self, worker: int) -> Answer | None:
        """What the worker is told, once it is answered."""
        if self.clients[worker].waits():
            return None
        return self.clients[worker].take(self.weights[worker])

    def outcome(self, worker: int) -> tuple[int, int]:
        answer = self.take(worker)
        assert answer is not None
        return answer.outcome, answer.staleness


def rounds(num_gradients: int | None = None, patience_secs: float = 1e6, workers: int = 3) -> Any:
    return lambda warn: Rounds(
        workers, num_gradients=num_gradients, patience_secs=patience_secs, warn=warn
    )


def arrivals(**given: Any) -> Any:
    return lambda warn: Arrivals(**{"max_staleness": None, "damping": 0.0} | given)


# --- rounds --------------------------------------------------------------------------------------


def test_a_round_steps_with_the_mean_of_all_gradients_weighed_by_their_samples() -> None:
    scene = Scene(rounds())
    for worker, (value, weight) in enumerate([(1.0, 1.0), (2.0, 2.0), (4.0, 5.0)]):
        scene.push(worker, value, weight=weight)
        scene.turn()
        assert (scene.take(worker) is None) == (worker < 2), "all wait for the last"
    assert [scene.outcome(worker) for worker in range(3)] == [(APPLIED, 0)] * 3
    for weights in scene.weights:
        torch.testing.assert_close(weights, torch.full((NUM,), -25.0 / 8.0))
    assert [client.version for client in scene.clients] == [1, 1, 1]


def test_the_first_gradients_make_the_update_and_late_ones_are_dropped_and_counted() -> None:
    scene = Scene(rounds(num_gradients=2))
    scene.push(2, 1.0)
    scene.turn()
    scene.push(0, 3.0)
    scene.turn()
    assert [scene.outcome(worker) for worker in (0, 2)] == [(APPLIED, 0)] * 2
    scene.push(1, 100.0)
    scene.turn()
    assert scene.outcome(1) == (LATE, 1)
    assert scene.rule.late == 1
    torch.testing.assert_close(scene.weights[1], torch.full((NUM,), -2.0))
    scene.push(1, 1.0)  # of the newest weights now
    scene.push(0, 1.0)
    scene.turn()
    assert scene.outcome(1) == (APPLIED, 0)


def test_what_comes_at_once_beyond_the_first_is_late() -> None:
    scene = Scene(rounds(num_gradients=2))
    for worker in range(3):
        scene.push(worker, 1.0)
    scene.turn()
    told = [scene.outcome(worker) for worker in range(3)]
    assert sorted(told) == [(APPLIED, 0), (APPLIED, 0), (LATE, 1)]
    torch.testing.assert_close(scene.weights[0], torch.full((NUM,), -1.0))


def test_fewer_workers_than_gradients_are_told_once() -> None:
    scene = Scene(rounds(num_gradients=5, workers=2), workers=2)
    for _ in range(2):
        for worker in range(2):
            scene.push(worker, 1.0)
        scene.turn()
        assert [scene.outcome(worker) for worker in range(2)] == [(APPLIED, 0)] * 2
    assert scene.said == ["updates take 2, not 5, gradients until so many workers are there"]


def test_one_gradient_is_used_as_it_is() -> None:
    scene = Scene(rounds(workers=1), workers=1)
    gradient = torch.randn(NUM, generator=torch.Generator().manual_seed(0))
    scene.push(0, gradient, weight=3.0)
    scene.turn()
    scene.take(0)
    assert torch.equal(scene.weights[0], -gradient)


def test_updates_take_fewer_gradients_while_workers_are_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(rounds(num_gradients=3, patience_secs=1.0))
    clock = iter(np.arange(0.0, 1000.0, 0.4))
    monkeypatch.setattr("rookery.core.patience.time.monotonic", lambda: float(next(clock)))
    scene.push(0, 1.0)
    scene.push(1, 1.0)
    scene.turn()
    assert scene.take(0) is None
    while scene.take(0) is None:
        scene.turn()
    assert scene.rule.waits_for == 2
    (said,) = scene.said
    assert said == (
        "no gradient of worker 2 for 1 s: updates take 2, not 3, gradients until they come back"
    )
    scene.take(1)
    for worker in (0, 1):  # nobody waits for the third any more
        scene.push(worker, 1.0)
    scene.turn()
    assert scene.outcome(0) == (APPLIED, 0)
    scene.take(1)
    scene.push(2, 1.0)
    scene.turn()
    assert scene.outcome(2) == (LATE, 2)
    assert scene.rule.waits_for == 3, "it is back"
    for worker in range(3):
        scene.push(worker, 1.0)
    scene.turn()
    assert [scene.outcome(worker) for worker in range(3)] == [(APPLIED, 0)] * 3
    assert len(scene.said) == 1


def test_a_worker_that_was_replaced_pulls_and_its_gradient_in_flight_is_lost() -> None:
    scene = Scene(rounds(workers=2), workers=2)
    scene.push(0, 50.0)
    scene.turn()
    scene.clients[0] = scene.client(0)  # its next life
    scene.clients[0].pull()
    scene.turn()
    assert scene.take(0) is not None
    for worker in range(2):
        scene.push(worker, 1.0)
    scene.turn()
    assert scene.outcome(1) == (APPLIED, 0)
    torch.testing.assert_close(scene.weights[1], torch.full((NUM,), -1.0))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("rule", [rounds(num_gradients=1), arrivals()])
def test_a_gradient_that_is_not_finite_is_refused(bad: float, rule: Any) -> None:
    scene = Scene(rule)
    scene.push(0, bad)
    scene.turn()
    assert scene.outcome(0) == (REFUSED, 0)
    assert scene.shard.refused == 1
    torch.testing.assert_close(scene.weights[0], torch.zeros(NUM))
    assert scene.said == ["a gradient of worker 0 was not finite and was not used"]


# --- arrivals ------------------------------------------------------------------------------------


def test_each_gradient_is_used_as_it_comes_and_its_age_is_known() -> None:
    scene = Scene(arrivals())
    for worker, age in ((0, 0), (1, 1), (2, 2), (0, 2)):
        scene.push(worker, 1.0)
        scene.turn()
        assert scene.outcome(worker) == (APPLIED, age)
    torch.testing.assert_close(scene.weights[0], torch.full((NUM,), -4.0))


def test_gradients_beyond_the_bound_are_dropped_and_counted() -> None:
    scene = Scene(arrivals(max_staleness=1))
    for worker, told in ((0, (APPLIED, 0)), (1, (APPLIED, 1)), (2, (LATE, 2)), (2, (APPLIED, 0))):
        scene.push(worker, 1.0)
        scene.turn()
        assert scene.outcome(worker) == told
    assert scene.rule.late == 1
    torch.testing.assert_close(scene.weights[2], torch.full((NUM,), -3.0))


def test_older_gradients_count_less_where_that_is_wanted() -> None:
    scene = Scene(arrivals(damping=0.5))
    for worker in range(3):
        scene.push(worker, 1.0)
        scene.turn()
        scene.take(worker)
    expected = -(1 + 2**-0.5 + 3**-0.5)
    torch.testing.assert_close(scene.weights[2], torch.full((NUM,), expected))


# --- who takes a server's place ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adam", "momentum", "adadelta"])
def test_a_server_in_anothers_place_has_lost_only_what_came_after_the_snapshot(name: Any) -> None:
    config = OptimizerConfig(name=name, max_grad_norm=None)
    scene = Scene(arrivals(), optimizer=config)
    other = Scene(arrivals(), optimizer=config)
    draw = torch.Generator().manual_seed(1)
    gradients = [torch.randn(NUM, generator=draw) for _ in range(9)]
    for number, gradient in enumerate(gradients):
        for each in (scene, other) if number not in (4, 5) else (scene,):
            if each is scene and number == 6:  # two updates after the snapshot it is killed
                scene.push(2, 99.0)  # nobody has heard this one
                scene.shard, lost = scene.serve()
                assert lost == 2
                assert scene.take(2) is None
                for worker in range(3):
                    scene.pull(worker)
                scene.turn()
                for worker in range(3):
                    assert scene.take(worker) is not None
            each.push(number % 3, gradient)
            each.turn()
            assert each.take(number % 3) is not None
        if number == 3:
            scene.keep()
    assert torch.equal(scene.shard.optimizer.data, other.shard.optimizer.data)
    assert scene.shard.version == other.shard.version + 3, "no version comes twice"
    assert torch.equal(scene.shard.optimizer.state["step"], other.shard.optimizer.state["step"])


def test_what_was_lost_before_is_not_counted_again() -> None:
    scene = Scene(arrivals(), workers=1)
    for kept, after, lost in ((2, 3, 3), (1, 1, 1), (0, 2, 2)):
        for number in range(kept + after):
            if number == kept and kept:
                scene.keep()
            scene.push(0, 1.0)
            scene.turn()
            assert scene.take(0) is not None
        scene.shard, found = scene.serve()
        assert found == lost
        scene.pull(0)
        scene.turn()
        assert scene.take(0) is not None


def test_who_was_answered_by_a_server_that_died_takes_nothing_of_it() -> None:
    scene = Scene(arrivals())
    scene.push(0, 1.0)
    scene.turn()
    scene.serve()
    assert scene.clients[0].lost()
    assert scene.take(0) is None


def test_steps_are_those_of_the_run_before_and_of_all_workers() -> None:
    scene = Scene(rounds(workers=2), workers=2)
    for worker, steps in ((0, 10), (1, 7)):
        scene.clients[worker].count_steps(steps)
        scene.push(worker, 1.0)
    scene.turn()
    answers = [scene.take(worker) for worker in range(2)]
    assert [answer.steps for answer in answers if answer is not None] == [117, 117]


@pytest.mark.parametrize(("num", "servers", "sizes"), [(17, 5, {3, 4}), (9155, 4, {2288, 2291})])
def test_parts_of_the_weights_cover_all(num: int, servers: int, sizes: set[int]) -> None:
    parts = parts_of(num, servers)
    assert [place for part in parts for place in range(num)[part]] == list(range(num))
    assert {part.stop - part.start for part in parts} == sizes


# --- compression ---------------------------------------------------------------------------------


def test_bf16_rounds_to_three_digits() -> None:
    scene = Scene(arrivals(), compression=Compression("bf16"))
    gradient = torch.tensor([1.0, -2.0, 0.1, 3.14159, 1e-20])
    scene.push(0, gradient)
    scene.turn()
    scene.take(0)
    torch.testing.assert_close(scene.weights[0], -gradient, rtol=2**-8, atol=0)
    assert not torch.equal(scene.weights[0], -gradient)


def test_topk_sends_the_largest_and_what_is_left_out_later() -> None:
    scene = Scene(rounds(workers=1), workers=1, compression=Compression("topk", 0.4))
    gradient = torch.tensor([1.0, -5.0, 0.6, 4.0, 0.0])
    scene.push(0, gradient)
    scene.turn()
    scene.take(0)
    assert torch.equal(scene.weights[0], torch.tensor([0.0, 5.0, 0.0, -4.0, 0.0]))
    scene.push(0, torch.zeros(NUM))
    scene.turn()
    scene.take(0)
    torch.testing.assert_close(scene.weights[0], -gradient)


def test_compressed_gradients_are_smaller() -> None:
    sizes = {
        name: ShardPort(1, 10_000, Compression(name), {}).traffic()[0]
        for name in ("none", "bf16", "topk")
    }
    assert sizes == {"none": 80_000, "bf16": 60_000, "topk": 40_800}


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"num_gradients": 0}, "num_gradients: an update needs at least 1 gradient, got 0"),
        ({"num_servers": 0}, "num_servers: must be at least 1"),
        ({"patience_secs": 0.0}, "patience_secs: must be positive"),
        ({"mode": "async", "max_staleness": -1}, "max_staleness: must not be negative"),
        ({"mode": "async", "damping": -0.5}, "damping: must not be negative"),
        ({"max_staleness": 3}, "max_staleness: is for mode async"),
        ({"damping": 0.5}, "damping: is for mode async"),
        ({"mode": "async", "num_gradients": 2}, "num_gradients: is for mode sync"),
        ({"compression": "topk", "topk_share": 0.0}, "topk_share: must be above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        ParamserverConfig(**bad)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (
            {"num_gradients": 3},
            "paramserver.num_gradients: 3 gradients an update cannot come of 2 workers "
            "(--workers); have at most 2, or null",
        ),
        (
            {"num_servers": 100_000},
            "paramserver.num_servers: 100000 servers cannot share 9155 weights; have fewer",
        ),
    ],
)
def test_more_than_there_are_is_refused_at_the_start(bad: dict[str, Any], said: str) -> None:
    given = {"formation": "paramserver", "engine": "local", "workers": 2, "paramserver": bad}
    plan = Plan.of(settings_from_python("CartPole-v1", {"algo": "a2c", "envs": 4, **given}))
    with pytest.raises(UserError) as caught:
        plan.program()
    assert str(caught.value) == said


# --- the roles -----------------------------------------------------------------------------------


def crew_of(servers: int, **given: Any) -> Crew:
    settings: dict[str, Any] = {
        "formation": "paramserver",
        "engine": "local",
        "algo": "a2c",
        "envs": 4,
        "eval": {"episodes": 0},
        "optimizer": {"name": "sgd", "lr": 0.5, "max_grad_norm": None},
        "paramserver": {"num_servers": servers},
    }
    return Crew(settings_from_python("CartPole-v1", settings | given))


def test_all_gradients_make_one_mean_gradient() -> None:
    """To 1e-6, as sums of floats are rounded."""
    crew = crew_of(3, workers=2)
    session, servers, workers = crew.role("session"), crew.roles("server"), crew.roles("worker")
    session.start()
    session.ask_for_parts()
    before = session.holder.flat.data.clone()
    gradients: list[Tensor] = []
    while len(gradients) < 2:
        for worker in workers:
            if worker.ready() and worker.learner.weights.gradients == 0:
                worker.step()
                gradients.append(worker.learner.flat.grad.clone())
        if len(gradients) < 2:
            for server in servers:
                if server.ready():
                    server.step()
    for server in servers:
        server.step()
    parts = [server.shard.optimizer.data for server in servers]
    weights = torch.tensor([worker.learner.num_steps for worker in workers])
    mean = (gradients[0] * weights[0] + gradients[1] * weights[1]) / weights.sum()
    torch.testing.assert_close(torch.cat(parts), before - 0.5 * mean, rtol=1e-6, atol=1e-6)
    assert float((torch.cat(parts) - before).abs().max()) > 1e-3
    session.save_state()
    for worker in workers:
        assert worker.ready()
        assert torch.equal(worker.learner.flat.data, torch.cat(parts))
        worker.close()


def test_what_a_session_keeps_is_what_a_server_begins_with() -> None:
    crew = crew_of(2, workers=1)
    session = crew.role("session")
    session.start()
    servers = crew.roles("server")
    assert all(server.ready() for server in servers), "they begin"
    assert not any(server.ready() for server in servers), "nobody has asked"
    with torch.no_grad():
        servers[0].shard.optimizer.data.fill_(7.0)
    session.ask_for_parts()
    for server in servers:
        server.answer()
    saved = session.save_state()["weights"]
    replaced = crew.role("server", 0, life=1)
    replaced.ready()
    assert torch.equal(replaced.shard.optimizer.data, servers[0].shard.optimizer.data)
    assert any(float(torch.as_tensor(array).max()) == 7.0 for array in saved.arrays.values())
    assert WEIGHTS in replaced.shard.kept()
