"""What each rank of an MPI job does, round by round.

A round begins with a header from rank 0 that says whether to go on::

    go_on, code, start_steps = begin_round(ranks)
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator

import numpy as np
import safetensors.torch
import torch

from rookery.core.errors import EnvironmentFault
from rookery.core.patience import Attention
from rookery.core.signature import Signature
from rookery.core.spec import ArraySpec
from rookery.engines.engine import Job
from rookery.engines.together import build_together
from rookery.envs.timeout import certain_secs
from rookery.params.flat import FlatParams
from rookery.params.shared_memory import SharedParams, param_specs
from rookery.programs.formations import AllreduceConfig, build_program
from rookery.roles.build import (
    batch_spec,
    build_actor,
    build_learner,
    build_policy,
    compute_threads,
    probe,
)
from rookery.roles.learner import Learner, Update
from rookery.roles.pulse import Pulse
from rookery.roles.worker import Worker
from rookery.runs.checkpoint_files import State
from rookery.runs.config import RunConfig
from rookery.transport.memory import FILLED, BlockSink, BlockSource, RolloutBlock
from rookery.transport.mpi import MpiGroup, World
from rookery.transport.packed import Packed

BEAT_SECS = 1.0
SILENCE_SECS = 10.0
"""Beyond the environment's own time-out, which comes first: it can name the environment."""
STOP, GO = 0.0, 1.0

_rounds = 0


def rounds_begun() -> int:
    """How many rounds this rank has seen begin, or be called off."""
    return _rounds


def begin_round(ranks: World, start_steps: int = 0) -> tuple[bool, int, int]:
    """Rank 0 goes on; the others hear whether to: exit code, and steps the run starts from."""
    global _rounds
    header = np.array([GO, 0.0, float(start_steps)])
    ranks.share(header)
    _rounds += 1
    return bool(header[0] == GO), int(header[1]), int(header[2])


def end_round(ranks: World, code: int) -> None:
    """Nobody goes on; all end with ``code``."""
    global _rounds
    _rounds += 1
    ranks.share(np.array([STOP, float(code), 0.0]))


class LeadActors:
    """``sync``: learn from what the other ranks bring."""

    def __init__(self, job: Job, ranks: World, signature: Signature) -> None:
        config = job.config
        self.ranks, self.config = ranks, config
        self.num_actors, num_envs = ranks.size - 1, config.env.num_envs
        rounds = config.on_policy.rollouts_per_update
        policy = build_policy(config, signature)
        self.block = RolloutBlock(
            Packed(batch_spec(config, policy, rounds * self.num_actors * num_envs)).arrays,
            np.zeros(rounds * self.num_actors, np.int64),
            num_actors=self.num_actors,
            num_envs=num_envs,
        )
        self.params = Packed(_param_specs(config, signature))
        spec = batch_spec(config, policy, rounds * num_envs)
        self.arriving = {rank: Packed(spec) for rank in range(1, ranks.size)}
        self.theirs = {
            rank: RolloutBlock(
                part.arrays, np.zeros(rounds, np.int64), num_actors=1, num_envs=num_envs
            )
            for rank, part in self.arriving.items()
        }
        self.learner = build_learner(
            config,
            signature,
            source=BlockSource(self.block),
            params=SharedParams(self.params.arrays),
        )
        self.started = time.monotonic()
        self.start_steps, self.slowest = 0, 1

    def begin(self, start_steps: int) -> None:
        """Publish the weights that the actors begin with."""
        self.start_steps = start_steps
        self.learner.start()

    def step(self) -> Update:
        """A round: weights out, rollouts in, learn."""
        ranks = self.ranks
        begin_round(ranks, self.start_steps)
        ranks.share(self.params.buffer)
        arrived = ranks.receive({rank: part.buffer for rank, part in self.arriving.items()})
        self.slowest = max(arrived, key=lambda rank: arrived[rank])
        for rank, block in self.theirs.items():
            self._place(rank - 1, block)
        return self.learner.step()

    def _place(self, actor: int, theirs: RolloutBlock) -> None:
        """An actor's rollouts into the columns of its slots."""
        for turn, slot in enumerate(theirs.slots):
            mine = turn * self.num_actors + actor
            arrays = slot.flat()
            for name, array in self.block.slots[mine].flat().items():
                array[:] = arrays[name]
            self.block.flags[mine] = FILLED

    def fleet(self) -> dict[str, float]:
        """Who waits for whom."""
        life = max(time.monotonic() - self.started, 1e-9)
        return {
            "fleet/actors": self.num_actors,
            "fleet/learner_wait_share": self.ranks.waited_secs / life,
            "fleet/slowest_rank": self.slowest,
        }

    def close(self) -> None:
        """Nothing is open."""


