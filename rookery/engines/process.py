"""One role in a process of its own: what a child of the local engine becomes.

The driver sends an order; what both sides share is memory and one wake-up for each replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rookery.carriers.shared_memory import SharedArena
from rookery.core.heap import keep_freed_memory
from rookery.core.signature import Signature
from rookery.engines.assemble import Wired, layouts
from rookery.engines.interrupt import Stop
from rookery.engines.joined import JoinedReplicas
from rookery.engines.loop import Member, NowAndThen, build_member, run_members
from rookery.engines.session_owner import SessionOwner, begin_with, restore
from rookery.programs.graph import Edge, Node, Program
from rookery.programs.plan import Plan
from rookery.recipes.settings import config_from_tree
from rookery.runs.checkpoint_files import Checkpoint, State
from rookery.runs.directory import RunDirectory
from rookery.runs.find import load_checkpoint
from rookery.runs.packed_parts import unpack_parts
from rookery.runs.session import Callbacks, Record
from rookery.runs.start import starting_weights
from rookery.transport.control import Control, Listener
from rookery.transport.eventfd import EventFd

Order = dict[str, Any]
"""What the driver asks a process to be."""


class SharedProgram:
    """A program in shared memory, the same in every process."""

    def __init__(
        self, program: Program, arena: SharedArena, wakeups: Mapping[str, Sequence[EventFd]]
    ) -> None:
        self.arena, self.wakeups = arena, wakeups
        self.wired = Wired(program, arena.arrays, wakeups)

    @classmethod
    def create(cls, program: Program) -> SharedProgram:
        """Allocate everything (in the driver)."""
        wakeups = {
            node.name: [EventFd.create() for _ in range(node.replicas)] for node in program.nodes
        }
        return cls(program, SharedArena.create(layouts(program)), wakeups)

    @classmethod
    def attach(cls, program: Program, fds: dict[str, Any]) -> SharedProgram:
        """Find everything by the descriptors inherited (in a child)."""
        wakeups = {name: [EventFd(fd) for fd in some] for name, some in fds["wakeups"].items()}
        return cls(program, SharedArena(fds["arena"], layouts(program)), wakeups)

    def descriptors(self) -> dict[str, Any]:
        """What a child needs to :meth:`attach`."""
        wakeups = {name: [each.descriptor for each in some] for name, some in self.wakeups.items()}
        return {"arena": self.arena.descriptor, "wakeups": wakeups}

    def pass_fds(self) -> list[int]:
        """Descriptors that a child must inherit."""
        wakeups = [wakeup.descriptor for some in self.wakeups.values() for wakeup in some]
        return [self.arena.descriptor, *wakeups]

    def close(self) -> None:
        """Let go of all descriptors."""
        self.arena.close()
        for some in self.wakeups.values():
            for wakeup in some:
                wakeup.close()


def heartbeats_of(program: Program, node: Node) -> Edge:
    """The edge by which ``node`` tells how it does."""
    return next(
        edge
        for edge in program.edges_of(node.name)
        if edge.source == node.name and edge.port.name == "vitals"
    )


def become(order: Order, control: Control, listener: Listener) -> None:
    """Be the replica that ``order`` asks for, until it is over."""
    keep_freed_memory()
    torch.set_num_threads(order["num_threads"])
    config, signature = config_from_tree(order["config"]), Signature.from_json(order["signature"])
    plan = Plan.of(config, signature)
    program = plan.program()
    node, inbox = program.node(order["role"]), Inbox(listener)
    if node.stands_for_hosts:
        from rookery.engines.gateway import stand_for_hosts

        shared = SharedProgram.attach(program, order["fds"])
        stand_for_hosts(order, plan, shared, control, inbox)
        return
    member = build_member(
        _wired(program, node, order),
        plan,
        node,
        order["replica"],
        run=Path(order["directory"] or order["run"]),
        life=order["life"],
        start_steps=order["start_steps"],
        stopping=inbox.stopping,
        leaving=NowAndThen(inbox.is_leaving),
        warn=lambda text: _warn(control, text),
    )
    try:
        if member.node.keeps_session and member.replica == 0:
            _own(order, plan, program, member, control, inbox)
        else:
            _serve(order, member, control, inbox)
    finally:
        member.role.close()


def _wired(program: Program, node: Node, order: Order) -> Wired:
    """The program as this process sees it: all of it, or what those of a joined host share."""
    if order["places"] is not None:
        return JoinedReplicas.attach(program, node, order["places"], order["fds"]).wired
    return SharedProgram.attach(program, order["fds"]).wired


def _serve(order: Order, member: Member, control: Control, inbox: Inbox) -> None:
    """A replica that does not keep the session."""
    if member.node.keeps_session and order["parts"] is not None:
        begin_with(member.role, unpack_parts(Path(order["parts"]).read_bytes()))
    elif member.node.keeps_session:
        restore(member.role, *_start(order))
    control.send("started")
    member.role.start()
    run_members([member], inbox.stopping)
    member.role.finish()


def _own(
    order: Order,
    plan: Plan,
    program: Program,
    member: Member,
    control: Control,
    inbox: Inbox,
) -> None:
    """The replica that keeps the session: logs and checkpoints are its process's."""
    run = RunDirectory.open(Path(order["run"]))
    callbacks = _callbacks(order, control)
    owner = SessionOwner(
        plan.config,
        run,
        program,
        member,
        callbacks,
        inbox.stopping,
        warn=lambda text: _warn(control, text),
    )
    owner.restarts = order["restarts"]
    inbox.on_restarts = owner.count_restarts
    with owner:
        checkpoint, weights = _start(order)
        control.send("started")
        owner.begin(checkpoint, weights)
        run_members([member], inbox.stopping, owner)
        owner.conclude()
    finish = owner.finish()
    control.send(
        "outcome",
        state=finish.outcome.state,
        reason=finish.outcome.reason,
        steps=finish.steps,
        updates=finish.updates,
        wall_secs=finish.wall_secs,
        reached_at=finish.extra["reached_at"],
    )


