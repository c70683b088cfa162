"""The configuration of a run: one frozen dataclass per component, gathered here and nowhere used
as a whole by a component.

As YAML::

    version: 2
    algo: ppo                 # which block below holds the algorithm's settings
    formation: sync           # and which the formation's
    env: {id: CartPole-v1, num_envs: 16}      # in the whole run
    ppo: {gamma: 0.98}
    sync: {num_actors: 1}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from rookery.algos.algorithm import block_name, learns_off_policy
from rookery.algos.on_policy import OnPolicyConfig
from rookery.algos.ppo import PPOConfig
from rookery.algos.settings import AlgorithmConfig
from rookery.core.address import parse_address
from rookery.core.errors import UserError, naming
from rookery.envs.make import EnvConfig
from rookery.formations.settings import (
    FormationConfig,
    Joined,
    formation_block,
    formation_config_class,
)
from rookery.nets.policy import PolicyConfig
from rookery.params.optimizer import OptimizerConfig
from rookery.roles.evaluator import EvalConfig
from rookery.roles.recorder import RecordConfig
from rookery.runs.metrics import check_sink_name
from rookery.runs.ray_settings import RayConfig
from rookery.runs.supervise import SuperviseConfig

EngineName = Literal["inline", "local", "mpi", "ray"]

VERSION = 2
"""Of what settings mean. Since 2, ``env.num_envs`` counts the whole run."""


MOST_PLACES = 256
USUAL_PLACES = 32


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name}: must be at least 1, got {value}")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When and how many checkpoints are kept."""

    every_steps: int = 100_000
    """A checkpoint each this many steps (and at every evaluation, and at the end)."""
    every_secs: float | None = 60.0
    """And after this long at the latest, so that no more is ever lost; null: only by steps."""
    keep: int = 3
    """The newest this many are kept, and the best."""
    history: int = 24
    """At most this many snapshots of the weights along the run, for `rookery record --at`; 0: none.
    """

    def __post_init__(self) -> None:
        for name in ("every_steps", "keep"):
            _at_least_one(f"checkpoint.{name}", getattr(self, name))
        if self.every_secs is not None and self.every_secs <= 0:
            raise UserError(f"checkpoint.every_secs: must be positive, got {self.every_secs:g}")
        if self.history < 0 or self.history == 1:
            raise UserError(f"checkpoint.history: must be 0 or at least 2, got {self.history}")


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """What is written down, and where."""

    every_steps: int = 10_000
    """A record each this many steps."""
    every_episodes: int | None = None
    """Instead, a record each this many training episodes, which is printed as a line of means over
    the last episodes; null: by steps."""
    window: int = 100
    """rollout/* values are over the last this many episodes."""
    sinks: tuple[str, ...] = ("jsonl", "tensorboard")
    """Where records go: jsonl, tensorboard, wandb, mlflow, or package.module:Class."""
    info_keys: tuple[str, ...] = ()
    """Values copied from info at the end of each episode, as rollout/info_<key>_mean."""
    histograms: bool = False
    """Weights and gradients as histograms in TensorBoard, at each record."""
    graph: bool = False
    """The network as a graph in TensorBoard, once."""

    def __post_init__(self) -> None:
        for name in ("every_steps", "window"):
            _at_least_one(f"metrics.{name}", getattr(self, name))
        if self.every_episodes is not None:
            _at_least_one("metrics.every_episodes", self.every_episodes)
        for sink in self.sinks:
            check_sink_name(sink)