class LeadWorkers:
    """``allreduce``: act and learn like the others."""

    def __init__(self, job: Job, ranks: World, signature: Signature) -> None:
        self.ranks = ranks
        self.worker = build_worker(job.config, signature, ranks, start_steps=_start_of(job))
        self.learner = self.worker.learner
        self.started = time.monotonic()

    def begin(self, start_steps: int) -> None:
        """Everyone starts from rank 0's state."""
        begin_round(self.ranks, start_steps)
        _share_state(self.ranks, self.learner)
        self.learner.start()

    def step(self) -> Update:
        """One update of all."""
        begin_round(self.ranks)
        return self.worker.step()

    def fleet(self) -> dict[str, float]:
        """Who waits for whom."""
        life = max(time.monotonic() - self.started, 1e-9)
        return {
            "fleet/workers": self.ranks.size,
            "fleet/worker_wait_share": self.ranks.waited_secs / life,
        }

    def close(self) -> None:
        """Close the environments."""
        self.worker.close()


def _start_of(job: Job) -> int:
    return job.resume.steps if job.resume is not None else 0


class Watch:
    """Rank 0 looks, while it waits, whether the others live."""

    def __init__(self, ranks: World, config: RunConfig) -> None:
        self.ranks, self.config = ranks, config
        self.limit_secs = certain_secs(config.env.step_timeout_secs) + SILENCE_SECS
        self.reset()

    def reset(self) -> None:
        """A round begins."""
        self.heard = dict.fromkeys(range(1, self.ranks.size), time.monotonic())
        self.looked = time.monotonic()
        self.attention = Attention()

    def look(self) -> None:
        """End the job if a rank has been silent for too long."""
        moment = time.monotonic()
        if moment - self.looked < BEAT_SECS / 2:
            return
        self.looked = moment
        begun = self.attention.look()
        for rank in self.ranks.heard():
            self.heard[rank] = moment
        silent = min(self.heard, key=lambda rank: self.heard[rank], default=None)
        if silent is not None and moment - max(self.heard[silent], begun) > self.limit_secs:
            raise EnvironmentFault(
                f"{self.ranks.name(silent)} has been silent for {self.limit_secs:g} s: it hangs, "
                f"most likely in its environment {self.config.env.id} (env.step_timeout_secs is "
                f"{self.config.env.step_timeout_secs:g})"
            )


# ---- the other ranks -----------------------------------------------------------------------------


