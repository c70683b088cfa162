"""What each formation moves, as formulas, and how fast it goes, as a simulation of its processes.

::

    traffic("sync", work)                           # bytes and messages of one update
    simulate("async", rates, work)                  # steps/s, updates/s, staleness ...

Seconds are of one core unless they are said to be of a link. A worker is an actor of the formations
that have a learner, and acts and learns in the others.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.events import Event, Process, Queue, Resource, Simulation


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a core and a link do, measured, or assumed where that is said."""

    num_params: int
    obs_bytes: int
    env_secs: float
    """A core's, of one environment's step."""
    wait_secs: float = 0.0
    """Of one environment's step in which no core is needed: a sleeping environment."""
    forward_secs: float
    """Of choosing actions, however many; ``forward_env_secs`` more for each environment."""
    forward_env_secs: float
    gradient_secs: float
    """Of one minibatch, however large; ``gradient_step_secs`` more for each of its steps."""
    gradient_step_secs: float
    optimizer_param_secs: float
    """Of an optimizer step, for each parameter."""
    replayed_secs: float = 0.0
    """Of learning from one sampled sequence by DQN; ``replay_put_secs`` of putting a step."""
    replay_put_secs: float = 0.0
    memory_byte_secs: float
    """Of copying or adding up in memory."""
    message_secs: float
    """Of a process at either end of a network link, for each message."""
    byte_secs: float
    """The same, for each byte."""
    obs_byte_secs: float
    """The same, for each byte of observations, which are compressed."""
    obs_shrink: float = 1.0
    """By how much compression makes observations smaller."""
    link_bytes_per_sec: float = 1.1e9
    link_latency_secs: float = 5e-5

    def forward(self, num_envs: int) -> float:
        """Choosing the actions of ``num_envs`` environments."""
        return self.forward_secs + num_envs * self.forward_env_secs

    def gradient(self, num_steps: int) -> float:
        """Of one minibatch."""
        return self.gradient_secs + num_steps * self.gradient_step_secs

    @property
    def optimizer(self) -> float:
        """One step of it."""
        return self.num_params * self.optimizer_param_secs

    @property
    def params_bytes(self) -> int:
        """Of all weights, or of a gradient."""
        return 4 * self.num_params


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is run: how many, how much each does, and on what."""

    workers: int
    envs_each: int = 16
    rollout_steps: int = 20
    epochs: int = 1
    num_minibatches: int = 1
    cores_each: int = 1
    """Cores of a worker, which divide its work evenly."""
    workers_per_host: int = 12
    local_cores: int | None = None
    """All processes share so many cores of one machine, and no link; None: a core each."""
    learner_speed: float = 1.0
    """Of a learner and an inference process: how many cores they are worth."""
    learner: str = "async"
    """central: what learns from it, async or replay."""
    batch_rollouts: int | None = None
    """async: rollouts that make a batch; None, and at most: as many as there are workers."""
    slots: int = 2
    steps_per_update: int = 64
    """replay: steps for each update, of ``batch_size`` sampled sequences of ``sequence_steps``."""
    batch_size: int = 64
    sequence_steps: int = 3
    publish_every: int = 8
    num_parts: int = 1
    """central: parts of a worker's environments, of which one steps while another waits."""
    shards: int = 1
    server_cores: int = 1
    """paramserver: of each shard, for messages."""
    grads: int | None = None
    """paramserver: gradients that make an update; None: those of all workers. 0: each by itself,
    asynchronously."""
    overlap: bool = False
    """paramserver: a worker acts one batch ahead while it waits for weights."""
    jitter: float = 0.1
    """Standard deviation of the logarithm of how long each piece of work takes."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """How many times as long some workers take."""

    @property
    def rollout_size(self) -> int:
        """Steps of one rollout."""
        return self.envs_each * self.rollout_steps

    @property
    def batch(self) -> int:
        """Rollouts that make one."""
        return min(self.batch_rollouts or self.workers, self.workers)


# ---- on paper ------------------------------------------------------------------------------------

ACTION_BYTES = 8


@dataclass(frozen=True)
class Traffic:
    """Of one update of the whole run, all links together; of ``steps`` environment steps."""

    steps: float
    up_bytes: float
    """Towards whoever learns or adds up."""
    down_bytes: float
    messages: float

    @property
    def step_bytes(self) -> float:
        """Both ways, for one step."""
        return (self.up_bytes + self.down_bytes) / self.steps


def rollout_bytes(obs_bytes: int, num_steps: int, num_envs: int) -> int:
    """Observation, action and 28 bytes a step; one observation more, and what is there once."""
    return num_envs * (num_steps * (obs_bytes + ACTION_BYTES + 28) + obs_bytes + 13)


def replay_step_bytes(obs_bytes: int) -> int:
    """One step on its way into replay, with a header of its own."""
    return obs_bytes + ACTION_BYTES + 72


def request_bytes(obs_bytes: int) -> int:
    """One environment's step to inference, and its action back."""
    return obs_bytes + 13 + ACTION_BYTES


