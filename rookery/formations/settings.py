"""What every formation has for settings, and the formations by name.

A formation is a class with the dataclass of its settings and the program that they make::

    class Sync:
        Config = SyncConfig
        @staticmethod
        def program(plan: Plan) -> Program: ...

One of your own is ``--formation package.module:Class``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rookery.core.errors import UserError
from rookery.core.names import load_class

Joined = Literal["more", "some", "none"]


@dataclass(frozen=True, kw_only=True)
class FormationConfig:
    """Settings of a formation, and what every engine asks of it."""

    off_policy: ClassVar[bool] = False
    """Whether rollouts may be older than the weights that learn from them."""
    experience: ClassVar[str] = "rollouts"
    """What its learners learn from: rollouts as they come, replay, or any."""
    acting_role: ClassVar[str] = "actor"
    """What those are called that act: actors, or workers, which learn too."""
    alone_in_thread: ClassVar[bool] = False
    """Whether one thread carries only one of those that act: several would wait for each other."""
    averages: ClassVar[bool] = True
    """Whether optimizer.average_updates works here."""
    joined: ClassVar[Joined] = "none"
    """Whom other hosts bring: more actors than the run has, some of those it has, or none."""
    divides: ClassVar[bool] = False
    """Whether those that act divide their environments themselves, and are no ranks."""

    cluster_flags: ClassVar[Mapping[str, str]] = {}
    """Flags of `rookery slurm` that only some formations have, servers, grads and simulators, and
    the settings that they stand for here."""
    host_actors: ClassVar[int | None] = None
    """How many act on each host of a cluster; None: one for each of its CPUs."""

    num_actors: int = 1
    """How many act, each with its share of env.num_envs; each is a process under the local engine.
    0 where all are of hosts that join."""

    def __post_init__(self) -> None:
        if self.num_actors < 0:
            raise UserError(f"formation.num_actors: must not be negative, got {self.num_actors}")

    @property
    def num_beside(self) -> int:
        """Processes beside those that act, where every role has one."""
        return 0

    def behind(self, experience: str, off_policy: bool) -> tuple[str, FormationConfig] | None:
        """The formation that carries what this one's actors do to those that learn from it, and its
        settings, for an algorithm that learns from ``experience``, also of older weights if
        ``off_policy``; None: it does so itself."""
        return None

    def batch_columns(self, num_envs: int) -> int:
        """Environments whose rollouts make one batch, of ``num_envs`` in the whole run."""
        return num_envs

    def _check_positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise UserError(f"formation.{name}: must be at least 1, got {getattr(self, name)}")


_OURS = {
    "allreduce": "rookery.formations.allreduce:Allreduce",
    "async": "rookery.formations.asynchronous:Async",
    "central": "rookery.formations.central:Central",
    "hogwild": "rookery.formations.hogwild:Hogwild",
    "paramserver": "rookery.formations.paramserver:Paramserver",
    "replay": "rookery.formations.replay:Replay",
    "sync": "rookery.formations.sync:Sync",
}


def formation_names() -> list[str]:
    """Names for ``--formation``; ``package.module:Class`` is one too."""
    return sorted(_OURS)


def formation_class(name: str) -> Any:
    """The formation called ``name``: one of ours, or ``package.module:Class``."""
    made_from = "rookery.formations.settings:FormationConfig"
    return load_class(name, _OURS, "--formation", FormationConfig, made_from)


def formation_block(name: str) -> str:
    """What its settings are called: ``sync``, or ``gossip`` for ``mine:Gossip``."""
    return name.rpartition(":")[2].lower() if ":" in name else name


def formation_config_class(name: str) -> type[FormationConfig]:
    """The config dataclass of the formation called ``name``."""
    found: type[FormationConfig] = formation_class(name).Config
    return found


def preload() -> None:
    """Import every formation of ours, with all roles, before processes are forked."""
    for name in formation_names():
        formation_class(name)