def follow(config: RunConfig, ranks: World) -> int:
    """Act, or work, until rank 0 says that it is over; its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 hears them too and ends the run
        with contextlib.suppress(ValueError):
            signal.signal(number, signal.SIG_IGN)
    go_on, code, start_steps = begin_round(ranks)
    if not go_on:
        return code
    signature = probe(config.env, config.seed)
    program = build_program(config)
    with compute_threads(program.nodes[0].num_threads):
        if config.formation == "allreduce":
            return _follow_worker(config, ranks, signature, start_steps)
        return _follow_actor(config, ranks, signature, start_steps)


def _follow_actor(config: RunConfig, ranks: World, signature: Signature, start_steps: int) -> int:
    policy = build_policy(config, signature)
    rounds, num_envs = config.on_policy.rollouts_per_update, config.env.num_envs
    rollouts = Packed(batch_spec(config, policy, rounds * num_envs))
    flags = np.zeros(rounds, np.int64)
    block = RolloutBlock(rollouts.arrays, flags, num_actors=1, num_envs=num_envs)
    params = Packed(_param_specs(config, signature))
    actor = build_actor(
        config,
        signature,
        ranks.rank - 1,
        sink=BlockSink(block, 0),
        params=SharedParams(params.arrays),
        start_steps=start_steps,
        pulse=_Beating(ranks),
    )
    with contextlib.closing(actor):
        while True:
            ranks.share(params.buffer)
            while actor.ready():
                actor.step()
            ranks.send(rollouts.buffer)
            flags[:] = 0
            go_on, code, _ = begin_round(ranks)
            if not go_on:
                return code


def _follow_worker(config: RunConfig, ranks: World, signature: Signature, start_steps: int) -> int:
    worker = build_worker(config, signature, ranks, start_steps=start_steps)
    _share_state(ranks, worker.learner)
    worker.learner.vary(config.seed)
    worker.learner.start()
    with contextlib.closing(worker):
        while True:
            go_on, code, _ = begin_round(ranks)
            if not go_on:
                return code
            worker.step()


class _Beating(Pulse):
    """A pulse that rank 0 can hear."""

    def __init__(self, ranks: World) -> None:
        super().__init__()
        self.ranks = ranks
        self.last = time.monotonic()

    @contextlib.contextmanager
    def in_env(self) -> Iterator[None]:
        """Time spent in environment code."""
        if time.monotonic() - self.last > BEAT_SECS:
            self.last = time.monotonic()
            self.ranks.beat()
        with super().in_env():
            yield


# ---- what both ends build ------------------------------------------------------------------------


def build_worker(
    config: RunConfig, signature: Signature, ranks: World, *, start_steps: int
) -> Worker:
    """This rank's worker."""
    assert isinstance(config.formation_config, AllreduceConfig)
    actors, learner = build_together(
        config,
        signature,
        [ranks.rank],
        start_steps=lambda replica: start_steps,
        group=MpiGroup(ranks),
        pulse=_Beating(ranks) if ranks.rank else None,
    )
    return Worker(actors[0], learner, check_every=config.formation_config.check_every)


def _param_specs(config: RunConfig, signature: Signature) -> dict[str, ArraySpec]:
    return param_specs(FlatParams(build_policy(config, signature)).tensors())


def _share_state(ranks: World, learner: Learner) -> None:
    """Rank 0's weights, optimizer, statistics and counters to all, as safetensors and JSON."""
    data = np.zeros(0, np.uint8)
    if ranks.rank == 0:
        data = np.frombuffer(_pack(learner.save_state()), np.uint8).copy()
    size = np.array([len(data)], np.float64)
    ranks.share(size)
    data = data if ranks.rank == 0 else np.zeros(int(size[0]), np.uint8)
    ranks.share(data)
    if ranks.rank:
        learner.load_state(_unpack(data.tobytes()))


def _pack(parts: dict[str, State]) -> bytes:
    arrays = {
        f"{part}/{name}": torch.as_tensor(array).contiguous()
        for part, state in parts.items()
        for name, array in state.arrays.items()
    }
    told = {part: json.dumps(state.data) for part, state in parts.items()}
    packed: bytes = safetensors.torch.save(arrays)
    head = json.dumps(told).encode()
    return len(head).to_bytes(8, "little") + head + packed


def _unpack(data: bytes) -> dict[str, State]:
    start = 8 + int.from_bytes(data[:8], "little")
    arrays = safetensors.torch.load(data[start:])
    parts = {part: State({}, json.loads(text)) for part, text in json.loads(data[8:start]).items()}
    for name, tensor in arrays.items():
        part, _, leaf = name.partition("/")
        parts[part].arrays[leaf] = tensor
    return parts