def replay_batch_bytes(obs_bytes: int, batch_size: int, num_steps: int, told: int = 2) -> int:
    """Sampled sequences, their keys and priorities, and ``told`` numbers of 256 episodes."""
    sequence = (num_steps + 1) * (obs_bytes + 1) + num_steps * (ACTION_BYTES + 7) + 20
    return batch_size * sequence + 64 + 256 * 8 * told


def traffic(formation: str, rates: Rates, work: Work) -> Traffic:
    """Bytes and messages of an update."""
    return PAPER[formation](rates, work)


def _rounds(rates: Rates, work: Work) -> Traffic:
    count, whole = work.workers, work.workers * work.rollout_size
    up = count * rollout_bytes(rates.obs_bytes, work.rollout_steps, work.envs_each)
    return Traffic(whole, up, count * rates.params_bytes, 2 * count)


def _queued(rates: Rates, work: Work) -> Traffic:
    rollouts = work.batch
    up = rollouts * rollout_bytes(rates.obs_bytes, work.rollout_steps, work.envs_each)
    down = work.workers * rates.params_bytes
    return Traffic(rollouts * work.rollout_size, up, down, rollouts + work.workers)


def _replayed(rates: Rates, work: Work) -> Traffic:
    steps, told = work.steps_per_update, 1 / work.publish_every
    up = steps * replay_step_bytes(rates.obs_bytes)
    batch = replay_batch_bytes(rates.obs_bytes, work.batch_size, work.sequence_steps)
    down = batch + told * work.workers * rates.params_bytes
    return Traffic(steps, up, down, steps / work.envs_each + 2 + told * work.workers)


def _asked(rates: Rates, work: Work) -> Traffic:
    """Weights stay where inference is; what it puts does not leave the machine."""
    steps = work.batch * work.rollout_size
    asked = request_bytes(rates.obs_bytes) - ACTION_BYTES
    messages = 2 * steps / (work.envs_each / work.num_parts)
    return Traffic(steps, steps * asked, steps * ACTION_BYTES, messages)


def _added(rates: Rates, work: Work) -> Traffic:
    count, each = work.workers, rates.params_bytes + 4
    whole = count * work.rollout_size / (work.epochs * work.num_minibatches)
    return Traffic(whole, count * each, count * each, 2 * count)


def _pushed(rates: Rates, work: Work) -> Traffic:
    """All push and pull; an update is made of ``grads`` of them."""
    grads = work.workers if work.grads is None else max(work.grads, 1)
    pushing = 1 if work.grads == 0 else work.workers
    moved = pushing * rates.params_bytes
    return Traffic(grads * work.rollout_size, moved, moved, 2 * pushing * work.shards)


PAPER: dict[str, Callable[[Rates, Work], Traffic]] = {
    "sync": _rounds,
    "async": _queued,
    "replay": _replayed,
    "central": _asked,
    "allreduce": _added,
    "paramserver": _pushed,
}


# ---- by simulation -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a simulated run did after its beginning."""

    steps_per_sec: float
    updates_per_sec: float
    dropped: int = 0
    """Gradients that came too late."""
    staleness: float = 0.0
    """Updates between the weights a gradient was made with and those it was added to."""
    learner_busy: float = 0.0
    """Share of the learner's time."""


