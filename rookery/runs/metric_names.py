"""What metrics are called where people read them, with their units."""

from __future__ import annotations

import re

_NAMES = {
    "rollout/return_mean": "training return (mean of {window} episodes)",
    "rollout/length_mean": "training episode length (steps)",
    "rollout/return_max": "highest training return of {window} episodes",
    "rollout/return_min": "lowest training return of {window} episodes",
    "rollout/episodes": "training episodes ended",
    "rollout/info_arm_mean": "arm played (mean of {window} episodes)",
    "rollout/info_exploiting_mean": "share of episodes that exploit (of {window})",
    "rollout/info_intrinsic_reward_mean": "intrinsic reward (mean of {window} episodes)",
    "eval/return_mean": "return in evaluation",
    "eval/return_std": "deviation of returns in evaluation",
    "eval/return_max": "highest return in evaluation",
    "eval/return_min": "lowest return in evaluation",
    "eval/length_mean": "episode length in evaluation (steps)",
    "eval/length_std": "deviation of episode lengths in evaluation (steps)",
    "eval/saved_wall_secs": "training time of the policy in evaluation (seconds)",
    "record/steps": "training of the policy in a film (steps)",
    "record/saved_wall_secs": "training time of the policy in a film (seconds)",
    "record/return_mean": "return in films",
    "record/length_mean": "episode length in films (steps)",
    "record/films": "films made",
    "record/skipped": "checkpoints not filmed for want of time",
    "time/env_steps_per_s": "steps per second",
    "train/lr": "learning rate",
    "train/loss": "loss",
    "train/policy_loss": "policy loss",
    "train/value_loss": "value loss",
    "train/entropy": "entropy of the policy (nats)",
    "train/approx_kl": "change of the policy in an update (KL, nats)",
    "train/clip_fraction": "share of samples that PPO clipped",
    "train/explained_variance": "share of the targets' variance explained",
    "train/grad_norm": "norm of the gradient before clipping",
    "train/value_mean": "mean value of the actions taken",
    "train/target_mean": "mean target of the values",
    "train/epsilon": "share of random actions (mean of the environments)",
    "train/error_mean": "mean absolute error of the values",
    "train/reward_peak": "largest reward in a batch, without its sign",
    "train/rho_mean": "mean importance weight, truncated",
    "train/rho_clipped": "share of importance weights truncated",
    "train/lag_min": "lag of rollouts (updates, lowest)",
    "train/lag_mean": "lag of rollouts (updates, mean)",
    "train/lag_max": "lag of rollouts (updates, highest)",
    "train/staleness": "staleness of the gradient (updates)",
    "train/staleness_min": "staleness of gradients (updates, lowest)",
    "train/staleness_mean": "staleness of gradients (updates, mean)",
    "train/staleness_max": "staleness of gradients (updates, highest)",
    "train/late_gradients": "share of gradients that came too late",
    "train/novelty_error": "error of the novelty predictor",
    "train/inverse_accuracy": "share of actions told from what they did",
    "train/intrinsic_reward": "intrinsic reward of a step",
    "replay/steps": "steps in replay",
    "replay/sequences": "sequences in replay",
    "replay/ratio": "times that a step was learned from",
    "replay/bytes": "memory of replay (bytes)",
    "replay/stale_updates": "priorities that came too late",
    "replay/lost": "sequences dropped before they were whole",
    "inference/requests_per_sec": "requests for actions a second",
    "inference/batch_envs": "environments in one batch of inference",
    "inference/latency_ms_p50": "time to an answer (ms, median)",
    "inference/latency_ms_p99": "time to an answer (ms, 99 of 100)",
    "server/updates": "updates of the first server",
    "server/waits_for": "gradients of an update",
    "server/late": "gradients dropped as too old",
    "server/refused": "gradients that were not finite",
    "fleet/env_share": "share of time in environments",
    "fleet/restarts": "processes replaced",
    "fleet/hosts": "hosts that have joined",
    "fleet/joined_actors": "actors of hosts that have joined",
    "fleet/refused": "calls of hosts without the token",
    "fleet/rollouts_put": "rollouts put",
    "fleet/rollouts_taken": "rollouts taken by the learner",
    "fleet/rollouts_learned": "rollouts learned from",
    "fleet/rollouts_refused": "rollouts refused as too old",
    "fleet/rollouts_waiting": "rollouts that wait",
}
_PATTERNS = (
    (r"rollout/info_(.+)_mean", "{0} (mean of {window} episodes)"),
    (r"inference/within_(.+)_ms", "share of requests answered within {0} ms"),
    (r"eval/info_(.+)_mean", "{0} in evaluation"),
    (r"window/(.+)", "{0} (mean of the updates of {window} episodes)"),
    (r"fleet/slowest_(.+)", "number of the slowest {0}"),
    (r"fleet/(.+)_wait_share", "share of time that the {0} waits"),
    (r"fleet/(.+)_env_share", "share of the {0}'s time in environments"),
    (r"fleet/([^/_]+s)", "{0}"),
)


def human_name(key: str, window: str = "recent") -> str:
    """The metric ``key`` in words; ``window`` is how many episodes are averaged over.

    One that a user's own code records is its last part, in words.
    """
    if key in _NAMES:
        return _NAMES[key].format(window=window)
    for pattern, name in _PATTERNS:
        if found := re.fullmatch(pattern, key):
            return name.format(_words(found[1]), window=window)
    return _words(key.rpartition("/")[2])


def is_named(key: str) -> bool:
    """Whether ``key`` is one of Rookery's own."""
    return key in _NAMES or any(re.fullmatch(pattern, key) for pattern, _ in _PATTERNS)


def _words(name: str) -> str:
    return name.replace("_", " ")
