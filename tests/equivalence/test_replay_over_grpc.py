"""Replay learns the same from an actor at another host as from one here: to the bit.

The same actor, replay and learner as in ``test_replay_processes``, with a real socket between the
actor's host and the others', over which every edge between them goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rookery.carriers.heap import allocate
from rookery.core.ports import End
from rookery.engines.assemble import Wired, layouts
from rookery.engines.loop import build_member
from rookery.programs.plan import Plan
from tests.equivalence.test_replay_processes import CASES, Seen, here, note, plan_of, take_turn
from tests.linked import Head, Link
from tests.wired import in_turn


class TwoHosts:
    """The actor's host has ends of its own; the rest is around the head's memory."""

    def __init__(self, plan: Plan, head: Head) -> None:
        program = plan.program()
        self.plan = plan
        wakeups = in_turn(program)
        ours = Wired(program, allocate(layouts(program)), wakeups)
        ends, pairs = {}, []
        for edge in program.edges_of("actor"):
            assert edge.source == "actor"
            one = edge.port.for_one(0)
            arrays = allocate(one.layout())
            ends[edge.key, 0, 0] = one.client(End(arrays))
            server = edge.port.server_relay(ours.client_end(edge, 0))
            pairs.append((one.client_relay(arrays), server, edge.port.kind == "cell"))
        theirs = Wired(program, {}, wakeups, ends)
        self.link = Link(head, pairs, "actor")
        self.actor = self.role(theirs, "actor")
        self.replay, self.learner = (self.role(ours, name) for name in ("replay", "learner"))

    def role(self, wired: Wired, name: str) -> Any:
        node = self.plan.program().node(name)
        return build_member(wired, self.plan, node, 0, run=Path("nowhere")).role

    def play(self, passes: int) -> Seen:
        """Actor, replay and learner in turn, as ``here`` does it."""
        torch.set_num_threads(1)
        seen = Seen()
        self.learner.start()
        self.replay.start()
        self.replay_turn()
        for _ in range(passes):
            self.link.settle()
            if self.actor.ready():
                self.actor.step()
            self.link.settle()
            self.replay_turn()
            if self.learner.ready():
                note(seen, self.learner)
        return seen

    def replay_turn(self) -> None:
        """What it tells of a turn is told as a whole, as it is where nobody looks meanwhile."""
        with self.link.server.still():
            take_turn(self.replay)


@contextmanager
def two_hosts(plan: Plan) -> Iterator[TwoHosts]:
    with ExitStack() as closing:
        hosts = TwoHosts(plan, closing.enter_context(Head()))
        closing.callback(hosts.actor.close)
        yield hosts
        hosts.link.close()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "local"])
@pytest.mark.parametrize("algo", CASES)
def test_replay_of_another_hosts_steps_equals_replay_here(algo: str, engine: str) -> None:
    plan = plan_of(algo, engine)
    mine = here(plan, 150)
    with two_hosts(plan) as hosts:
        theirs = hosts.play(150)
    assert len(mine.keys) > 20
    assert mine.steps == theirs.steps
    for name in ("keys", "batches"):
        for a, b in zip(getattr(mine, name), getattr(theirs, name), strict=True):
            assert np.array_equal(a, b), name
    assert all(torch.equal(a, b) for a, b in zip(mine.weights, theirs.weights, strict=True))