class Exchange:
    """One direction between a host and the head: what is pending goes as one message."""

    def __init__(self, run: Run, cpu: Resource, host: Resource, head: Resource) -> None:
        self.run, self.cpu, self.host, self.head = run, cpu, host, head
        self.pending: Queue = Queue(run.sim)
        run.sim.start(self._carry())

    def send(self, num_bytes: float, cpu_secs: float) -> Process:
        """Wait until it has arrived."""
        arrived = Event(self.run.sim)
        self.pending.put((num_bytes, cpu_secs, arrived))
        yield arrived

    def _carry(self) -> Process:
        rates = self.run.rates
        while True:
            frames = yield from self.pending.get_all()
            yield from self.cpu.use(rates.message_secs + sum(frame[1] for frame in frames))
            num_bytes = sum(frame[0] for frame in frames)
            yield from crossing(rates, num_bytes, self.host, self.head)
            for *_, arrived in frames:
                arrived.fire()


def crossing(rates: Rates, num_bytes: float, sender: Resource, receiver: Resource) -> Process:
    """The wire: both ends are taken as long as bytes pass."""
    yield from sender.acquire()
    yield from receiver.acquire()
    yield num_bytes / rates.link_bytes_per_sec
    sender.release()
    receiver.release()
    yield rates.link_latency_secs


