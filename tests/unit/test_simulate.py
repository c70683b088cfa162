"""The simulator of docs/scale.md: its clock, its queues, and what its formations must do."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import simulate as command
from benchmarks.events import Event, Process, Queue, Resource, Simulation
from benchmarks.formation_models import MODELS, Rates, Run, Work, simulate, traffic
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_flags

PAGE = Path(command.HERE) / "docs" / "scale.md"


# ---- the clock -----------------------------------------------------------------------------------


def test_what_happens_at_the_same_moment_keeps_its_order() -> None:
    sim, seen = Simulation(), []

    def process(name: str, secs: float) -> Process:
        yield secs
        seen.append((sim.now, name))
        yield 1.0
        seen.append((sim.now, name))

    for name, secs in (("a", 2.0), ("b", 1.0), ("c", 2.0)):
        sim.start(process(name, secs))
    assert not sim.run()  # nothing is left
    assert seen == [(1.0, "b"), (2.0, "a"), (2.0, "c"), (2.0, "b"), (3.0, "a"), (3.0, "c")]


def test_a_simulation_ends_at_its_time_or_when_it_is_stopped() -> None:
    sim = Simulation()

    def ticks() -> Process:
        while True:
            yield 1.0
            if sim.now == 7.0:
                sim.stop()

    sim.start(ticks())
    assert sim.run(until=2.5)
    assert sim.now == 2.5
    assert sim.run()
    assert sim.now == 7.0


def test_an_event_resumes_all_that_wait_and_those_that_come_late() -> None:
    sim, seen = Simulation(), []
    event = Event(sim)

    def waiting(secs: float) -> Process:
        yield secs
        value = yield event
        seen.append((sim.now, value))

    def firing() -> Process:
        yield 2.0
        event.fire("x")

    for process in (waiting(0.0), firing(), waiting(1.0), waiting(3.0)):
        sim.start(process)
    sim.run()
    assert seen == [(2.0, "x"), (2.0, "x"), (3.0, "x")]
    with pytest.raises(RuntimeError, match="only once"):
        event.fire()


def test_all_ends_with_the_last() -> None:
    sim = Simulation()

    def sleep(secs: float) -> Process:
        yield secs

    end = sim.start(sim.all(sleep(secs) for secs in (1.0, 4.0, 2.0)))
    sim.run()
    assert end.fired
    assert sim.now == 4.0


def test_all_returns_what_each_returned() -> None:
    sim, seen = Simulation(), []

    def told(number: int) -> Process:
        yield 3.0 - number
        return number

    def asking() -> Process:
        seen.extend((yield from sim.all(told(number) for number in range(3))))

    sim.start(asking())
    sim.run()
    assert seen == [0, 1, 2]


def test_nobody_sleeps_backwards() -> None:
    sim = Simulation()

    def back() -> Process:
        yield -1.0

    sim.start(back())
    with pytest.raises(ValueError, match="cannot sleep"):
        sim.run()


def test_a_queue_gives_each_item_once_in_order() -> None:
    sim, got = Simulation(), []
    queue = Queue(sim, ["first"])

    def take(name: str) -> Process:
        while True:
            got.append((name, (yield from queue.get())))

    def give() -> Process:
        for number in range(4):
            yield 1.0
            queue.put(number)

    for process in (take("a"), take("b"), give()):
        sim.start(process)
    sim.run()
    assert got == [("a", "first"), ("a", 0), ("b", 1), ("a", 2), ("b", 3)]


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_waiting_in_line_is_what_theory_says(load: float) -> None:
    """M/D/1: arrivals at random, service of 1 s; the mean wait is load / (2 (1 - load))."""
    sim, rng = Simulation(), random.Random(7)
    server, waits = Resource(sim), []

    def customer() -> Process:
        came = sim.now
        yield from server.acquire()
        waits.append(sim.now - came)
        yield 1.0
        server.release()

    def arrivals() -> Process:
        for _ in range(40_000):
            yield rng.expovariate(load)
            sim.start(customer())

    sim.start(arrivals())
    sim.run()
    assert sum(waits) / len(waits) == pytest.approx(load / (2 * (1 - load)), rel=0.05)


def test_a_resource_of_two_serves_two_at_a_time() -> None:
    sim = Simulation()
    cores = Resource(sim, 2)
    for _ in range(5):
        sim.start(cores.use(1.0))
    sim.run()
    assert sim.now == 3.0
    assert cores.busy_secs == 5.0


# ---- on paper ------------------------------------------------------------------------------------


def plan_of(what: str, **flags: str) -> Plan:
    given = {"engine": "local", "actors": "4", "envs": "12", "policy.hidden": "[16]", **flags}
    return Plan.of(settings_from_flags(what, given))


def said(plan: Plan, port: str) -> int:
    """Bytes that the port says pass."""
    edges = plan.program().edges
    return next(edge.port.traffic()[0] for edge in edges if edge.port.name == port)


def paper_of(plan: Plan, formation: str, **more: Any) -> Any:
    (obs,) = plan.obs.values()
    rates = replace(QUICK, num_params=plan.num_params, obs_bytes=obs.num_bytes)
    algo = plan.config.algo_config
    return traffic(
        formation,
        rates,
        Work(workers=4, envs_each=3, rollout_steps=algo.rollout_steps, **more),
    )


def test_paper_and_ports_of_sync_agree() -> None:
    plan = plan_of("CartPole-v1", algo="a2c", formation="sync")
    paper = paper_of(plan, "sync")
    assert paper.up_bytes == 4 * said(plan, "experience")
    assert paper.down_bytes == 4 * said(plan, "params")
    assert paper.steps == 12 * plan.config.algo_config.rollout_steps


def test_paper_and_ports_of_async_agree() -> None:
    plan = plan_of("CartPole-v1", algo="impala", formation="async")
    paper = paper_of(plan, "async", batch_rollouts=2)
    assert paper.up_bytes == 2 * said(plan, "queue")
    assert paper.down_bytes == 4 * said(plan, "params")


def test_paper_and_ports_of_replay_agree() -> None:
    plan = plan_of("CartPole-v1", algo="dqn", formation="replay")
    algo = plan.config.algo_config
    paper = paper_of(
        plan,
        "replay",
        steps_per_update=5,
        batch_size=algo.batch_size,
        sequence_steps=algo.sequence.num_steps,
        publish_every=4,
    )
    assert paper.up_bytes == 5 * said(plan, "steps")
    # The port counts its share of a line that belongs to no batch.
    assert 0 <= said(plan, "sequences") + said(plan, "params") - paper.down_bytes < 64


def test_paper_and_ports_of_central_agree() -> None:
    plan = plan_of("CartPole-v1", algo="impala", formation="central")
    paper = paper_of(plan, "central")
    assert paper.step_bytes == said(plan, "actions")


def test_paper_and_ports_of_allreduce_agree() -> None:
    plan = plan_of("CartPole-v1", algo="a2c", formation="allreduce", **{"policy.hidden": "[64,64]"})
    paper = paper_of(plan, "allreduce")
    assert paper.up_bytes == paper.down_bytes == 4 * said(plan, "gradients")


def test_paper_of_paramserver() -> None:
    """A gradient of each up, weights to each down; a message a shard each way."""
    both = traffic("paramserver", QUICK, Work(workers=8, shards=3, grads=6))
    assert both.up_bytes == both.down_bytes == 8 * 4 * QUICK.num_params
    assert both.messages == 2 * 8 * 3
    assert both.steps == 6 * 16 * 20
    alone = traffic("paramserver", QUICK, Work(workers=8, shards=3, grads=0))
    assert (alone.up_bytes, alone.messages) == (4 * QUICK.num_params, 6)


# ---- formations ----------------------------------------------------------------------------------

QUICK = Rates(
    num_params=1000,
    obs_bytes=100,
    env_secs=1e-3,
    forward_secs=1e-4,
    forward_env_secs=1e-5,
    gradient_secs=1e-3,
    gradient_step_secs=1e-5,
    optimizer_param_secs=1e-9,
    replayed_secs=1e-5,
    replay_put_secs=1e-6,
    memory_byte_secs=1e-10,
    message_secs=1e-4,
    byte_secs=2e-9,
    obs_byte_secs=2e-9,
)
"""Environments take nearly all the time."""
FREE = replace(
    QUICK,
    forward_secs=0.0,
    forward_env_secs=0.0,
    gradient_secs=0.0,
    gradient_step_secs=0.0,
    optimizer_param_secs=0.0,
    replayed_secs=0.0,
    replay_put_secs=0.0,
    memory_byte_secs=0.0,
    message_secs=0.0,
    byte_secs=0.0,
    obs_byte_secs=0.0,
    link_bytes_per_sec=1e30,
    link_latency_secs=0.0,
)
"""Nothing but environments takes time."""


def work_of(formation: str, workers: int, **more: Any) -> Work:
    more = {"num_parts": 2} | more if formation == "central" else more
    return Work(workers=workers, **more)


@pytest.mark.parametrize("formation", MODELS)
def test_one_worker_is_as_fast_as_its_environments(formation: str) -> None:
    found = simulate(formation, FREE, work_of(formation, 1, jitter=0.0))
    assert found.steps_per_sec == pytest.approx(1 / FREE.env_secs, rel=0.02)


@pytest.mark.parametrize("formation", MODELS)
def test_more_workers_are_linear_where_only_environments_take_time(formation: str) -> None:
    found = simulate(formation, FREE, work_of(formation, 24, jitter=0.0))
    assert found.steps_per_sec == pytest.approx(24 / FREE.env_secs, rel=0.02)


@pytest.mark.parametrize("formation", MODELS)
def test_more_workers_are_never_slower_where_links_are_free(formation: str) -> None:
    """Nor faster than linear."""
    rates = replace(QUICK, message_secs=0.0, byte_secs=0.0, obs_byte_secs=0.0)
    found = [simulate(formation, rates, work_of(formation, n)).steps_per_sec for n in (1, 4, 16)]
    assert found[0] <= found[1] * 1.02 <= found[2] * 1.04
    assert found[2] <= 16 * found[0] * 1.05


@pytest.mark.parametrize("formation", MODELS)
def test_a_slower_link_is_never_faster(formation: str) -> None:
    work = work_of(formation, 24)
    links = [replace(QUICK, link_bytes_per_sec=rate) for rate in (1e5, 1e7, 1e9)]
    slow, middle, quick = (simulate(formation, each, work).steps_per_sec for each in links)
    assert slow < 0.95 * quick
    assert slow < middle * 1.01 < quick * 1.02


@pytest.mark.parametrize("formation", MODELS)
def test_the_same_seed_gives_the_same_run(formation: str) -> None:
    work = work_of(formation, 5, jitter=0.3)
    first, again, other = (simulate(formation, QUICK, work, seed=seed) for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize("formation", ["sync", "allreduce", "paramserver"])
def test_a_round_takes_as_long_as_its_slowest_worker(formation: str) -> None:
    work = Work(workers=6, jitter=0.0, slow={2: 5.0})
    found = simulate(formation, FREE, work)
    round_secs = 5 * 16 * 20 * FREE.env_secs
    assert found.updates_per_sec == pytest.approx(1 / round_secs, rel=1e-6)


def test_a_round_takes_the_longest_of_drawn_times() -> None:
    """On average the expected maximum of as many draws."""
    work = Work(workers=16, jitter=0.3)
    found = simulate("sync", FREE, work, rollouts_each=(1, 401))
    run, round_secs = Run(FREE, work, 1, (1, 2)), 16 * 20 * FREE.env_secs
    longest = [max(run.factor(worker) for worker in range(16)) for _ in range(2000)]
    expected = round_secs * sum(longest) / len(longest)
    assert 1 / found.updates_per_sec == pytest.approx(expected, rel=0.03)


def test_fewer_gradients_than_workers_keep_the_rate_when_one_is_slow() -> None:
    """Tenfold: of 16, 15 make an update. With all 16 the rate falls to a tenth."""
    spare = Work(workers=16, grads=15, jitter=0.05)
    rate = simulate("paramserver", QUICK, spare).steps_per_sec
    slowed = simulate("paramserver", QUICK, replace(spare, slow={3: 10.0}))
    assert slowed.steps_per_sec > 0.95 * rate
    assert slowed.dropped > 0
    waited = simulate("paramserver", QUICK, replace(spare, grads=16, slow={3: 10.0}))
    assert waited.steps_per_sec < 0.15 * rate


def test_asynchronous_gradients_are_stale_by_the_other_workers() -> None:
    found = simulate("paramserver", QUICK, Work(workers=12, grads=0, jitter=0.05))
    assert found.staleness == pytest.approx(11, rel=0.15)
    assert found.dropped == 0


def test_more_gradients_than_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="5 gradients of 4 workers"):
        simulate("paramserver", QUICK, Work(workers=4, grads=5))


def test_shards_share_the_work_of_a_server() -> None:
    """Where the server is what all wait for, four of them are nearly four times as fast."""
    heavy = replace(QUICK, num_params=10_000_000, env_secs=1e-6)
    one, four = (
        simulate("paramserver", heavy, Work(workers=24, shards=shards)).steps_per_sec
        for shards in (1, 4)
    )
    assert 3.0 < four / one <= 4.05


def test_a_learner_that_is_too_slow_is_the_limit() -> None:
    rates = replace(QUICK, gradient_step_secs=1e-3)
    found = simulate("async", rates, Work(workers=24, batch_rollouts=4))
    assert found.steps_per_sec == pytest.approx(1 / 1e-3, rel=0.02)
    assert found.learner_busy > 0.98


def test_processes_of_one_machine_share_its_cores() -> None:
    """Two cores, 16 sleeping environments: sleeping is free, computing is not."""
    rates = replace(FREE, env_secs=1e-3, wait_secs=1e-3)
    work = Work(workers=16, envs_each=1, local_cores=2, jitter=0.0)
    assert simulate("sync", rates, work).steps_per_sec == pytest.approx(2000, rel=0.02)


# ---- the command ---------------------------------------------------------------------------------


def test_a_line_goes_through_both_times() -> None:
    assert command.line((2, 1.4), (10, 3.0)) == pytest.approx((1.0, 0.2))
    assert command.line((2, 1.0), (10, 0.9)) == (1.0, 0.0)  # noise: many are not quicker


def test_a_curve_bends_where_more_cores_bring_less_than_half() -> None:
    linear = {count: 10.0 * count for count in command.GRID}
    assert command.bend(linear) == "not by 1,500"
    assert command.bend({count: min(10.0 * count, 900.0) for count in linear}) == "96 to 192"
    half = {count: 10.0 * min(count, 48) + 5.1 * max(count - 48, 0) for count in linear}
    assert command.bend(half) == "not by 1,500"


def test_the_network_of_ba3c_has_as_many_parameters_as_the_page_says() -> None:
    sizes = [parameter.numel() for parameter in command.ba3c_network().parameters()]
    assert sizes[:4] == [16 * 25 * 32, 32 * 25 * 32, 32 * 25 * 64, 64 * 9 * 64]
    assert f"{sum(sizes):,} parameters" in PAGE.read_text("utf-8")


def test_a_table_goes_where_the_page_names_its_command(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    mark = "<!-- python -m benchmarks.simulate --paper -->\n"
    page.write_text(f"before\n\n{mark}old\n<!-- end -->\nafter\n")
    command.show("paper", "| new |\n", page)
    assert page.read_text() == f"before\n\n{mark}\n| new |\n\n<!-- end -->\nafter\n"
    with pytest.raises(SystemExit, match="there is no line"):
        command.show("check", "| new |\n", page)


@pytest.mark.parametrize("job", ["atari", "mlp", "sleeping", "ba3c"])
def test_all_rates_were_measured(job: str) -> None:
    rates = command.rates_of(job)
    fitted = {"forward_secs", "forward_env_secs", "gradient_secs", "gradient_step_secs"}
    may_be_none = {*fitted, "wait_secs"}
    values = {each.name: getattr(rates, each.name) for each in fields(rates)}
    assert [name for name, value in values.items() if value <= 0 and name not in may_be_none] == []
    assert min(values.values()) >= 0
    assert rates.forward(1) > 0
    assert rates.gradient(1) > 0


def test_the_page_has_what_the_commands_print() -> None:
    """Of those that take no time; the same rates give the same tables."""
    text = PAGE.read_text("utf-8")
    assert command.paper() in text
    assert command.slow() in text
    first = command.curve(("atari", "allreduce, MPI"))
    cells = " | ".join(f"{first[count]:,.0f}" for count in command.SHOWN)
    assert f"| allreduce, MPI | {cells} | {command.bend(first)} |" in text


def test_learning_shares_the_cores_of_one_machine_too() -> None:
    """Sixteen gradients of 0.1 s on two cores: 0.8 s a round, and 20 ms of sleep."""
    rates = replace(FREE, env_secs=0.0, wait_secs=1e-3, gradient_secs=0.1)
    work = Work(workers=16, envs_each=1, local_cores=2, jitter=0.0)
    found = simulate("allreduce", rates, work)
    assert found.updates_per_sec == pytest.approx(1 / 0.82, rel=1e-3)