@dataclass(frozen=True, kw_only=True)
class HostsConfig:
    """Other machines that join the run while it trains, by `rookery join`."""

    listen: str | None = None
    """HOST:PORT at which they find it; null: nobody joins."""
    places: int | None = None
    """How many of their actors there is room for. Formations replay, async and paramserver have
    them beyond their own (null: 32); sync needs to know how many of its actors are theirs."""
    share: bool = False
    """The places are some of those that act in every formation, and not beyond them."""
    token_file: str | None = None
    """A file with the token that hosts must have; null: ROOKERY_TOKEN, or one is made."""
    leaves: tuple[str, ...] = ()
    """Roles that hosts run in place of the head, by `rookery join --role`: evaluator, recorder."""
    wait_secs: float = 60.0
    """Nobody having joined for such a role, a warning comes after so long, and the end of the run
    waits no longer for somebody."""
    lease_secs: float = 15.0
    """A host that was not heard of for so long has left; its actors' places are free again."""
    certificate: str | None = None
    """A PEM file to show to those who join, with hosts.key; null: one is made, and beyond this
    machine its fingerprint is in the line to join by."""
    key: str | None = None
    """The certificate's key, a PEM file."""

    def __post_init__(self) -> None:
        if self.listen is not None and not parse_address(self.listen)[1]:
            raise UserError("--listen: give a port; a resumed run listens at the same")
        if self.places is not None and not 0 < self.places <= MOST_PLACES:
            raise UserError(f"--places: must be between 1 and {MOST_PLACES}, got {self.places}")
        if self.leaves and self.listen is None:
            raise UserError("hosts.leaves: is for runs that others join; add --listen HOST:PORT")
        if self.wait_secs < 0:
            raise UserError(f"hosts.wait_secs: must not be negative, got {self.wait_secs:g}")
        if self.lease_secs < 1:
            raise UserError(f"hosts.lease_secs: must be at least 1, got {self.lease_secs:g}")
        if (self.certificate is None) != (self.key is None):
            raise UserError("hosts.certificate and hosts.key: give both, or neither")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that makes a run what it is."""

    version: int = VERSION
    env: EnvConfig
    recipe: str = ""
    name: str = ""
    tags: tuple[str, ...] = ()
    algo: str = "ppo"
    formation: str = "sync"
    engine: EngineName = "inline"
    threads: bool = False
    device: str = "cpu"
    seed: int = 0
    total_steps: int = 1_000_000
    time_limit_secs: float | None = None
    stop_at: float | None = None
    stretch_schedules: bool = False
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    algo_config: AlgorithmConfig = field(default_factory=PPOConfig)
    formation_config: FormationConfig = field(
        default_factory=lambda: formation_config_class("sync")()
    )
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    supervise: SuperviseConfig = field(default_factory=SuperviseConfig)
    hosts: HostsConfig = field(default_factory=HostsConfig)
    ray: RayConfig = field(default_factory=RayConfig)

    def __post_init__(self) -> None:
        if self.total_steps < 1:
            raise UserError(f"--steps: must be at least 1, got {self.total_steps}")
        if self.time_limit_secs is not None and self.time_limit_secs <= 0:
            raise UserError(f"--time-limit: must be positive, got {self.time_limit_secs:g}")
        if self.seed < 0:
            raise UserError(f"--seed: must not be negative, got {self.seed}")
        with naming(formation=formation_block(self.formation)):
            self._check_parts()
            self._check_hosts()
            self._check_ray()
            self._check_division()
            if self.behind is not None:
                return
            self._check_experience()
            if isinstance(self.algo_config, OnPolicyConfig):
                self._check_minibatches(self.algo_config)
                if self.formation_config.off_policy:
                    self._check_off_policy(self.algo_config)

    @cached_property
    def behind(self) -> RunConfig | None:
        """The same run in the formation that stands behind this one, if one does."""
        learns, off_policy = self.algo_config.experience, learns_off_policy(self.algo)
        found = self.formation_config.behind(learns, off_policy)
        if found is None:
            return None
        name, settings = found
        with naming(**{name: formation_block(self.formation)}):
            return replace(self, formation=name, formation_config=settings)

    @property
    def joined(self) -> Joined:
        """Whom other hosts bring."""
        return (self.behind or self).formation_config.joined

    @property
    def on_policy(self) -> OnPolicyConfig:
        """The algorithm's settings, where it learns from rollouts."""
        assert isinstance(self.algo_config, OnPolicyConfig)
        return self.algo_config

    @property
    def algo_block(self) -> str:
        """What the algorithm's settings are called."""
        return block_name(self.algo)

    @property
    def _beyond(self) -> bool:
        """Whether those whom hosts bring come on top of those that the run has."""
        return self.joined == "more" and not self.hosts.share

    @property
    def num_places(self) -> int:
        """Actors of joined hosts that there is room for."""
        if self.hosts.listen is None or self.joined == "none":
            return 0
        return self.hosts.places or (USUAL_PLACES if self._beyond else 0)

    @property
    def num_acting(self) -> int:
        """All that may act: those of this machine, and those of hosts that join."""
        beyond = self.num_places if self._beyond else 0
        return self.formation_config.num_actors + beyond

    @property
    def num_acting_here(self) -> int:
        """Those of them that are this machine's."""
        return self.num_acting - self.num_places

    def _check_hosts(self) -> None:
        """Refuse hosts where nobody can join, and a run in which nobody would act."""
        formation, hosts, given = self.formation_config, self.hosts, self.joined
        if hosts.listen is None:
            if formation.num_actors < 1:
                raise UserError(
                    "formation.num_actors: must be at least 1, got 0; --listen lets others act"
                )
            if hosts.places is not None:
                raise UserError("--places: is for runs that others join; add --listen HOST:PORT")
            return
        if self.engine == "ray" and not hosts.share:
            raise UserError("--listen: engine ray has hosts of its own; leave it out")
        if self.engine not in ("local", "ray"):
            raise UserError(f"--listen: hosts join engine local, not {self.engine}; --engine local")
        if given == "none" and (hosts.places is not None or not hosts.leaves):
            raise UserError(
                f"--listen: formation {self.formation} shares memory and stays on one machine; "
                "use replay, async, paramserver, sync or allreduce, or leave only roles to hosts "
                "(hosts.leaves)"
            )
        if self.num_acting < 1:
            raise UserError("formation.num_actors: must be at least 1, got 0; --places has none")
        if given == "some" and hosts.places is None and not hosts.leaves:
            raise UserError(
                f"--listen: formation {self.formation} waits for a fixed number; say with --places "
                f"how many of the {formation.num_actors} --actors are of other hosts"
            )
        learns = formation.acting_role == "worker"
        if given == "some" and learns and self.num_places >= formation.num_actors:
            raise UserError(
                f"--places: one of the {formation.num_actors} workers must be here, where the "
                "session is kept; have fewer places"
            )
        if not self._beyond and self.num_places > formation.num_actors:
            raise UserError(
                f"--places: {self.num_places} are more than there are actors in all, "
                f"{formation.num_actors} (--actors)"
            )

    def _check_ray(self) -> None:
        """Refuse actors that come and go where all are needed, and more than there are."""
        least, most = self.ray.min_actors, self.formation_config.num_actors
        at_head = self.ray.head_actors
        if self.engine != "ray":
            return
        if least is not None and least > most:
            raise UserError(f"ray.min_actors: {least} are more than there are, {most} (--actors)")
        if least is not None and least < most and self.joined != "more":
            raise UserError(
                f"--actors {least}:{most}: formation {self.formation} needs all who act, all the "
                f"time; give one number, as --actors {most}"
            )
        if at_head is not None and at_head > most:
            raise UserError(
                f"ray.head_actors: {at_head} are more than there are, {most} (--actors)"
            )
        if most - (at_head or 0) > MOST_PLACES and self.joined != "none":
            raise UserError(f"--actors: hosts have at most {MOST_PLACES}, got {most}")

    def _check_division(self) -> None:
        """Refuse environments that cannot be divided among those who act, and threads elsewhere."""
        if self.threads and self.engine != "inline":
            raise UserError(
                f"--threads: engine {self.engine} has a process for each actor; use --engine "
                "inline, or leave it false"
            )
        num_actors, _ = _division(self)
        role, envs, halves = self.formation_config.acting_role, self.env.num_envs, self.env.halves
        if num_actors > envs:
            raise UserError(
                f"--actors: {num_actors} {role}s cannot share {envs} environments (--envs); have "
                f"--envs {num_actors * halves} or more, or fewer --actors"
            )
        if num_actors * halves > envs:
            raise UserError(
                f"env.halves: {halves} halves for each of {num_actors} {role}s cannot be made of "
                f"{envs} environments (--envs); have --envs {num_actors * halves} or more, fewer "
                "--actors, or --env.halves 1"
            )

    def _check_parts(self) -> None:
        """Refuse what only those have that choose their actions themselves."""
        if not self.formation_config.divides:
            return
        if self.engine == "mpi":
            raise UserError(
                f"--formation {self.formation}: runs under --engine inline or local, and on other "
                "machines by `rookery join`; engine mpi carries sync, async, allreduce, "
                "paramserver and replay"
            )
        if self.env.halves != 1:
            raise UserError(
                f"env.halves: formation {self.formation} itself divides an actor's environments; "
                f"set it to 1, not {self.env.halves}"
            )

    def _check_experience(self) -> None:
        """Refuse to feed an algorithm what it cannot learn from."""
        learned, given = self.algo_config.experience, self.formation_config.experience
        if learned == "replay" and given != "replay":
            raise UserError(
                f"--formation {self.formation}: {self.algo} learns from replay; use --formation "
                "replay, or --algo ppo, a2c or impala"
            )
        if learned != "replay" and given == "replay":
            raise UserError(
                f"--formation {self.formation}: {self.algo} learns from rollouts as they come; use "
                "--algo dqn, apex, r2d2, ngu or agent57, or --formation sync"
            )
        if given == "replay" and self.env.halves != 1:
            raise UserError(
                f"env.halves: actors of formation {self.formation} step all their environments at "
                f"once; set it to 1, not {self.env.halves}"
            )
        if self.optimizer.average_updates and not self.formation_config.averages:
            raise UserError(
                f"optimizer.average_updates: formation {self.formation} does not average weights; "
                "set it to 0, or choose sync, async or allreduce"
            )

    def _check_off_policy(self, algo: OnPolicyConfig) -> None:
        """Refuse what learns wrong things from rollouts of older weights and of mixed actors."""
        block = block_name(self.algo)
        if not learns_off_policy(self.algo):
            raise UserError(
                f"--formation {self.formation}: {self.algo} learns only from what the newest "
                "weights did, and rollouts that waited are older; use --algo impala, or "
                "--formation sync"
            )
        if algo.rollouts_per_update != 1:
            raise UserError(
                f"{block}.rollouts_per_update: is for formations with rounds; set "
                "formation.batch_envs instead"
            )
        if algo.normalize_reward:
            raise UserError(
                f"{block}.normalize_reward: follows each environment's return, and a batch of "
                f"{self.formation} has whichever came; use {block}.reward_scale, reward_min and "
                "reward_max"
            )

    def _check_minibatches(self, algo: OnPolicyConfig) -> None:
        num_actors, num_envs = _division(self)
        formation = replace(self.formation_config, num_actors=num_actors)
        columns = formation.batch_columns(num_envs) * algo.rollouts_per_update
        recurrent = self.policy.core != "none"
        whole = recurrent or algo.whole_envs
        available = columns if whole else columns * algo.rollout_steps
        if algo.num_minibatches > available:
            what = "environments (a recurrent policy is split by environments)"
            what = what if recurrent else "environments" if whole else "samples"
            raise UserError(
                f"{block_name(self.algo)}.num_minibatches: {algo.num_minibatches} is more than the "
                f"{available} {what} of one batch; lower it or raise --envs"
            )

    def to_tree(self) -> dict[str, Any]:
        """Nested plain data, blocks named after algorithm and formation; what config.yaml holds."""
        tree: dict[str, Any] = _plain(asdict(self))
        tree[block_name(self.algo)] = tree.pop("algo_config")
        tree[formation_block(self.formation)] = tree.pop("formation_config")
        return tree