class Run:
    """One simulated run: its clock, its machines, and its counts."""

    def __init__(self, rates: Rates, work: Work, seed: int, rollouts_each: tuple[int, int]) -> None:
        self.sim, self.rates, self.work = Simulation(), rates, work
        self.rngs = [random.Random(seed * 1_000_003 + worker) for worker in range(work.workers)]
        self.rng = random.Random(seed)
        self.cores = Resource(self.sim, work.local_cores) if work.local_cores else None
        self.learner = Resource(self.sim)
        hosts = range(-(-work.workers // work.workers_per_host))
        self.gateway = Resource(self.sim), Resource(self.sim)  # up, down: a thread each
        self.nics = [(Resource(self.sim), Resource(self.sim)) for _ in hosts]  # out, in
        self.head_nic = Resource(self.sim), Resource(self.sim)
        self.up = [
            Exchange(self, self.gateway[0], self.nics[host][0], self.head_nic[1]) for host in hosts
        ]
        self.down = [
            Exchange(self, self.gateway[1], self.head_nic[0], self.nics[host][1]) for host in hosts
        ]
        warm, until = (count * work.workers * work.rollout_size for count in rollouts_each)
        self.warm, self.until = warm, until
        self.steps = self.updates = self.version = 0
        self.dropped, self.stale = 0, 0.0
        self.begun: tuple[float, int, int, float] | None = None
        self.published = Event(self.sim)

    # ---- counting --------------------------------------------------------------------------------

    def count(self, steps: int) -> None:
        """Steps that were made, or learned from."""
        self.steps += steps
        if self.begun is None and self.steps >= self.warm:
            self.begun = self.sim.now, self.steps, self.updates, self.learner.busy_secs
        elif self.steps >= self.until:
            self.sim.stop()

    def outcome(self) -> Outcome:
        """Rates between the two counts."""
        assert self.begun is not None
        began, steps, updates, busy = self.begun
        lasted = self.sim.now - began
        return Outcome(
            (self.steps - steps) / lasted,
            (self.updates - updates) / lasted,
            self.dropped,
            self.stale / max(self.updates, 1),
            (self.learner.busy_secs - busy) / lasted,
        )

    # ---- what takes time -------------------------------------------------------------------------

    def factor(self, worker: int) -> float:
        """How much longer than usual this piece of work takes."""
        sigma = self.work.jitter
        spread = self.rngs[worker].lognormvariate(-sigma * sigma / 2, sigma) if sigma else 1.0
        return spread * self.work.slow.get(worker, 1.0)

    def compute(self, secs: float) -> Process:
        """On a core of its own, or on one of those that all share."""
        if self.cores is None:
            yield secs
        else:
            yield from self.cores.use(secs)

    def think(self, secs: float) -> Process:
        """What the learner, or inference, computes."""
        yield from self.learner.acquire()
        yield from self.compute(secs / self.work.learner_speed)
        self.learner.busy_secs += secs / self.work.learner_speed
        self.learner.release()

    def learning(self, steps: int) -> float:
        """Seconds of a batch: every epoch of every minibatch."""
        rates, work = self.rates, self.work
        minibatch = steps / work.num_minibatches
        each = rates.gradient_secs + minibatch * rates.gradient_step_secs + rates.optimizer
        return work.epochs * work.num_minibatches * each

    def act(self, worker: int, vector_steps: int, num_envs: int, chooses: bool = True) -> Process:
        """Environments, and the network unless somebody else chooses."""
        rates = self.rates
        busy = num_envs * rates.env_secs + (rates.forward(num_envs) if chooses else 0.0)
        busy /= self.work.cores_each
        if self.cores is None:
            yield vector_steps * (num_envs * rates.wait_secs + busy) * self.factor(worker)
            return
        for _ in range(vector_steps):
            factor = self.factor(worker)
            if rates.wait_secs:
                yield num_envs * rates.wait_secs * factor
            yield from self.cores.use(busy * factor)

    def put(self, worker: int, num_bytes: int) -> Process:
        """Experience to the head, or into shared memory."""
        rates = self.rates
        if self.cores is not None:
            yield from self.compute(num_bytes * rates.memory_byte_secs)
            return
        exchange = self.up[worker // self.work.workers_per_host]
        yield from exchange.send(num_bytes / rates.obs_shrink, num_bytes * rates.obs_byte_secs)

    def get_weights(self, worker: int) -> Process:
        """The published weights to a worker."""
        rates = self.rates
        if self.cores is not None:
            yield from self.compute(rates.params_bytes * rates.memory_byte_secs)
            return
        exchange = self.down[worker // self.work.workers_per_host]
        yield from exchange.send(rates.params_bytes, rates.params_bytes * rates.byte_secs)

    def publish(self) -> None:
        """A version more; whoever waits for one goes on."""
        self.version += 1
        before, self.published = self.published, Event(self.sim)
        before.fire(self.version)

    def updated(self) -> None:
        """An update more, and its weights."""
        self.updates += 1
        self.publish()

    def all_workers(self, process: Callable[[int], Process]) -> None:
        """Start ``process`` for each."""
        for worker in range(self.work.workers):
            self.sim.start(process(worker))

    def follows(self, worker: int) -> Process:
        """Bring a worker the newest weights, again and again: none of them is waited for."""
        have = 0
        while True:
            if have == self.version:
                yield self.published
            have = self.version
            yield from self.get_weights(worker)


def sync(run: Run) -> None:
    """All act, the learner learns, all get the new weights."""
    work, size = run.work, run.work.rollout_size

    def round_of(worker: int) -> Process:
        yield from run.get_weights(worker)
        yield from run.act(worker, work.rollout_steps, work.envs_each)
        yield from run.put(
            worker, rollout_bytes(run.rates.obs_bytes, work.rollout_steps, work.envs_each)
        )

    def learner() -> Process:
        while True:
            yield from run.sim.all(round_of(worker) for worker in range(work.workers))
            yield from run.think(run.learning(work.workers * size))
            run.updated()
            run.count(work.workers * size)

    run.sim.start(learner())


def queued(run: Run) -> None:
    """Actors fill slots of a queue; the learner takes the oldest rollouts."""
    work = run.work
    rollouts = Queue(run.sim)
    free = [Queue(run.sim, range(work.slots)) for _ in range(work.workers)]
    size = rollout_bytes(run.rates.obs_bytes, work.rollout_steps, work.envs_each)

    def actor(worker: int) -> Process:
        while True:
            yield from free[worker].get()
            yield from run.act(worker, work.rollout_steps, work.envs_each)
            run.sim.start(sent(worker))

    def sent(worker: int) -> Process:
        yield from run.put(worker, size)
        rollouts.put(worker)

    run.all_workers(actor)
    run.all_workers(run.follows)
    run.sim.start(_learner_of(run, rollouts, free, 1))


def _learner_of(run: Run, rollouts: Queue, free: list[Queue], parts: int) -> Process:
    """Takes rollouts as they come; each is ``1 / parts`` of a worker's."""
    work = run.work
    batch = parts * work.batch
    steps = batch * work.rollout_size // parts
    while True:
        taken = yield from rollouts.get_many(batch)
        yield from run.think(run.learning(steps))
        for lane in taken:
            free[lane].put(0)
        run.updated()
        run.count(steps)


RING_SLOTS, BATCHES_READY = 4, 3
"""Steps of an actor's environments that may wait for replay; batches that are made and learned."""


class Ratio:
    """Steps and updates of replay keep pace: neither side runs far ahead."""

    def __init__(self, run: Run, most_put: int) -> None:
        """``most_put``: steps that come at once."""
        self.sim, self.per_update = run.sim, run.work.steps_per_update
        self.buffer = max(most_put, self.per_update)
        self.surplus = 0
        """Steps that were put, less those that updates were made for."""
        self.putting: deque[Event] = deque()
        self.sampling: deque[Event] = deque()

    def put(self, steps: int) -> Process:
        """In line, once the learner has come after."""
        if self.surplus > self.buffer:
            turn = Event(self.sim)
            self.putting.append(turn)
            yield turn
        self.surplus += steps
        self._wake()

    def sample(self) -> Process:
        """Once there are steps for an update."""
        if self.surplus < -self.buffer:
            turn = Event(self.sim)
            self.sampling.append(turn)
            yield turn
        self.surplus -= self.per_update
        self._wake()

    def _wake(self) -> None:
        if self.surplus <= self.buffer and self.putting:
            self.putting.popleft().fire()
        if self.surplus >= -self.buffer and self.sampling:
            self.sampling.popleft().fire()


def replayed(run: Run) -> None:
    """Actors put steps into replay, from which the learner samples at a fixed ratio."""
    work = run.work
    chunk = 1 if run.cores is not None else RING_SLOTS
    ratio = Ratio(run, chunk * work.envs_each)
    table = Resource(run.sim)

    def actor(worker: int) -> Process:
        while True:
            yield from run.act(worker, chunk, work.envs_each)
            yield from _put_steps(run, worker, chunk * work.envs_each, table, ratio)

    run.all_workers(actor)
    run.all_workers(run.follows)
    _learn_from_replay(run, table, ratio)


def _put_steps(run: Run, worker: int, steps: int, table: Resource, ratio: Ratio) -> Process:
    yield from run.put(worker, steps * replay_step_bytes(run.rates.obs_bytes))
    yield from _in_turn(run, table, steps * run.rates.replay_put_secs)
    yield from ratio.put(steps)
    run.count(steps)


def _in_turn(run: Run, server: Resource, secs: float) -> Process:
    """Work of a server of one core."""
    yield from server.acquire()
    yield from run.compute(secs)
    server.release()


def _learn_from_replay(run: Run, table: Resource, ratio: Ratio) -> None:
    """Replay samples ahead; the learner takes what is ready."""
    work, rates = run.work, run.rates
    batch = replay_batch_bytes(rates.obs_bytes, work.batch_size, work.sequence_steps)
    empty, ready = Queue(run.sim, range(BATCHES_READY)), Queue(run.sim)

    def sampler() -> Process:
        while True:
            yield from empty.get()
            yield from ratio.sample()
            yield from _in_turn(run, table, batch * rates.memory_byte_secs)
            ready.put(0)

    def learner() -> Process:
        while True:
            yield from ready.get()
            yield from run.think(work.batch_size * rates.replayed_secs)
            empty.put(0)
            run.updates += 1
            if run.updates % work.publish_every == 0:
                run.publish()

    run.sim.start(sampler())
    run.sim.start(learner())


def central(run: Run) -> None:
    """Actors without a network; inference chooses for all that wait, in one batch."""
    work, rates = run.work, run.rates
    envs = work.envs_each // work.num_parts
    asked, inference = Queue(run.sim), Resource(run.sim)
    lanes = work.workers * work.num_parts
    free = [Queue(run.sim, range(work.slots)) for _ in range(lanes)]
    rollouts, table = Queue(run.sim), Resource(run.sim)
    ratio = Ratio(run, envs)
    cores = [Resource(run.sim) for _ in range(work.workers)]

    def part(worker: int, lane: int) -> Process:
        while True:
            for _ in range(work.rollout_steps):
                yield from cores[worker].acquire()
                yield from run.act(worker, 1, envs, chooses=False)
                cores[worker].release()
                yield from run.put(worker, envs * (request_bytes(rates.obs_bytes) - ACTION_BYTES))
                answer = Event(run.sim)
                asked.put(answer)
                yield answer
                yield from _answered(run, worker, envs * ACTION_BYTES)
                if work.learner == "replay":
                    yield from ratio.put(envs)
                    run.count(envs)
            if work.learner != "replay":
                rollouts.put(lane)
                yield from free[lane].get()

    def choose() -> Process:
        while True:
            answers = yield from asked.get_all()
            yield from inference.acquire()
            secs = rates.forward(envs * len(answers)) / work.learner_speed
            yield from run.compute(secs)
            inference.release()
            for answer in answers:
                answer.fire()

    for lane in range(lanes):
        run.sim.start(part(lane // work.num_parts, lane))
    run.sim.start(choose())
    if work.learner == "replay":
        _learn_from_replay(run, table, ratio)
    else:
        run.sim.start(_learner_of(run, rollouts, free, work.num_parts))


def _answered(run: Run, worker: int, num_bytes: int) -> Process:
    """Actions back to a worker."""
    if run.cores is None:
        exchange = run.down[worker // run.work.workers_per_host]
        yield from exchange.send(num_bytes, num_bytes * run.rates.byte_secs)


def allreduce(run: Run) -> None:
    """All act, make a gradient, add up and step; workers of other hosts ask at the head."""
    rates = run.rates

    def adding(worker: int) -> Process:
        if run.cores is not None or worker < run.work.workers_per_host:
            yield from run.compute(rates.params_bytes * rates.memory_byte_secs)
            return
        host = worker // run.work.workers_per_host
        secs = rates.params_bytes * rates.byte_secs
        yield from run.up[host].send(rates.params_bytes, secs)

    def back(worker: int) -> Process:
        if run.cores is not None or worker < run.work.workers_per_host:
            yield from run.compute(rates.params_bytes * rates.memory_byte_secs)
        else:
            yield from run.get_weights(worker)

    # Each adds up a part of all gradients; the gateway does so for those that are elsewhere.
    far = 0 if run.cores is not None else run.work.workers - run.work.workers_per_host
    total = max(1, far) * rates.params_bytes * rates.memory_byte_secs
    run.sim.start(_together(run, adding, total, back))


def allreduce_mpi(run: Run) -> None:
    """The same by MPI: in memory among the workers of a host, then around the hosts."""
    work, rates = run.work, run.rates
    hosts = -(-work.workers // work.workers_per_host)
    within = 2 * min(work.workers, work.workers_per_host) * rates.memory_byte_secs
    around = 2 * (hosts - 1) / hosts * (1 / rates.link_bytes_per_sec + rates.memory_byte_secs)
    latency = 2 * math.ceil(math.log2(hosts)) * rates.link_latency_secs
    total = rates.params_bytes * (within + around) + latency

    def nothing(_: int) -> Process:
        yield 0.0

    run.sim.start(_together(run, nothing, total, nothing))


def _together(
    run: Run, there: Callable[[int], Process], total_secs: float, back: Callable[[int], Process]
) -> Process:
    """Rounds in which all meet once for each minibatch."""
    work, rates, count = run.work, run.rates, run.work.workers
    minibatch = work.rollout_size // work.num_minibatches
    if count == 1:
        total_secs = 0.0

    def made(worker: int, acts: bool) -> Process:
        if acts:
            yield from run.act(worker, work.rollout_steps, work.envs_each)
        secs = rates.gradient(minibatch) / work.cores_each * run.factor(worker)
        yield from run.compute(secs)
        if count > 1:
            yield from there(worker)

    def stepped(worker: int) -> Process:
        if count > 1:
            yield from back(worker)
        yield from run.compute(rates.optimizer)

    while True:
        for number in range(work.epochs * work.num_minibatches):
            yield from run.sim.all(made(worker, number == 0) for worker in range(count))
            yield total_secs
            yield from run.sim.all(stepped(worker) for worker in range(count))
            run.updated()
        run.count(count * work.rollout_size)


class Shard:
    """A parameter server's part of the weights: adds up what comes, and steps."""

    def __init__(self, run: Run, grads: int, leads: bool) -> None:
        """``grads``: how many make an update, 0: each; ``leads``: it counts for all shards."""
        self.run, self.grads, self.leads = run, grads, leads
        self.cpu = Resource(run.sim, run.work.server_cores)
        self.nic = Resource(run.sim), Resource(run.sim)  # out, in
        self.bytes = run.rates.params_bytes / run.work.shards
        self.version = self.here = 0
        self.stepped = Event(run.sim)

    def push(self, worker: int, version: int) -> Process:
        """A gradient made with ``version``; one that comes too late is dropped."""
        run, rates = self.run, self.run.rates
        yield from self._moved(self._nic(worker)[0], self.nic[1])
        yield from _in_turn(run, self.cpu, self._unpacking())
        if self.grads and version < self.version:
            run.dropped += self.leads
            return
        yield from _in_turn(run, self.cpu, self.bytes * rates.memory_byte_secs)
        self.here += 1
        if self.here < self.grads:
            return
        self.here, self.version = 0, self.version + 1
        if self.leads:
            run.stale += self.version - 1 - version
        yield from _in_turn(run, self.cpu, rates.optimizer / run.work.shards)
        before, self.stepped = self.stepped, Event(run.sim)
        before.fire()
        if self.leads:
            run.updates += 1
            run.count(max(self.grads, 1) * run.work.rollout_size)

    def pull(self, worker: int, version: int) -> Process:
        """The weights, newer than ``version`` where gradients are waited for; their version."""
        if self.grads and self.version <= version:
            yield self.stepped
        pulled = self.version
        yield from _in_turn(self.run, self.cpu, self._unpacking())
        yield from self._moved(self.nic[0], self._nic(worker)[1])
        return pulled

    def _unpacking(self) -> float:
        """Seconds of a message to or from the network."""
        rates = self.run.rates
        if self.run.cores is not None:
            return self.bytes * rates.memory_byte_secs
        return rates.message_secs + self.bytes * rates.byte_secs

    def _nic(self, worker: int) -> tuple[Resource, Resource]:
        return self.run.nics[worker // self.run.work.workers_per_host]

    def _moved(self, sender: Resource, receiver: Resource) -> Process:
        if self.run.cores is None:
            yield from crossing(self.run.rates, self.bytes, sender, receiver)


def paramserver(run: Run) -> None:
    """Workers push gradients to all shards and pull the weights that come of them."""
    work, rates, sim = run.work, run.rates, run.sim
    grads = work.workers if work.grads is None else work.grads
    if grads > work.workers:
        raise ValueError(f"{grads} gradients of {work.workers} workers: have fewer")
    shards = [Shard(run, grads, leads=number == 0) for number in range(work.shards)]
    acting = work.rollout_steps * (work.envs_each * rates.env_secs + rates.forward(work.envs_each))
    acting /= work.cores_each
    learning = rates.gradient(work.rollout_size) / work.cores_each

    def worker_of(worker: int) -> Process:
        version, idle = 0, 0.0
        while True:
            factor = run.factor(worker)
            if work.overlap:  # simulators go on while the worker waits, one batch ahead
                yield max(acting * factor - idle, 0.0)
            else:
                yield from run.act(worker, work.rollout_steps, work.envs_each)
            yield from run.compute(learning * factor)
            began = sim.now
            yield from sim.all(shard.push(worker, version) for shard in shards)
            version, *_ = yield from sim.all(shard.pull(worker, version) for shard in shards)
            idle = sim.now - began

    run.all_workers(worker_of)


MODELS: dict[str, Callable[[Run], None]] = {
    "sync": sync,
    "async": queued,
    "replay": replayed,
    "central": central,
    "allreduce": allreduce,
    "allreduce, MPI": allreduce_mpi,
    "paramserver": paramserver,
}


def simulate(
    formation: str,
    rates: Rates,
    work: Work,
    *,
    seed: int = 0,
    rollouts_each: tuple[int, int] = (3, 10),
) -> Outcome:
    """Run ``formation`` until each worker has made so many rollouts, the first uncounted."""
    run = Run(rates, work, seed, rollouts_each)
    MODELS[formation](run)
    run.sim.run()
    if run.begun is None or run.steps < run.until:
        raise RuntimeError(f"{formation}: all wait for each other at {run.sim.now:.3f} s")
    return run.outcome()
