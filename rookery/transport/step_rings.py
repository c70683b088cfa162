"""Steps of many actors on their way into replay, through bounded rings without a lock.

Every actor has a ring of S slots, each memory for one step of its environments. The actor counts
what it has *put*, replay what it has *taken*; every count has one writer. What a killed actor had
half written was never counted, and its replacement writes over it.

Shapes: A actors, S slots of each, B environments of one actor, W numbers that an episode tells.
"""

from __future__ import annotations

import numpy as np

from rookery.core.sequence import Steps, StepSpec
from rookery.core.spec import Array, Arrays, ArraySpec
from rookery.transport.wake import Wake

_INT, _FLOAT, _BOOL = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.bool_)
_LINE = 8
"""Counts of different writers lie on cache lines of their own."""
_PUT, _LIFE = 0, 1
_ENDED, _SAW_LAST, _VALUED_LAST = 0, 1, 2
"""Of a slot's header: episodes that ended; whether final_obs and final_extra are there."""


def step_ring_specs(
    spec: StepSpec, *, num_actors: int, num_slots: int, num_envs: int, episode_width: int
) -> dict[str, ArraySpec]:
    """The arrays of :class:`StepRings`."""
    leaves = {f"obs/{name}": leaf for name, leaf in spec.obs.items()}
    leaves |= {f"final_obs/{name}": leaf for name, leaf in spec.obs.items()}
    leaves |= {f"state/{name}": leaf for name, leaf in spec.state.items()}
    leaves |= {f"extra/{name}": leaf for name, leaf in spec.extra.items()}
    leaves |= {f"final_extra/{name}": leaf for name, leaf in spec.extra.items()}
    leaves |= {
        "action": spec.action,
        "reward": ArraySpec((), np.dtype(np.float32)),
        "terminated": ArraySpec((), _BOOL),
        "truncated": ArraySpec((), _BOOL),
        "valid": ArraySpec((), _BOOL),
        "episodes": ArraySpec((episode_width,), _FLOAT),
    }
    slots = {
        f"slot/{name}": leaf.with_axes(num_actors, num_slots, num_envs)
        for name, leaf in leaves.items()
    }
    return {
        "put": ArraySpec((num_actors, _LINE), _INT),
        "taken": ArraySpec((num_actors, _LINE), _INT),
        "steps": ArraySpec((_LINE,), _INT),
        "header": ArraySpec((num_actors, num_slots, _LINE), _INT),
        **slots,
    }


class StepRings:
    """The rings of all actors."""

    def __init__(self, arrays: Arrays) -> None:
        self.put, self.taken = arrays["put"], arrays["taken"]
        self.steps = arrays["steps"]
        """``[0]``: steps of the run, as replay counts them."""
        self.header = arrays["header"]
        self.num_actors, self.num_slots = map(int, self.header.shape[:2])
        self.slots = {
            name.removeprefix("slot/"): array
            for name, array in arrays.items()
            if name.startswith("slot/")
        }

    def waiting(self, actor: int) -> int:
        """Slots of an actor that are put and not taken."""
        return int(self.put[actor, _PUT] - self.taken[actor, 0])


