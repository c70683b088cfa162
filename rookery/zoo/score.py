"""The score in a bundle: what `rookery eval` finds with as many episodes, from the same seeds.

::

    info |= measured(policy, env, config, episodes=100)
    packed = scored_anew(Path("first.safetensors"), episodes=200)
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rookery.core.errors import UserError
from rookery.envs.make import EnvConfig
from rookery.nets.policy import Policy
from rookery.programs.plan import compute_threads
from rookery.roles.evaluator import EvalConfig, evaluate, mean_and_interval
from rookery.runs.tensorfile import SavedArrays
from rookery.runs.trained import on_this_machine
from rookery.zoo.bundle import read_bundle

SEED = 0
"""First seed of the evaluation: that of `rookery eval`, which repeats it."""

PACKAGES = ("rookery", "torch", "numpy", "gymnasium")
_SIMULATORS = ("Box2D", "box2d-py", "mujoco", "ale-py")
"""Told too where they are installed: a score may depend on them."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What a bundle will hold."""

    info: dict[str, Any]
    arrays: SavedArrays


def check_episodes(episodes: int) -> None:
    """Refuse too few for an interval."""
    if episodes < 2:
        raise UserError(f"--episodes: an interval needs at least 2, got {episodes}")


def measured(policy: Policy, env: EnvConfig, config: EvalConfig, episodes: int) -> dict[str, Any]:
    """``score`` and ``episodes`` of a bundle: their mean and interval, and each of them."""
    check_episodes(episodes)
    with compute_threads(1):
        result = evaluate(
            policy,
            env,
            episodes=episodes,
            seed=SEED,
            deterministic=config.deterministic,
            max_steps=config.max_steps,
            num_envs=config.num_envs,
        )
    mean, _, interval = mean_and_interval(
        result.lengths if config.score == "length" else result.returns
    )
    score = {
        "by": config.score,
        "mean": mean,
        "ci95": interval,
        "episodes": episodes,
        "seed": SEED,
        "deterministic": config.deterministic,
        "max_steps": config.max_steps,
        "return_mean": mean_and_interval(result.returns)[0],
        "length_mean": mean_and_interval(result.lengths)[0],
        "versions": versions_of((*PACKAGES, *_SIMULATORS)),
    }
    each = {"returns": list(result.returns), "lengths": list(result.lengths)}
    return {"score": score, "episodes": each}


def scored_anew(bundle: Path, episodes: int | None = None) -> Packed:
    """A bundle with its score measured again and all else as it is.

    ``episodes``: None plays as many as before.
    """
    old = read_bundle(bundle)
    policy = on_this_machine(old.policy(), old.info["name"])
    number = old.info["score"]["episodes"] if episodes is None else episodes
    kept = {key: value for key, value in old.info.items() if key not in ("sha256", "bytes")}
    return Packed(kept | measured(policy, old.env(), old.eval(), number), old.arrays)


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """What is installed of ``packages``, and Python."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found | {"python": platform.python_version()}
