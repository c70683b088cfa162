"""Formation ``paramserver``: workers push gradients to servers that keep the weights in parts.

BA3C (https://arxiv.org/abs/1705.06936, https://arxiv.org/abs/1801.02852): batched A3C on many
machines, in rounds of some of the workers' gradients or without waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from rookery.core.errors import UserError
from rookery.formations.session_edges import with_session
from rookery.formations.settings import FormationConfig, Joined
from rookery.params.compression import Compression, CompressionName
from rookery.programs.graph import Edge, Node, Program
from rookery.programs.memory import worker_holds
from rookery.programs.plan import Plan
from rookery.roles.build import build_parameter_server, build_pushing_worker, build_sharded_session
from rookery.roles.parameter_server import METRICS, Arrivals, Rounds, Rule, kept_specs, parts_of
from rookery.roles.pushing import REPORTED_COUNTS
from rookery.transport.calls import CallPort
from rookery.transport.reports import EPISODES_KEPT, ReportsPort
from rookery.transport.shards import KeptPort, ShardPort


@dataclass(frozen=True, kw_only=True)
class ParamserverConfig(FormationConfig):
    """Workers push gradients to servers, each of which keeps a part of the weights."""

    acting_role: ClassVar[str] = "worker"
    alone_in_thread: ClassVar[bool] = True
    averages: ClassVar[bool] = False
    joined: ClassVar[Joined] = "more"
    cluster_flags: ClassVar[Mapping[str, str]] = {
        "servers": "paramserver.num_servers",
        "grads": "paramserver.num_gradients",
        "simulators": "env.num_envs",
    }
    host_actors: ClassVar[int | None] = 1

    num_servers: int = 1
    """Servers, each with a part of the weights and of the optimizer's statistics."""
    mode: Literal["sync", "async"] = "sync"
    """sync: the weights step with the mean of num_gradients gradients; async: with each gradient as
    it comes."""
    num_gradients: int | None = None
    """sync: gradients of one update, the first that come; the others are late and dropped. null:
    those of all workers."""
    patience_secs: float = 30.0
    """sync: how long an update waits for gradients that do not come before it goes on with the
    workers that deliver."""
    max_staleness: int | None = None
    """async: gradients of weights that are more updates old are dropped; null: none is."""
    damping: float = 0.0
    """async: a gradient of weights that are s updates old counts (1 + s) ** -damping."""
    compression: CompressionName = "none"
    """How gradients travel: whole, rounded to bf16, or topk, the largest topk_share of them."""
    topk_share: float = 0.01
    """Of a gradient's numbers; what is left out is added to the next."""
    worker_threads: int = 1
    """Compute threads of each worker."""
    server_threads: int = 1
    """Compute threads of each server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("num_servers", "worker_threads", "server_threads")
        if self.num_gradients is not None and self.num_gradients < 1:
            raise UserError(
                f"formation.num_gradients: an update needs at least 1 gradient, got "
                f"{self.num_gradients}; null takes those of all workers"
            )
        if self.patience_secs <= 0:
            raise UserError(
                f"formation.patience_secs: must be positive, got {self.patience_secs:g}"
            )
        if self.max_staleness is not None and self.max_staleness < 0:
            raise UserError(
                f"formation.max_staleness: must not be negative, got {self.max_staleness}; null "
                "drops no gradient"
            )
        if self.damping < 0:
            raise UserError(f"formation.damping: must not be negative, got {self.damping:g}")
        self._check_mode()
        Compression(self.compression, self.topk_share)

    def _check_mode(self) -> None:
        """Refuse what says something to the other mode."""
        meant_for: dict[str, dict[str, Any]] = {
            "sync": {"num_gradients": None},
            "async": {"max_staleness": None, "damping": 0.0},
        }
        for mode, names in meant_for.items():
            given = [name for name, usual in names.items() if getattr(self, name) != usual]
            if given and mode != self.mode:
                raise UserError(
                    f"formation.{given[0]}: is for mode {mode}; leave it out, or set "
                    f"formation.mode to {mode}"
                )

    @property
    def num_beside(self) -> int:
        """The servers, and who keeps the session."""
        return self.num_servers + 1

    def batch_columns(self, num_envs: int) -> int:
        """Each learns from its own."""
        return max(num_envs // max(self.num_actors, 1), 1)

    def rule(self) -> Callable[..., Rule]:
        """When servers step."""
        if self.mode == "async":
            return partial(_arrivals, max_staleness=self.max_staleness, damping=self.damping)
        return partial(
            Rounds,
            self.num_actors,
            num_gradients=self.num_gradients,
            patience_secs=self.patience_secs,
        )


def _arrivals(warn: Callable[[str], None], **given: Any) -> Arrivals:
    """It has nothing to warn of."""
    return Arrivals(**given)


class Paramserver:
    """The formation."""

    Config = ParamserverConfig

    @staticmethod
    def program(plan: Plan) -> Program:
        """Workers that act and push gradients, servers that step, a session that watches them."""
        config, formation = plan.config, plan.config.formation_config
        assert isinstance(formation, ParamserverConfig)
        servers = formation.num_servers
        _check(plan, formation)
        parts = parts_of(plan.num_params, servers)
        largest = max(part.stop - part.start for part in parts)
        shard = ShardPort(
            plan.num_actors,
            largest,
            Compression(formation.compression, formation.topk_share),
            plan.moments,
        )
        reports = ReportsPort(
            plan.num_actors,
            2 + len(plan.info_keys),
            max(EPISODES_KEPT, 2 * plan.steps_each),
            REPORTED_COUNTS,
        )
        kept = KeptPort(kept_specs(plan.num_params, config.optimizer, plan.moments))
        part = CallPort(
            "part",
            "what a checkpoint needs, out of each server",
            kept_specs(largest, config.optimizer, plan.moments),
            places=1,
        )
        nodes = [
            Node(
                name="worker",
                build=build_pushing_worker,
                replicas=plan.num_actors,
                num_threads=formation.worker_threads,
                computes=True,
                has_envs=True,
                leaves=True,
                about=config.algo,
                holds=worker_holds,
            ),
            Node(
                name="server",
                build=partial(build_parameter_server, rule=formation.rule(), num_servers=servers),
                replicas=servers,
                num_threads=formation.server_threads,
                metrics=METRICS,
                about=_about(formation, plan),
            ),
            Node(
                name="session",
                build=build_sharded_session,
                busy=False,
                keeps_session=True,
                on_death="rewind",
                about="counts, logs and saves",
            ),
        ]
        edges = [
            Edge("worker", shard, "server", each=True),
            Edge("worker", reports, "session"),
            Edge("server", kept, "session"),
            Edge("session", part, "server", each=True),
        ]
        return with_session(plan, "paramserver", nodes, edges)


def _about(formation: ParamserverConfig, plan: Plan) -> str:
    """What the servers do."""
    each = f"{plan.num_params:,} weights"
    if formation.num_servers > 1:
        each = f"{plan.num_params // formation.num_servers:,} of {each}"
    if formation.mode == "async":
        when = "a step for each gradient"
    elif formation.num_gradients is None:
        when = "a step for the gradients of all"
    else:
        when = f"a step for {formation.num_gradients} of {plan.num_actors} gradients"
    return f"{plan.config.optimizer.name}, {each}, {when}"


def _check(plan: Plan, formation: ParamserverConfig) -> None:
    """Refuse gradients that would never come, and parts without weights."""
    wanted, workers = formation.num_gradients or 1, plan.num_actors
    if wanted > workers and plan.concurrent:  # one thread carries one worker, whatever is said
        raise UserError(
            f"formation.num_gradients: {wanted} gradients an update cannot come of {workers} "
            f"{'workers' if workers > 1 else 'worker'} (--workers); have at most {workers}, or null"
        )
    if formation.num_servers > plan.num_params:
        raise UserError(
            f"formation.num_servers: {formation.num_servers} servers cannot share "
            f"{plan.num_params} weights; have fewer"
        )
