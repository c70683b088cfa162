"""The configuration of a run: one frozen dataclass per component, gathered here and nowhere used
as a whole by a component.

As YAML::

    algo: ppo                 # which block below holds the algorithm's settings
    formation: sync           # and which the formation's
    env: {id: CartPole-v1, num_envs: 16}
    ppo: {gamma: 0.98}
    sync: {num_actors: 1}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rookery.algos.algorithm import block_name, learns_off_policy
from rookery.algos.on_policy import OnPolicyConfig
from rookery.algos.ppo import PPOConfig
from rookery.algos.settings import AlgorithmConfig
from rookery.core.errors import UserError
from rookery.envs.make import EnvConfig
from rookery.nets.policy import PolicyConfig
from rookery.params.optimizer import OptimizerConfig
from rookery.programs.formations import FormationConfig, SyncConfig
from rookery.roles.evaluator import EvalConfig
from rookery.runs.metrics import check_sink_name
from rookery.runs.supervise import SuperviseConfig

EngineName = Literal["inline", "local", "mpi"]


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name}: must be at least 1, got {value}")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When and how many checkpoints are kept."""

    every_steps: int = 100_000
    """A checkpoint each this many steps (and at every evaluation, and at the end)."""
    keep: int = 3
    """The newest this many are kept, and the best."""
    history: int = 24
    """At most this many snapshots of the weights along the run, for `rookery record --at`; 0: none.
    """

    def __post_init__(self) -> None:
        for name in ("every_steps", "keep"):
            _at_least_one(f"checkpoint.{name}", getattr(self, name))
        if self.history < 0 or self.history == 1:
            raise UserError(f"checkpoint.history: must be 0 or at least 2, got {self.history}")


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """What is written down, and where."""

    every_steps: int = 10_000
    """A record each this many steps."""
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
        for sink in self.sinks:
            check_sink_name(sink)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that makes a run what it is."""

    env: EnvConfig
    recipe: str = ""
    name: str = ""
    tags: tuple[str, ...] = ()
    algo: str = "ppo"
    formation: str = "sync"
    engine: EngineName = "inline"
    device: str = "cpu"
    seed: int = 0
    total_steps: int = 1_000_000
    time_limit_secs: float | None = None
    stop_at: float | None = None
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    algo_config: AlgorithmConfig = field(default_factory=PPOConfig)
    formation_config: FormationConfig = field(default_factory=SyncConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    supervise: SuperviseConfig = field(default_factory=SuperviseConfig)

    def __post_init__(self) -> None:
        if self.total_steps < 1:
            raise UserError(f"--steps: must be at least 1, got {self.total_steps}")
        if self.time_limit_secs is not None and self.time_limit_secs <= 0:
            raise UserError(f"--time-limit: must be positive, got {self.time_limit_secs:g}")
        if self.seed < 0:
            raise UserError(f"--seed: must not be negative, got {self.seed}")
        self._check_experience()
        if isinstance(self.algo_config, OnPolicyConfig):
            self._check_minibatches(self.algo_config)
            if self.formation_config.off_policy:
                self._check_off_policy(self.algo_config)

    @property
    def on_policy(self) -> OnPolicyConfig:
        """The algorithm's settings, where it learns from rollouts."""
        assert isinstance(self.algo_config, OnPolicyConfig)
        return self.algo_config

    def _check_experience(self) -> None:
        """Refuse to feed an algorithm what it cannot learn from."""
        replay = self.algo_config.experience == "replay"
        if replay and self.formation != "replay":
            raise UserError(
                f"--formation {self.formation}: {self.algo} learns from replay; use --formation "
                "replay, or --algo ppo, a2c or impala"
            )
        if replay and self.env.halves != 1:
            raise UserError(
                f"env.halves: actors of formation replay step all their environments at once; set "
                f"it to 1, not {self.env.halves}"
            )
        if not replay and self.formation == "replay":
            raise UserError(
                f"--formation replay: {self.algo} learns from rollouts as they come; use --algo "
                "dqn, apex, r2d2, ngu or agent57, or --formation sync"
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
                f"{self.formation}.rollouts_per_batch instead"
            )
        if algo.normalize_reward:
            raise UserError(
                f"{block}.normalize_reward: follows each environment's return, and a batch of "
                f"{self.formation} has whichever came; use {block}.reward_scale, reward_min and "
                "reward_max"
            )
        if getattr(self.formation_config, "threads", False) and self.engine != "inline":
            raise UserError(
                f"{self.formation}.threads: engine {self.engine} has a process for each actor; "
                "use --engine inline, or leave it false"
            )

    def _check_minibatches(self, algo: OnPolicyConfig) -> None:
        parts = getattr(algo, "num_minibatches", 1)
        columns = (
            self.env.num_envs * self.formation_config.actors_in_batch * algo.rollouts_per_update
        )
        recurrent = self.policy.core != "none"
        whole = recurrent or algo.whole_envs
        available = columns if whole else columns * algo.rollout_steps
        if parts > available:
            what = "environments (a recurrent policy is split by environments)"
            what = what if recurrent else "environments" if whole else "samples"
            raise UserError(
                f"{block_name(self.algo)}.num_minibatches: {parts} is more than the {available} "
                f"{what} of one batch; lower it or raise --envs"
            )

    def to_tree(self) -> dict[str, Any]:
        """Nested plain data, blocks named after algorithm and formation; what config.yaml holds."""
        tree: dict[str, Any] = _plain(asdict(self))
        tree[block_name(self.algo)] = tree.pop("algo_config")
        tree[self.formation] = tree.pop("formation_config")
        return tree


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
