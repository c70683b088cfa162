"""Steps/s of each formation to 1,500 cores, from what one core does: the tables of docs/scale.md.

::

    python -m benchmarks.simulate --calibrate        # measure the rates: benchmarks/rates.json
    python -m benchmarks.simulate --paper            # bytes and messages of an update
    python -m benchmarks.simulate --check            # real runs of 1 to 16 workers, and predictions
    python -m benchmarks.simulate --predict atari    # to 1,500 cores, and where each one bends
    python -m benchmarks.simulate --predict atari --picture docs/pictures/scale.png
    python -m benchmarks.simulate --slow             # one worker ten times as slow as the others
    python -m benchmarks.simulate --ba3c             # against the scaling that BA3C has published

All but ``--calibrate`` and ``--check`` only compute, and repeat exactly. Those two measure: nothing
else should run. All print Markdown.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import time
from argparse import RawDescriptionHelpFormatter as Raw
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.formation_models import PAPER, Outcome, Rates, Traffic, Work, simulate, traffic

HERE = Path(__file__).resolve().parents[1]
RATES = Path(__file__).with_name("rates.json")


# ---- what is run ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """An environment and a network: how they are measured, and how much each worker does."""

    about: str
    environment: str
    flags: dict[str, str]
    work: Work
    link: dict[str, float]
    """What is assumed of the network beside what is measured."""


ETHERNET_10 = {"link_bytes_per_sec": 1.1e9, "link_latency_secs": 5e-5}
INFINIBAND = {"link_bytes_per_sec": 6e9, "link_latency_secs": 2e-6}
SLEEPING = "benchmarks.sleeping_env:make_env"
JOBS = {
    "atari": Job(
        "Pong, Nature CNN of 512 units",
        "PongNoFrameskip-v4",
        {"policy.torso": "conv2d", "policy.hidden": "[512]", "policy.activation": "relu"},
        Work(workers=1, batch_rollouts=8, num_parts=2),
        {**ETHERNET_10, "obs_shrink": 10.0},
    ),
    "mlp": Job(
        "LunarLander-v3, two hidden layers of 64",
        "LunarLander-v3",
        {"policy.hidden": "[64,64]"},
        Work(workers=1, batch_rollouts=8, num_parts=2),
        ETHERNET_10,
    ),
    "sleeping": Job(
        "20 ms of sleep a step, 16 hidden units",
        SLEEPING,
        {"policy.hidden": "[16]", "env.kwargs.step_secs": "0"},
        Work(workers=1, envs_each=1, local_cores=os.cpu_count() or 1, jitter=0.02),
        {},
    ),
}
SLEEP_SECS = 0.02


def rates_of(job: str, **more: float) -> Rates:
    """What was measured for it, and what is assumed of the link."""
    found = json.loads(RATES.read_text("utf-8"))
    link = JOBS[job].link if job in JOBS else {}
    return Rates(**{**found["machine"], **found["jobs"][job], **link, **more})


# ---- measuring -----------------------------------------------------------------------------------


def secs_of(work: Callable[[], object], secs: float) -> float:
    """The median time of ``work``, after a first that does not count."""
    work()
    took, until = [], time.perf_counter() + secs
    while time.perf_counter() < until or len(took) < 3:
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


def line(few: tuple[int, float], many: tuple[int, float]) -> tuple[float, float]:
    """What is always there, and what each one adds, of times for few and for many."""
    each = max((many[1] - few[1]) / (many[0] - few[0]), 0.0)
    return max(few[1] - few[0] * each, 0.0), each


def calibrate(secs: float) -> None:
    """Measure all rates and write them."""
    import torch

    torch.set_num_threads(1)
    jobs = {name: measured(job, secs) for name, job in JOBS.items()}
    jobs["sleeping"]["wait_secs"] = secs_of(lambda: time.sleep(SLEEP_SECS), secs)
    jobs["ba3c"] = {**jobs["atari"], **measured_ba3c(secs)}
    packages = ("torch", "numpy", "gymnasium", "grpcio")
    found = {
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in packages},
        "machine": rounded(measured_machine(secs)),
        "jobs": {name: rounded(rates) for name, rates in jobs.items()},
    }
    RATES.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    print(RATES.read_text("utf-8"))


def rounded(rates: dict[str, float]) -> dict[str, float]:
    return {
        name: value if isinstance(value, int) else float(f"{value:.3g}")
        for name, value in rates.items()
    }


def measured(job: Job, secs: float) -> dict[str, float]:
    """One core with this environment and network: by the parts that `rookery autotune` measures."""
    from rookery.programs.plan import Plan, probe
    from rookery.recipes.settings import settings_from_flags
    from rookery.tune.rates import measure

    def config(algo: str, envs: int, **flags: str) -> Any:
        given = {"algo": algo, "envs": str(envs), "engine": "inline", **job.flags, **flags}
        return settings_from_flags(job.environment, given)

    few, many = (1, 8) if job.work.envs_each == 1 else (2, job.work.envs_each)
    rollout = {"a2c.rollout_steps": str(job.work.rollout_steps), "formation": "sync"}
    first = config("a2c", few, **rollout)
    signature = probe(first.env, first.seed)
    plan = Plan.of(first, signature)
    (less, more) = (
        measure(config("a2c", envs, **rollout), signature, secs) for envs in (few, many)
    )
    replaying = measure(config("dqn", many, formation="replay"), signature, secs)
    algo = config("dqn", many, formation="replay").algo_config
    forward = line((few, few / less.acting), (many, many / more.acting))
    sizes = few * job.work.rollout_steps, many * job.work.rollout_steps
    gradient = line((sizes[0], sizes[0] / less.learning), (sizes[1], sizes[1] / more.learning))
    # Its rate is of environment steps: so many for each batch.
    steps = algo.steps_per_update or algo.batch_size * algo.length
    optimizer = secs_of(optimizer_of(plan.network), secs / 2)
    return {
        "num_params": plan.num_params,
        "obs_bytes": sum(spec.num_bytes for spec in plan.obs.values()),
        "env_secs": 1 / more.env,
        "forward_secs": forward[0],
        "forward_env_secs": forward[1],
        "gradient_secs": max(gradient[0] - optimizer, 0.0),
        "gradient_step_secs": gradient[1],
        "optimizer_param_secs": optimizer / plan.num_params,
        "replayed_secs": steps / replaying.learning / algo.batch_size,
        "replay_put_secs": measured_put("policy.torso" in job.flags, many),
    }


def optimizer_of(network: Any) -> Callable[[], object]:
    """A step of our optimizer on a copy of ``network``."""
    import copy

    import torch

    from rookery.params.flat import FlatParams
    from rookery.params.optimizer import FlatOptimizer, OptimizerConfig

    flat = FlatParams(copy.deepcopy(network))
    flat.grad.copy_(torch.randn_like(flat.grad))
    optimizer = FlatOptimizer(OptimizerConfig(), flat)
    return lambda: optimizer.step(1e-4)


def ba3c_network(channels: int = 16, actions: int = 4, units: int = 128) -> Any:
    """As BA3C's public source has it: frames filled up to 16 channels, no padding, no biases in
    convolutions."""
    from torch import nn

    def convolution(before: int, after: int, size: int, pool: bool) -> list[nn.Module]:
        pooled: list[nn.Module] = [nn.MaxPool2d(2)] if pool else []
        return [nn.Conv2d(before, after, size, bias=False), nn.ReLU(), *pooled]

    return nn.Sequential(
        *convolution(channels, 32, 5, True),
        *convolution(32, 32, 5, True),
        *convolution(32, 64, 5, True),
        *convolution(64, 64, 3, False),
        nn.Flatten(),
        nn.Linear(1600, units),
        nn.ReLU(),
        nn.Linear(units, actions + 1),
    )


def measured_ba3c(secs: float) -> dict[str, float]:
    """Its network alone: predictions of up to 16, gradients of 32."""
    import torch

    network = ba3c_network().to(memory_format=torch.channels_last)

    def frames(count: int) -> torch.Tensor:
        return torch.rand(count, 16, 84, 84).to(memory_format=torch.channels_last)

    def choose(count: int) -> float:
        seen = frames(count)

        def work() -> None:
            with torch.inference_mode():
                network(seen)

        return secs_of(work, secs / 2)

    def learn(count: int) -> float:
        seen = frames(count)

        def work() -> None:
            network.zero_grad()
            network(seen).square().mean().backward()

        return secs_of(work, secs / 2)

    forward = line((2, choose(2)), (16, choose(16)))
    gradient = line((8, learn(8)), (32, learn(32)))
    num_params = sum(parameter.numel() for parameter in network.parameters())
    return {
        "num_params": num_params,
        "forward_secs": forward[0],
        "forward_env_secs": forward[1],
        "gradient_secs": gradient[0],
        "gradient_step_secs": gradient[1],
        "optimizer_param_secs": secs_of(optimizer_of(network), secs / 2) / num_params,
    }


def measured_machine(secs: float) -> dict[str, float]:
    """Memory, and the two ends of the network link on this machine."""
    import numpy as np

    from benchmarks import link

    one, other = np.ones(8 << 20, np.float32), np.ones(8 << 20, np.float32)
    small = 64
    plain, _ = link.linked("rollouts of Pong", False, secs)
    packed, _ = link.linked("rollouts of Pong", True, secs)
    return {
        "memory_byte_secs": secs_of(lambda: np.add(one, other, out=one), secs / 2) / one.nbytes,
        "message_secs": small / (link.raw(small, secs) * 1e6),
        "byte_secs": 1 / (plain * 1e6),
        "obs_byte_secs": 1 / (packed * 1e6),
    }


def measured_put(image: bool, num_envs: int) -> float:
    """Seconds of a step into the table of replay."""
    from benchmarks.replay import ATARI, FLAT, VECTOR, mean_micros, random_play, vectors
    from rookery.replay.settings import TableConfig
    from rookery.replay.table import Table

    steps = list(random_play("pong", 400, num_envs)) if image else [vectors(num_envs)]
    config = TableConfig(capacity_steps=20_000, num_streams=num_envs, sequence=FLAT)
    table, turn = Table(config, ATARI if image else VECTOR), itertools.cycle(steps)
    return mean_micros(lambda: table.put(next(turn)), rounds=2) * 1e-6 / num_envs


# ---- tables --------------------------------------------------------------------------------------


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """Markdown."""
    columns = head.split(" | ")
    lines = [f"| {head} |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]) + "\n"


def paper() -> str:
    """Bytes and messages of an update of the Atari job with 96 workers."""
    rates, rows = rates_of("atari"), []
    for formation in PAPER:
        moved = traffic(formation, rates, replace(JOBS["atari"].work, workers=96, shards=4))
        sizes = [f"{each / 1e6:,.3g} MB" for each in (moved.up_bytes, moved.down_bytes)]
        messages = f"{moved.messages:,.0f}"
        rows.append((f"`{formation}`", f"{moved.steps:,.0f}", *sizes, messages, kilo(moved)))
    return table("formation | steps | up | down | messages | for each step", rows)


def kilo(moved: Traffic) -> str:
    return f"{moved.step_bytes / 1e3:,.1f} kB"


# ---- against real runs ---------------------------------------------------------------------------

CHECKED = (1, 2, 4, 8, 16)
QUEUE = ("--algo", "impala", "--impala.rollout_steps", "20")
REPLAY = (
    "--algo", "apex", "--apex.batch_size", "32", "--apex.learning_starts", "200",
    "--apex.capacity_steps", "20000", "--apex.steps_per_update", "32",
)  # fmt: skip
ROUNDS = ("--algo", "a2c", "--a2c.rollout_steps", "20")
SAMPLING = {"batch_size": 32, "steps_per_update": 32, "publish_every": 1}
REAL: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "sync": ("sync", ("--formation", "sync", *ROUNDS), {}),
    "async": ("async", ("--formation", "async", *QUEUE), {}),
    "replay": ("replay", ("--formation", "replay", *REPLAY), SAMPLING),
    "central, queue": ("central", ("--formation", "central", *QUEUE), {}),
    "central, replay": (
        "central", ("--formation", "central", *REPLAY), {"learner": "replay", **SAMPLING},
    ),
    "allreduce": ("allreduce", ("--formation", "allreduce", *ROUNDS), {}),
}  # fmt: skip
"""What is simulated, what is run, and what that asks of the work."""


def check(workers: Iterable[int], only: Iterable[str], secs: float, rounds: int) -> str:
    """Steps/s of real runs on this machine, and those predicted from the rates alone."""
    from benchmarks.central import SLEEPING as RUN
    from benchmarks.central import rate_of

    os.environ["PYTHONPATH"] = str(HERE)
    rows, errors = [], []
    for name in only:
        formation, flags, more = REAL[name]
        for count in workers:
            words = (*RUN, *flags, "--actors", str(count), "--envs", str(count))
            measured = statistics.median(rate_of(words, count, secs) for _ in range(rounds))
            work = replace(JOBS["sleeping"].work, workers=count, **more)
            predicted = simulate(formation, rates_of("sleeping"), work).steps_per_sec
            errors.append(predicted / measured - 1)
            row = (
                f"`{name}`",
                count,
                f"{measured:,.1f}",
                f"{predicted:,.1f}",
                f"{errors[-1]:+.1%}",
            )
            print(*row, file=sys.stderr, flush=True)
            rows.append(row)
    found = table("formation | workers | measured, steps/s | predicted | error", rows)
    middle = statistics.median(map(abs, errors))
    return found + f"\nMedian error {middle:.1%}, largest {max(map(abs, errors)):.1%}.\n"


# ---- to 1,500 cores ------------------------------------------------------------------------------

GRID = (1, 4, 12, 24, 48, 96, 192, 384, 768, 1500)
SHOWN = (1, 12, 48, 192, 768, 1500)
LEARNER_SPEED = 50.0
"""Assumed, not measured: of a learner on an accelerator, in cores of this machine."""
BENT = 0.5
"""Of linear: what the next workers bring less of is a bend."""
Change = Callable[[int], dict[str, Any]]


def with_learner(speed: float) -> Change:
    return lambda _: {"learner_speed": speed}


def served(shards: int, spare: bool) -> Change:
    """One gradient in 16 may be late, or each is taken by itself."""
    return lambda count: {"shards": shards, "grads": count - count // 16 if spare else 0}


ROWS: dict[str, tuple[str, Change]] = {
    "sync, learner on a core": ("sync", with_learner(1.0)),
    "async, learner on a core": ("async", with_learner(1.0)),
    "replay, learner on a core": ("replay", with_learner(1.0)),
    "central, learner on a core": ("central", with_learner(1.0)),
    "sync, learner 50 times as fast": ("sync", with_learner(LEARNER_SPEED)),
    "async, learner 50 times as fast": ("async", with_learner(LEARNER_SPEED)),
    "replay, learner 50 times as fast": ("replay", with_learner(LEARNER_SPEED)),
    "central, learner 50 times as fast": ("central", with_learner(LEARNER_SPEED)),
    "allreduce, joined hosts": ("allreduce", lambda _: {}),
    "allreduce, MPI": ("allreduce, MPI", lambda _: {}),
    "paramserver, sync, 4 shards": ("paramserver", served(4, True)),
    "paramserver, sync, 16 shards": ("paramserver", served(16, True)),
    "paramserver, async, 4 shards": ("paramserver", served(4, False)),
    "paramserver, async, 16 shards": ("paramserver", served(16, False)),
}
PREDICTED = ("atari", "mlp")
Curve = dict[int, float]


def curve(given: tuple[str, str]) -> Curve:
    """Steps/s of a row of a job, by cores."""
    job, row = given
    formation, change = ROWS[row]
    rates, base = rates_of(job), JOBS[job].work
    return {
        count: simulate(
            formation,
            rates,
            replace(base, workers=count, **change(count)),
            rollouts_each=(2, 6) if count < 200 else (1, 3),
        ).steps_per_sec
        for count in GRID
    }


def curves(job: str, processes: int) -> dict[str, Curve]:
    """All rows."""
    with ProcessPoolExecutor(processes) as pool:
        found = pool.map(curve, [(job, row) for row in ROWS])
        return dict(zip(ROWS, found, strict=True))


def bend(found: Curve) -> str:
    """Between which numbers of cores more of them begin to bring less than half of linear."""
    alone, points = found[1], sorted(found)
    for before, after in pairwise(points):
        if (found[after] - found[before]) / (after - before) < BENT * alone:
            return f"{before:,} to {after:,}"
    return f"not by {points[-1]:,}"


def predict(job: str, found: dict[str, Curve]) -> str:
    rows = [
        (row, *(f"{each[count]:,.0f}" for count in SHOWN), bend(each))
        for row, each in found.items()
    ]
    counts = " | ".join(f"{count:,}" for count in SHOWN)
    return table(f"{JOBS[job].about}: steps/s by cores | {counts} | bends at", rows)


def picture(job: str, rows: dict[str, Curve], path: Path) -> None:
    """Steps/s over cores."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(10, 5.5), layout="constrained")
    for number, (row, each) in enumerate(rows.items()):
        style = ("-", "--", "-.", ":")[number // 4]
        panel.plot(list(each), list(each.values()), style, color=f"C{number % 10}", label=row)
    linear = [rows["allreduce, MPI"][1] * count for count in GRID]
    panel.plot(GRID, linear, color="lightgrey", linewidth=6, zorder=0, label="linear")
    panel.set(xscale="log", yscale="log", xlabel="cores that act", ylabel="steps/s")
    panel.set_title(JOBS[job].about)
    panel.grid(alpha=0.3)
    figure.legend(loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


# ---- one slow worker -----------------------------------------------------------------------------

SLOWED: dict[str, tuple[str, dict[str, Any]]] = {
    "`sync`": ("sync", {}),
    "`async`": ("async", {}),
    "`allreduce`": ("allreduce, MPI", {}),
    "`paramserver`, all 16 gradients": ("paramserver", {"grads": 16}),
    "`paramserver`, 15 of 16": ("paramserver", {"grads": 15}),
    "`paramserver`, asynchronous": ("paramserver", {"grads": 0}),
}


def slow() -> str:
    """Steps/s of 16 workers of the MLP job, and with one of them ten times as slow."""
    rows = []
    for name, (formation, more) in SLOWED.items():
        base = replace(JOBS["mlp"].work, workers=16, learner_speed=LEARNER_SPEED, **more)
        usual, slowed = (
            simulate(formation, rates_of("mlp"), work, rollouts_each=(5, 40))
            for work in (base, replace(base, slow={0: 10.0}))
        )
        share = slowed.steps_per_sec / usual.steps_per_sec
        cells = f"{usual.steps_per_sec:,.0f}", f"{slowed.steps_per_sec:,.0f}", f"{share:.0%}"
        rows.append((name, *cells, slowed.dropped))
    return table("16 workers | steps/s | one ten times as slow | left | dropped gradients", rows)


# ---- BA3C ----------------------------------------------------------------------------------------

NODES = (1, 4, 16, 32, 64, 125)
NODE = Work(
    workers=1, envs_each=16, rollout_steps=2, cores_each=12, workers_per_host=1, shards=4,
    overlap=True,
)  # fmt: skip
"""12 cores a node; gradients of 32 steps; simulators go on while the gradient is away."""
PLAIN = {"message_secs": 2e-5, "byte_secs": 2e-10}
"""Assumed: servers and links as quick as memory and a good network library allow."""
NETWORKS: dict[str, tuple[dict[str, float], int]] = {
    "InfiniBand, servers of 12 quick cores": ({**INFINIBAND, **PLAIN}, 12),
    "10 Gbit/s, servers of 12 quick cores": ({**ETHERNET_10, **PLAIN}, 12),
    "10 Gbit/s, servers of one core and our link": (ETHERNET_10, 1),
}
"""The link, and the cores of a server."""
PUBLISHED_HOURS, PUBLISHED_MINUTES = 10.0, 21.0
"""Of one node of 24 cores, and of 64 of 12."""


def ba3c() -> str:
    """Its set-up: n nodes of 12 cores, four servers, an update of all gradients but one in 16."""
    rows = []
    for name, (link, cores) in NETWORKS.items():
        rates = rates_of("ba3c", **link)
        alone = single(rates)
        for grads, how in ((True, "sync"), (False, "async")):
            found = {count: nodes(rates, count, grads, cores) for count in NODES}
            speedups = [
                f"{each.steps_per_sec / alone:.1f} ({each.steps_per_sec / alone / count * 2:.0%})"
                for count, each in found.items()
            ]
            rows.append((f"{how}, {name}", f"{alone:,.0f}", *speedups))
    counts = " | ".join(f"{count} x 12" for count in NODES)
    found = table(f"network | 1 x 24, steps/s | {counts}", rows)
    gain = PUBLISHED_HOURS * 60 / PUBLISHED_MINUTES
    return found + f"\nPublished, time to a score: {gain:.1f} ({gain / 32:.0%}) with 64 x 12.\n"


def single(rates: Rates) -> float:
    """Steps/s of a node of 24 cores that needs no server."""
    free = replace(rates, message_secs=0.0, byte_secs=0.0, link_bytes_per_sec=1e30)
    work = replace(NODE, cores_each=24, shards=1)
    return simulate("paramserver", free, work, rollouts_each=(10, 60)).steps_per_sec


def nodes(rates: Rates, count: int, waits: bool, server_cores: int) -> Outcome:
    """Steps/s of so many nodes; with ``waits`` an update is of all gradients but one in 16."""
    grads = count - count // 16 if waits else 0
    work = replace(NODE, workers=count, grads=grads, server_cores=server_cores)
    return simulate("paramserver", rates, work, rollouts_each=(5, 25))


# ---- the command ---------------------------------------------------------------------------------


def show(part: str, text: str, page: Path | None) -> None:
    """Print what a part has found, and put it after the line of the page that names the part."""
    print(f"{text}", flush=True)
    if page is None:
        return
    mark = f"<!-- python -m benchmarks.simulate --{part} -->\n"
    before, found, after = page.read_text("utf-8").partition(mark)
    if not found:
        raise SystemExit(f"{page}: there is no line {mark.strip()}; add it where the table belongs")
    _, end, rest = after.partition("<!-- end -->")
    page.write_text(f"{before}{mark}\n{text}\n{end}{rest}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Raw)
    for part in ("calibrate", "paper", "check", "slow", "ba3c"):
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--predict", choices=PREDICTED, metavar="JOB", help=" or ".join(PREDICTED))
    parser.add_argument("--picture", type=Path, metavar="FILE", help="of what is predicted")
    parser.add_argument("--page", type=Path, help="put the tables there too, such as docs/scale.md")
    parser.add_argument("--secs", type=float, default=10.0, help="of each measurement of --check")
    parser.add_argument("--rounds", type=int, default=1, help="of --check; medians are compared")
    parser.add_argument("--workers", type=int, nargs="*", default=CHECKED, help="of --check")
    parser.add_argument("--only", choices=tuple(REAL), nargs="*", default=tuple(REAL))
    parser.add_argument("--processes", type=int, default=1, help="of --predict")
    given = parser.parse_args()
    if given.calibrate:
        calibrate(secs=1.0)
    if given.paper:
        show("paper", paper(), given.page)
    if given.check:
        show("check", check(given.workers, given.only, given.secs, given.rounds), given.page)
    if given.predict:
        found = curves(given.predict, given.processes)
        show(f"predict {given.predict}", predict(given.predict, found), given.page)
        if given.picture:
            picture(given.predict, found, given.picture)
    if given.slow:
        show("slow", slow(), given.page)
    if given.ba3c:
        show("ba3c", ba3c(), given.page)


if __name__ == "__main__":
    main()
