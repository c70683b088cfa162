"""From a run to a bundle: play it to know its score, and gather what is to be known about it.

::

    packed = pack(Path("runs/cartpole-..."), name="cartpole", episodes=100)
    write_bundle(path, packed.info, packed.arrays)
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from rookery.core.errors import UserError
from rookery.core.spec import ArraySpec
from rookery.nets.policy import Policy
from rookery.programs.plan import compute_threads
from rookery.roles.evaluator import EvalConfig, Evaluation, evaluate, mean_and_interval
from rookery.runs.checkpoint_files import Checkpoint
from rookery.runs.config import RunConfig
from rookery.runs.history import History
from rookery.runs.tensorfile import SavedArrays
from rookery.runs.trained import (
    chosen_checkpoint,
    load_config,
    on_this_machine,
    policy_of,
    run_of,
)
from rookery.zoo.catalog import check_name, find_bundle

SEED = 0
"""First seed of the evaluation: that of `rookery eval`, which repeats it."""

_PACKAGES = ("rookery", "torch", "numpy", "gymnasium")


@dataclass(frozen=True, slots=True)
class Packed:
    """What a bundle will hold."""

    info: dict[str, Any]
    arrays: SavedArrays


def pack(
    run: Path,
    *,
    name: str,
    episodes: int = 100,
    checkpoint: str | None = None,
    average_since: int | None = None,
) -> Packed:
    """Evaluate a policy of ``run`` as its settings say, and gather what a bundle holds.

    With ``average_since`` steps its weights are the mean of those that the run's history kept from
    there on: late in a training they wander around what is better than each of them
    (https://arxiv.org/abs/1803.05407).
    """
    check_name(name)
    if episodes < 2:
        raise UserError(f"--episodes: an interval needs at least 2, got {episodes}")
    if find_bundle(run) is not None:
        raise UserError(f"{run} is a bundle already; copy its file, or give the run it came from")
    if average_since is not None:
        checkpoint = checkpoint or "latest"
    found = chosen_checkpoint(run, checkpoint, ["weights", "session"])
    config = load_config(run_of(found.path))
    policy = on_this_machine(policy_of(found, config), run.name)
    averaged = {} if average_since is None else _average(policy, found, average_since)
    with compute_threads(1):
        result = evaluate(
            policy,
            config.env,
            episodes=episodes,
            seed=SEED,
            deterministic=config.eval.deterministic,
            max_steps=config.eval.max_steps,
            num_envs=config.eval.num_envs,
        )
    info = _info(name, config, policy, found, result)
    info["training"] |= averaged
    return Packed(info, dict(policy.state_dict()))


def _average(policy: Policy, found: Checkpoint, since: int) -> dict[str, Any]:
    """Give ``policy`` the mean weights of the history from ``since`` to the checkpoint; which."""
    run = run_of(found.path)
    kept = [it for it in History(run.history).snapshots() if since <= it.steps <= found.steps]
    if len(kept) < 2:
        raise UserError(
            f"--average-since {since}: the history of {run.path} has {len(kept)} "
            f"snapshots from there to step {found.steps}; a mean needs 2, so begin earlier"
        )
    loaded = [it.load() for it in kept]
    with torch.no_grad():
        for weight_name, weight in policy.named_parameters():  # statistics stay the newest
            parts = [torch.as_tensor(arrays[weight_name]).double() for arrays in loaded]
            weight.copy_(torch.stack(parts).mean(0))
    return {"averaged": {"steps": [it.steps for it in kept]}}


def _info(
    name: str, config: RunConfig, policy: Policy, found: Checkpoint, result: Evaluation
) -> dict[str, Any]:
    settings = config.to_tree()
    return {
        "name": name,
        "network": policy.kind,
        **({"network_settings": policy.settings} if policy.settings else {}),
        "policy": settings["policy"],
        "signature": policy.signature.to_json(),
        "state": {leaf: _array(spec) for leaf, spec in policy.state_spec.items()},
        "env": settings["env"],
        "eval": settings["eval"],
        "training": {
            "recipe": config.recipe,
            "steps": found.steps,
            "secs": round(found.parts["session"].data["wall_secs"], 1),
            "settings": settings,
        },
        "score": _score(config.eval, result),
        "versions": {package: metadata.version(package) for package in _PACKAGES}
        | {"python": platform.python_version()},
    }


def _array(spec: ArraySpec) -> dict[str, Any]:
    return {"shape": list(spec.shape), "dtype": spec.dtype.name}


def _score(config: EvalConfig, result: Evaluation) -> dict[str, Any]:
    """The score, and all that ``rookery eval`` must be told to find it again."""
    scores = result.lengths if config.score == "length" else result.returns
    mean, _, interval = mean_and_interval(scores)
    return {
        "by": config.score,
        "mean": mean,
        "ci95": interval,
        "episodes": len(result.returns),
        "seed": SEED,
        "deterministic": config.deterministic,
        "max_steps": config.max_steps,
        "return_mean": mean_and_interval(result.returns)[0],
        "length_mean": mean_and_interval(result.lengths)[0],
    }