def divided(config: RunConfig) -> tuple[RunConfig, str | None]:
    """``config`` with as many environments for each of those who act, and one line if it changed.

    One thread carries one worker, which then has all environments. Else their number becomes the
    nearest multiple of those who act, so that batches keep their size whoever does the work.
    """
    formation, env = config.formation_config, config.env
    num_actors, num_envs = _division(config)
    changes = []
    if num_actors != formation.num_actors:
        changes.append(
            f"{formation_block(config.formation)}.num_actors: {num_actors}, not "
            f"{formation.num_actors}: engine {config.engine} is one thread"
        )
    if num_envs != env.num_envs:
        halves = f" of {env.halves} halves" if env.halves > 1 else ""
        changes.append(
            f"env.num_envs: {num_envs}, not {env.num_envs}: a multiple of {num_actors} "
            f"{formation.acting_role}s{halves}"
        )
    if not changes:
        return config, None
    whole = replace(
        config,
        env=replace(env, num_envs=num_envs),
        formation_config=replace(formation, num_actors=num_actors),
    )
    return whole, "; ".join(changes)


def _division(config: RunConfig) -> tuple[int, int]:
    """How many act, and on how many environments in all."""
    formation = config.formation_config
    one_thread = config.engine == "inline" and not config.threads
    num_actors = 1 if one_thread and formation.alone_in_thread else formation.num_actors
    least = max(num_actors, 1) * config.env.halves
    return num_actors, least * max((config.env.num_envs + least // 2) // least, 1)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
