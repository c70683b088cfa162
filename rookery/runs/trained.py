"""A trained policy and what is needed to play it, wherever it was found.

::

    trained = find_trained("runs/cartpole-...")          # or zoo:cartpole, or my.safetensors
    env = make_env(trained.env, render_mode="rgb_array")
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookery.algos.algorithm import policy_class
from rookery.core.errors import UserError
from rookery.core.signature import Signature
from rookery.doctor.precision import computable
from rookery.envs.make import EnvConfig
from rookery.nets.policy import Policy
from rookery.recipes.catalog import parse_yaml
from rookery.recipes.settings import config_from_tree
from rookery.roles.evaluator import EvalConfig
from rookery.roles.learner import load_weights
from rookery.runs.checkpoint_files import Checkpoint
from rookery.runs.config import RunConfig
from rookery.runs.directory import RunDirectory
from rookery.runs.find import load_checkpoint
from rookery.runs.start import best_or_latest
from rookery.runs.value_units import ValueUnits, normalizes_rewards, value_units
from rookery.zoo.bundle import is_bundle, read_bundle
from rookery.zoo.catalog import find_bundle


@dataclass(frozen=True, slots=True)
class Scored:
    """Episodes that were played to know an agent's score."""

    seed: int
    deterministic: bool
    max_steps: int | None
    returns: tuple[float, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trained:
    """A policy with its weights, its environment and how it is judged."""

    policy: Policy
    env: EnvConfig
    eval: EvalConfig
    steps: int
    """Steps it was trained for."""
    name: str
    """What to call it: the run's directory, or the bundle's name."""
    value_units: ValueUnits = field(default_factory=ValueUnits)
    """What the policy's values stand for."""
    scored: Scored | None = None
    """The episodes of its score, where they are known one by one."""
    info_keys: tuple[str, ...] = ()
    """Values of info that its run recorded."""


def find_trained(source: str | Path, checkpoint: str | None = None) -> Trained:
    """The policy of a run directory, of a checkpoint inside one, of zoo:NAME or a bundle's file.

    ``checkpoint`` is best, latest or its steps; None takes the best, else the latest.
    """
    bundle = find_bundle(source)
    if bundle is not None:
        return _of_bundle(bundle, source, checkpoint)
    found = chosen_checkpoint(Path(source), checkpoint, ["weights"])
    run = run_of(found.path)
    config = load_config(run)
    policy = on_this_machine(policy_of(found, config), run.path.name)
    settings = config.to_tree()
    deviation = reward_deviation(found.path) if normalizes_rewards(settings) else None
    units = value_units(settings, deviation)
    name, keys = run.path.name, config.metrics.info_keys
    return Trained(policy, config.env, config.eval, found.steps, name, units, info_keys=keys)


def reward_deviation(checkpoint: Path) -> float | None:
    """What `normalize_reward` divided by when a checkpoint was saved; None if it does not say."""
    try:
        variance = load_checkpoint(checkpoint, None, ["learner"]).parts["learner"].arrays["var"]
    except (UserError, KeyError):
        return None
    return math.sqrt(float(variance) + 1e-8)


def _of_bundle(path: Path, source: str | Path, checkpoint: str | None) -> Trained:
    if checkpoint is not None:
        raise UserError(f"{source} is a bundle and holds one policy; leave --checkpoint away")
    bundle = read_bundle(path)
    training, name = bundle.info["training"], bundle.info["name"]
    return Trained(
        on_this_machine(bundle.policy(), name),
        bundle.env(),
        bundle.eval(),
        training["steps"],
        name,
        value_units(training.get("settings", {}), training.get("reward_deviation")),
        _scored(bundle.info),
    )


def _scored(info: Mapping[str, Any]) -> Scored | None:
    """The episodes of a bundle's score; earlier ones keep none."""
    score, each = info["score"], info.get("episodes")
    if each is None:
        return None
    how = (score["seed"], score["deterministic"], score["max_steps"])
    return Scored(*how, tuple(each["returns"]), tuple(each["lengths"]))


def on_this_machine(policy: Policy, name: str) -> Policy:
    """``policy``, computing in what this machine's processor has."""
    config = computable(policy.config, name)
    for module in policy.modules():
        if isinstance(module, Policy):
            module.config = config
    return policy


def chosen_checkpoint(path: Path, which: str | None, parts: Iterable[str]) -> Checkpoint:
    """The checkpoint that RUN and ``--checkpoint`` mean."""
    if which is None:
        return best_or_latest(path, parts)
    return load_checkpoint(path, which, parts)


def policy_of(checkpoint: Checkpoint, config: RunConfig) -> Policy:
    """The policy whose weights a checkpoint holds."""
    weights = checkpoint.parts["weights"]
    signature = Signature.from_json(weights.data["signature"])
    policy: Policy = policy_class(config.algo)(
        config.policy, signature, **config.algo_config.network_settings
    )
    load_weights(policy, weights)
    policy.eval()
    return policy


def run_of(checkpoint: Path) -> RunDirectory:
    """The run that a checkpoint lies in."""
    return RunDirectory.open(checkpoint.parent.parent)


def env_of(checkpoint: Checkpoint) -> EnvConfig | None:
    """Where the weights of a checkpoint or bundle were trained; None if that is not known."""
    if is_bundle(checkpoint.path):
        return read_bundle(checkpoint.path).env()
    try:
        return load_config(run_of(checkpoint.path)).env
    except UserError:
        return None


def load_config(run: RunDirectory) -> RunConfig:
    """The resolved configuration of a run."""
    path = run.config_path
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read {path} ({error}); without it a run's checkpoints cannot be used"
        ) from error
    return config_from_tree(parse_yaml(text, str(path)), str(path))