def _start(order: Order) -> tuple[Checkpoint | None, State | None]:
    """The checkpoint to go on from, or the weights to start with."""
    if order["resume"] is not None:
        return load_checkpoint(Path(order["resume"])), None
    if order["init_from"] is not None:
        return None, starting_weights(Path(order["init_from"])).parts["weights"]
    return None, None


class Inbox:
    """What the driver says while a process runs."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.stop: Stop | None = None
        self.leaving = False
        self.on_restarts: Any = lambda number: None

    def stopping(self) -> Stop | None:
        """Whether, and why, to end."""
        for message in self.listener.take():
            if message["kind"] == "stop":
                self.stop = Stop(message["state"], message["reason"])
            elif message["kind"] == "leave":
                self.leaving = True
            elif message["kind"] == "restarts":
                self.on_restarts(message["number"])
        return self.stop

    def is_leaving(self) -> bool:
        """Whether the run is about to end, or this process is to."""
        return self.stopping() is not None or self.leaving


def _warn(control: Control, text: str) -> None:
    import logging

    logging.getLogger(__name__).warning(text)
    control.send("warning", text=text)


def _callbacks(order: Order, control: Control) -> Callbacks:
    """Tell the driver what happens; the user's own callbacks run there."""

    def tell(kind: str) -> Any:
        def told(record: Record) -> None:
            control.send(kind, record=record)

        return told

    return Callbacks(
        on_episode=tell("episode") if order["tell_episodes"] else None,
        on_evaluation=tell("evaluation"),
        on_record=[tell("record")],
        on_stage=lambda stage: control.send("stage", stage=stage and asdict(stage)),
        on_steps=lambda steps: control.send("steps", steps=steps),
    )
