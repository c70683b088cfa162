"""From a run to a bundle: play it to know its score, and gather what is to be known about it.

::

    packed = pack(Path("runs/cartpole-..."), name="cartpole", episodes=100)
    write_bundle(path, packed.info, packed.arrays)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rookery.core.errors import UserError
from rookery.core.spec import ArraySpec
from rookery.nets.policy import Policy
from rookery.runs.checkpoint_files import Checkpoint
from rookery.runs.config import RunConfig
from rookery.runs.history import History
from rookery.runs.trained import (
    chosen_checkpoint,
    load_config,
    on_this_machine,
    policy_of,
    reward_deviation,
    run_of,
)
from rookery.runs.value_units import normalizes_rewards
from rookery.zoo.catalog import check_name, find_bundle
from rookery.zoo.score import PACKAGES, Packed, check_episodes, measured, versions_of


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
    check_episodes(episodes)
    if find_bundle(run) is not None:
        raise UserError(f"{run} is a bundle already; copy its file, or give the run it came from")
    if average_since is not None:
        checkpoint = checkpoint or "latest"
    found = chosen_checkpoint(run, checkpoint, ["weights", "session"])
    config = load_config(run_of(found.path))
    policy = on_this_machine(policy_of(found, config), run.name)
    averaged = {} if average_since is None else _average(policy, found, average_since)
    info = _info(name, config, policy, found) | measured(policy, config.env, config.eval, episodes)
    info["training"] |= averaged
    if normalizes_rewards(info["training"]["settings"]):
        info["training"]["reward_deviation"] = reward_deviation(found.path)
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


def _info(name: str, config: RunConfig, policy: Policy, found: Checkpoint) -> dict[str, Any]:
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
        "versions": versions_of(PACKAGES),
    }


def _array(spec: ArraySpec) -> dict[str, Any]:
    return {"shape": list(spec.shape), "dtype": spec.dtype.name}
