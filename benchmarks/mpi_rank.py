"""One rank of `benchmarks/mpi.py`; rank 0 prints what it measured as JSON.

mpiexec -n 4 python benchmarks/mpi_rank.py allreduce
mpiexec -n 4 python benchmarks/mpi_rank.py pickles --steps 200000
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from rookery.carriers.heap import allocate
from rookery.carriers.mpi import World
from rookery.core.ports import End
from rookery.engines.assemble import Wired
from rookery.engines.loop import build_member
from rookery.engines.mpi import RankWired, sized
from rookery.programs.place import Place, Ports
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_python
from rookery.roles.build import build_actor, build_learner
from rookery.transport.blocks import FILLED, BlockPort
from rookery.transport.weights import WeightsPort

UPDATES = 20
RAW = 50


def timed(action: Callable[[], object], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - begun) / times


def allreduce(ranks: World) -> dict[str, float]:
    """Training with a network of 1.7 M parameters, then the bare operations in the same job."""
    policy = {"hidden": [1300, 1300], "shared_torso": True}
    ppo = {"rollout_steps": 32, "num_epochs": 2, "num_minibatches": 4}
    given = {"formation": "allreduce", "envs": 16, "policy": policy, "ppo": ppo}
    given |= {"eval": {"episodes": 0}}
    plan = Plan.of(sized(settings_from_python("CartPole-v1", given), ranks.size))
    program = plan.program()
    wired: Wired = RankWired(program, ranks).wired
    member = build_member(wired, plan, program.owner, ranks.rank, run=Path("no-run"))
    worker = member.role
    worker.start()
    worker.step()
    ranks.comm.Barrier()
    ranks.waited_secs = 0.0
    update_secs = timed(worker.step, UPDATES)
    waited = ranks.waited_secs / UPDATES
    vector = worker.learner.flat.grad_and_weight.numpy()
    total = np.empty_like(vector)
    raw = timed(lambda: ranks.comm.Allreduce(vector, total), RAW)
    broadcast = timed(lambda: ranks.comm.Bcast(vector, root=0), RAW)
    per_update = ppo["num_epochs"] * ppo["num_minibatches"]
    return {
        "parameters": len(vector) - 1,
        "update_ms": update_secs * 1e3,
        "waiting_share": waited / update_secs,
        "raw_allreduce_ms": raw * 1e3,
        "raw_broadcast_ms": broadcast * 1e3,
        "raw_share": raw * per_update / update_secs,
    }


def pickles(ranks: World, steps: int, envs: int) -> dict[str, float]:
    """Snake by gathering pickled rollouts and broadcasting a state dict each round."""
    whole = {"formation": "sync", "envs": (ranks.size - 1) * envs}
    plan = Plan.of(sized(settings_from_python("snake", whole), ranks.size))
    num_actors = ranks.size - 1
    port = BlockPort(plan.rollout, num_actors=num_actors if ranks.rank == 0 else 1, num_envs=envs)
    weights = WeightsPort(plan.params)
    between, published = End(allocate(port.layout())), End(allocate(weights.layout()))
    cell = weights.server(published)
    if ranks.rank == 0:
        source = port.server(between)
        ends = {port.name: {"actor": source}, weights.name: {"actor": cell}}
        learner = build_learner(Place(plan=plan, ports=Ports(serves=ends)))
        block = source.block
    else:
        sink = port.client(between)
        ports = Ports({port.name: sink, weights.name: cell})
        actor = build_actor(Place(plan=plan, ports=ports, replica=ranks.rank - 1))
        block = sink.block
    done, begun, version = 0, 0.0, 0
    while done < steps:
        state = ranks.comm.bcast(learner.flat.tensors() if ranks.rank == 0 else None, root=0)
        own = None
        if ranks.rank:
            version += 1
            cell.publish(version, state)
            actor.step() if actor.ready() else None
            own = block.batch.flat()
            block.flags[:] = 0
        everything = ranks.comm.gather(own, root=0)
        if ranks.rank == 0:
            for number, arrays in enumerate(everything[1:]):
                for name, array in block.slots[number].flat().items():
                    array[:] = arrays[name]
                block.flags[number] = FILLED
            learner.step()
        done += num_actors * envs * plan.config.algo_config.rollout_steps
        if not begun:  # the first round is start-up
            begun, done = time.perf_counter(), 0
    return {"steps_per_s": done / (time.perf_counter() - begun)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["allreduce", "pickles"])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--envs", type=int, default=64, help="of each rank that acts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ranks = World()
    found = allreduce(ranks) if args.what == "allreduce" else pickles(ranks, args.steps, args.envs)
    if ranks.rank == 0:
        print(json.dumps(found), flush=True)
    ranks.leave()


if __name__ == "__main__":
    main()