class RingSink:
    """An actor's end (a :class:`~rookery.roles.explorer.StepSink`)."""

    def __init__(
        self,
        rings: StepRings,
        actor: int,
        *,
        life: int,
        steps_each: int,
        own: Wake | None = None,
        other: Wake | None = None,
    ) -> None:
        """``steps_each``: how many puts follow a :meth:`can_put`."""
        self.rings, self.actor = rings, actor
        self.steps_each = steps_each
        self.bell, self.replay_bell = own, other
        rings.put[actor, _LIFE] = life

    def can_put(self) -> bool:
        """Whether enough slots are free."""
        room = self.rings.num_slots - self.rings.waiting(self.actor)
        return bool(room >= self.steps_each)

    def put(self, steps: Steps, episodes: Array) -> None:
        """Copy into the next slot and hand it over."""
        rings, actor = self.rings, self.actor
        if rings.waiting(actor) >= rings.num_slots:
            raise RuntimeError("put() without can_put()")
        number = int(rings.put[actor, _PUT])
        place = (actor, number % rings.num_slots)
        for name, array in _flat(steps).items():
            rings.slots[name][place][...] = array
        rings.slots["episodes"][place][: len(episodes)] = episodes
        header = rings.header[place]
        header[_ENDED] = len(episodes)
        header[_SAW_LAST] = steps.final_obs is not None
        header[_VALUED_LAST] = steps.final_extra is not None
        header[3] = rings.put[actor, _LIFE]
        rings.put[actor, _PUT] = number + 1  # last: from here on it is replay's
        if self.replay_bell is not None:
            self.replay_bell.ring()

    def total_steps(self) -> int:
        """What replay has counted."""
        return int(self.rings.steps[0])

    def wait(self, timeout_secs: float) -> None:
        """Sleep until replay has taken."""
        if self.bell is not None:
            self.bell.wait(timeout_secs)


class RingSource:
    """Replay's end: steps of all actors, each in its turn."""

    def __init__(self, rings: StepRings, num_envs: int, bells: list[Wake] | None = None) -> None:
        self.rings, self.num_envs, self.bells = rings, num_envs, bells or []
        self.lives = np.full(rings.num_actors, -1, np.int64)
        self._next = 0

    def head(self) -> int | None:
        """The actor whose step comes next; None if nothing waits."""
        for turn in range(self.rings.num_actors):
            actor = (self._next + turn) % self.rings.num_actors
            if self.rings.waiting(actor) > 0:
                return actor
        return None

    def take(self, actor: int) -> tuple[Steps, Array, bool]:
        """The oldest step of ``actor``, its episodes, and whether another life of it made this.

        Views of shared memory: call :meth:`done` when they were read.
        """
        rings = self.rings
        place = (actor, int(rings.taken[actor, 0]) % rings.num_slots)
        header = rings.header[place]
        steps = _steps(
            {name: array[place] for name, array in rings.slots.items()},
            np.arange(actor * self.num_envs, (actor + 1) * self.num_envs),
            saw_last=bool(header[_SAW_LAST]),
            valued_last=bool(header[_VALUED_LAST]),
        )
        renewed = bool(self.lives[actor] != header[3])
        self.lives[actor] = header[3]
        return steps, rings.slots["episodes"][place][: header[_ENDED]].copy(), renewed

    def done(self, actor: int) -> None:
        """The slot of the step taken last is free again."""
        self.rings.taken[actor, 0] += 1
        self._next = (actor + 1) % self.rings.num_actors
        if self.bells:
            self.bells[actor].ring()


def _flat(steps: Steps) -> Arrays:
    """The arrays of ``steps`` by the names of the slots."""
    groups = {"obs": steps.obs, "final_obs": steps.final_obs, "state": steps.state}
    groups |= {"extra": steps.extra, "final_extra": steps.final_extra}
    flat = {
        f"{group}/{name}": leaf
        for group, leaves in groups.items()
        for name, leaf in (leaves or {}).items()
    }
    flat |= {name: getattr(steps, name) for name in ("action", "reward", "terminated", "truncated")}
    return flat | {"valid": np.asarray(True) if steps.valid is None else steps.valid}


def _steps(slot: Arrays, streams: Array, *, saw_last: bool, valued_last: bool) -> Steps:
    def leaves(group: str) -> Arrays:
        prefix = f"{group}/"
        return {
            name.removeprefix(prefix): array
            for name, array in slot.items()
            if name.startswith(prefix)
        }

    return Steps(
        stream=streams,
        obs=leaves("obs"),
        action=slot["action"],
        reward=slot["reward"],
        terminated=slot["terminated"],
        truncated=slot["truncated"],
        final_obs=leaves("final_obs") if saw_last else None,
        valid=slot["valid"],
        state=leaves("state"),
        extra=leaves("extra"),
        final_extra=leaves("final_extra") if valued_last else None,
    )
