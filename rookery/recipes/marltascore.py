"""A configuration of MarltasCore as settings of ours.

::

    imported = translate(parse_yaml(text, where), where)
    imported.tree            # for --config
    imported.left_out        # keys of the file that have no counterpart, and why

What a file does not say has MarltasCore's own default, so that it means what it meant there. Its
intervals are counted in updates and ours in environment steps; how many of these go with an update
it leaves to chance, so ``steps_per_update`` says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from rookery.core.address import is_loopback, parse_address
from rookery.core.errors import UserError, near_names
from rookery.envs.atari import may_be_game
from rookery.recipes.catalog import Tree
from rookery.runs.config import VERSION

Algo = Literal["dqn", "r2d2"]
Flat = dict[str, Any]

STEPS_PER_UPDATE = 4.0
"""Environment steps for each update, unless told otherwise."""
EVAL_EPSILON = 0.02
"""How often evaluation acts at random here, if it is not deterministic."""

_CURIOSITY: Flat = {
    "enable": False,
    "L": 5.0,
    "capacity": 1_000,
    "c": 0.001,
    "xi": 0.008,
    "eps": 1e-4,
    "s_m": 8.0,
    "k": 10,
    "distance_moving_decay": 0.99,
    "feature_size": 32,
}
DEFAULTS: Flat = {
    "actor_manager_url": "localhost:1111",
    "evaluator_url": "localhost:2222",
    "param_distributor_url": "localhost:3333",
    "replay_buffer_url": "localhost:4444",
    "obs_shape": [4, 84, 84],
    "seq_len": 16,
    "n_step": 3,
    "gamma": 0.997,
    "apply_value_scaling": False,
    "n_actor_process": 3,
    "local_buffer_size": 10,
    "send_sample_interval": 10,
    "update_param_interval": 1,
    "actor.vector_env_size": 3,
    "actor.window_skip": 8,
    "env.name": "PongNoFrameskip-v4",
    "env.wrap_atari": True,
    "evaluator.n_eval": 3,
    "evaluator.eps": 0.02,
    "evaluator.custom_metric_keys": [],
    "evaluator.custom_metric_types": [],
    "model.action_size": 6,
    "model.dueling": True,
    "model.lstm_hidden_size": 128,
    "learner.adam_lr": 1e-4,
    "learner.adam_eps": 1e-8,
    "learner.batch_size": None,
    "learner.gpu_id": None,
    "learner.target_sync_interval": 1_000,
    "learner.double_dqn": True,
    "replay_buffer.prioritized_replay": True,
    "replay_buffer.capacity": 10_000,
    "replay_buffer.error_min": 0.0,
    "replay_buffer.error_max": 1.0,
    "replay_buffer.eps": 1e-4,
    "replay_buffer.alpha": 0.6,
    "replay_buffer.initial_beta": 0.4,
    "replay_buffer.max_step_beta": 100_000,
    "intrinsic_reward.enable": False,
    "intrinsic_reward.feature_size": 64,
    "intrinsic_reward.predictor_train_window_size": 5,
    "intrinsic_reward.reward_ratio": 0.15,
    "intrinsic_reward.use_ucb": False,
    **{f"intrinsic_reward.episodic_curiosity.{key}": value for key, value in _CURIOSITY.items()},
    **{f"episodic_curiosity.{key}": value for key, value in _CURIOSITY.items()},
    "trainer.initial_sample_size": 100,
    "trainer.max_global_step": 100,
    "trainer.learner_step_per_global_step": 1,
    "trainer.epsilon_greedy_eps_base": 0.7,
    "trainer.epsilon_greedy_alpha_base": 5.0,
    "trainer.param_sync_interval": 5,
    "trainer.eval_interval": 100,
    "trainer.log_interval": 10,
    "trainer.snap_interval": 100,
    "trainer.actor_manager.init_eps_base": 0.7,
    "trainer.actor_manager.final_eps_base": 0.1,
    "trainer.actor_manager.init_alpha": 7.0,
    "trainer.actor_manager.final_alpha": 3.0,
    "trainer.actor_manager.final_eps_alpha_step": 30_000,
    "trainer.actor_manager.min_eps": 0.02,
}
"""Every key, with the value it has where a file leaves it out."""
_BATCH_SIZE = {"dqn": 64, "r2d2": 32}
"""The one default in which the CNN and the RNN training differ."""

RECURRENT = (
    "seq_len",
    "actor.window_skip",
    "model.lstm_hidden_size",
    "intrinsic_reward.predictor_train_window_size",
)
"""Keys that only the RNN training has."""
SYNCHRONOUS = "trainer.learner_step_per_global_step"
"""The key that only the synchronous training has."""

_ONE_PORT = "one port of the head carries everything"
_AT_ONCE = "steps go to replay as they are made"
_LADDER = "each environment keeps its share of random actions"
NO_COUNTERPART: dict[str, str] = {
    "actor_manager_url": "processes of one machine find each other by themselves",
    "evaluator_url": _ONE_PORT,
    "param_distributor_url": _ONE_PORT,
    "replay_buffer_url": _ONE_PORT,
    "model.action_size": "the environment says it",
    "local_buffer_size": _AT_ONCE,
    "send_sample_interval": _AT_ONCE,
    "evaluator.custom_metric_types": "values of info are numbers",
    "replay_buffer.error_min": "priorities are not clipped",
    "replay_buffer.error_max": "priorities are not clipped",
    "replay_buffer.eps": "priorities have a floor instead of an added constant",
    "trainer.epsilon_greedy_eps_base": "MarltasCore does not read it either",
    "trainer.epsilon_greedy_alpha_base": "MarltasCore does not read it either",
    "trainer.actor_manager.final_eps_base": _LADDER,
    "trainer.actor_manager.final_alpha": _LADDER,
    "trainer.actor_manager.final_eps_alpha_step": _LADDER,
}
"""Keys that need none, and why."""

_EPISODIC = ("intrinsic_reward.episodic_curiosity", "episodic_curiosity")
"""Where versions of MarltasCore have the section; the first goes before the second."""
_EPISODIC_NAMES = {
    "enable": "episodic",
    "L": "limit",
    "capacity": "capacity",
    "c": "pseudo_count",
    "xi": "cluster_distance",
    "eps": "kernel_eps",
    "s_m": "max_similarity",
    "k": "num_neighbours",
    "feature_size": "embedding_features",
}
"""Keys of it, and what they are in ``agent57.novelty``."""
NO_COUNTERPART |= {
    f"{section}.distance_moving_decay": "the mean distance is that of all steps so far"
    for section in _EPISODIC
}
_INTRINSIC = ("intrinsic_reward", "episodic_curiosity")
"""Sections that mean nothing while ``intrinsic_reward.enable`` is false."""

_UCB = {
    "num_arms": 32,
    "choice": "bandit",
    "score": "ucb1_tuned",
    "window": 520,
    "random_share": 0.1,
}
"""The controller that MarltasCore has built in."""


class Imported(NamedTuple):
    """What became of a file."""

    tree: Tree
    """Settings of ours."""
    left_out: dict[str, str]
    """Keys of the file that have no counterpart, and why."""
    notes: list[str]
    """What was assumed."""


def translate(
    given: Tree, where: str, *, algo: Algo | None = None, steps_per_update: float | None = None
) -> Imported:
    """What the MarltasCore configuration ``given``, read from ``where``, is here."""
    said = dict(_flat(given, where))
    notes: list[str] = []
    if algo is None:
        algo = "r2d2" if any(key in said for key in RECURRENT) else "dqn"
        if algo == "dqn":
            notes.append(
                f"no key of an RNN ({', '.join(RECURRENT[:3])}), so it is taken for a CNN's; "
                "--algo r2d2 if it was trained by *_rnn_train.py"
            )
    old = DEFAULTS | {"learner.batch_size": _BATCH_SIZE[algo]} | said
    synchronous = SYNCHRONOUS in said
    updates = old[SYNCHRONOUS] if synchronous else 1
    if updates < 1:
        raise UserError(f"{where}: {SYNCHRONOUS}: must be at least 1, got {updates}")
    if synchronous:
        ratio = old["actor.vector_env_size"] / updates
        if steps_per_update is not None:
            notes.append(f"--steps-per-update is not heeded: the file says it by {SYNCHRONOUS}")
    else:
        ratio = steps_per_update or STEPS_PER_UPDATE
        notes.append(
            f"MarltasCore leaves to chance how many steps go with an update; {ratio:g} are assumed "
            "(--steps-per-update)"
        )
    if algo == "r2d2" and old["seq_len"] < old["n_step"]:
        raise UserError(
            f"{where}: seq_len: {old['seq_len']} is less than n_step, {old['n_step']}; "
            "nothing of a sequence would be learned"
        )
    block = _algorithm(old, algo, ratio)
    curious = old["intrinsic_reward.enable"]
    if curious:
        block |= _curiosity(old, said)
        notes.append(
            "intrinsic rewards have values of their own, so the algorithm is agent57; its first "
            "arm only exploits"
        )
    ours = "agent57" if curious else algo
    num_actors = 1 if synchronous else old["n_actor_process"]
    tree = {
        "version": VERSION,
        "algo": ours,
        "formation": "replay",
        "env": _env(old, num_actors),
        "policy": _policy(old, algo),
        ours: block,
        "replay": {"num_actors": num_actors},
        "optimizer": {
            "lr": old["learner.adam_lr"],
            "eps": old["learner.adam_eps"],
            "max_grad_norm": None,
        },
        **_run(old, ratio * updates),
    }
    if old["learner.gpu_id"] is not None:
        tree["device"] = f"cuda:{old['learner.gpu_id']}"
    tree |= _hosts(old, where, notes)
    left_out = {key: why for key in said if (why := _why_not(key, old, synchronous))}
    return Imported(tree, left_out, notes)


def _hosts(old: Flat, where: str, notes: list[str]) -> Tree:
    """Where hosts join, if the file is of several machines; how to start them goes to ``notes``."""
    host, port = parse_address(str(old["actor_manager_url"]), f"{where}: actor_manager_url")
    if is_loopback(host):
        return {}
    head = "HEAD" if host in _EVERY_ADDRESS else host
    notes.append(
        f"a run of several machines: at the head `rookery train --config FILE`, which prints the "
        f"line for each node, `rookery join {head}:{port} --token ... --fingerprint ... "
        f"--actors {old['n_actor_process']}`"
    )
    return {"engine": "local", "hosts": {"listen": f"0.0.0.0:{port}"}}


_EVERY_ADDRESS = ("0.0.0.0", "::")


# ---- reading -----------------------------------------------------------------------------------


def _flat(tree: Mapping[str, Any], where: str, above: str = "") -> Iterator[tuple[str, Any]]:
    """Keys as ``learner.batch_size`` and their values; unknown keys and wrong types are refused."""
    for name, value in tree.items():
        key = f"{above}{name}"
        if key in DEFAULTS:
            yield key, _checked(key, value, where)
        elif any(known.startswith(f"{key}.") for known in DEFAULTS):
            if value is not None and not isinstance(value, Mapping):
                raise UserError(f"{where}: {key}: must be a mapping of settings, got {value!r}")
            yield from _flat(value or {}, where, f"{key}.")
        else:
            hint = near_names(key, DEFAULTS) or "; it is no key of MarltasCore's"
            raise UserError(f"{where}: unknown key '{key}'{hint}")


def _checked(key: str, value: Any, where: str) -> Any:
    """``value`` if it is of the kind that MarltasCore has there."""
    usual = DEFAULTS[key]
    if key == "learner.gpu_id" and value is None:
        return None
    if isinstance(usual, bool):
        kind, fits = "true or false", isinstance(value, bool)
    elif isinstance(usual, int) or usual is None:
        kind, fits = "a whole number", isinstance(value, int) and not isinstance(value, bool)
    elif isinstance(usual, float):
        kind, fits = "a number", isinstance(value, (int, float)) and not isinstance(value, bool)
    elif isinstance(usual, list):
        kind, fits = "a list", isinstance(value, list)
    else:
        kind, fits = "text", isinstance(value, str)
    if not fits:
        raise UserError(f"{where}: {key}: must be {kind}, got {value!r}")
    return value


def _why_not(key: str, old: Flat, synchronous: bool) -> str | None:
    """Why ``key`` was left out; None if it was not."""
    if key.partition(".")[0] in _INTRINSIC and not old["intrinsic_reward.enable"]:
        return None if key == "intrinsic_reward.enable" else "intrinsic_reward.enable is false"
    why = NO_COUNTERPART.get(key)
    if key == "actor_manager_url" and not is_loopback(parse_address(str(old[key]))[0]):
        return None
    if why is None and key == "evaluator.eps" and old[key] not in (0, EVAL_EPSILON):
        why = f"evaluation acts at random in {EVAL_EPSILON:.0%} of the steps, or never"
    if why is None and key == "n_actor_process" and synchronous:
        why = "a synchronous training has one actor"
    if why is None and key == "env.wrap_atari" and old[key] and not may_be_game(old["env.name"]):
        why = f"{old['env.name']} is no Atari game"
    if why is None and key == "actor.window_skip" and old[key] > _learned(old):
        why = "sequences here leave no step out; they follow each other without overlap"
    return why


# ---- what it becomes ---------------------------------------------------------------------------


def _env(old: Flat, num_actors: int) -> Tree:
    count = max(num_actors, 1) * old["actor.vector_env_size"]  # here all of the run
    env: Tree = {"id": old["env.name"], "num_envs": count}
    if may_be_game(env["id"]):
        env["atari"] = {"life_loss": True} if old["env.wrap_atari"] else {"preprocess": False}
    return env


def _policy(old: Flat, algo: Algo) -> Tree:
    size, image = old["model.lstm_hidden_size"], len(old["obs_shape"]) == 3
    if algo == "r2d2":
        hidden = [] if image else [32, size]
        core = {"core": "lstm", "core_size": size}
    else:
        hidden = [512] if image else [32, 64]
        core = {}
    return {"hidden": hidden, "activation": "relu", **core, "dueling": old["model.dueling"]}


def _learned(old: Flat) -> int:
    """Steps of a sequence that have a target within it."""
    return int(old["seq_len"] + 1 - old["n_step"])


def _algorithm(old: Flat, algo: Algo, ratio: float) -> Tree:
    """The algorithm's block, with ``ratio`` environment steps for each update."""
    # MarltasCore counts sequences where we count steps; each brings window_skip new ones.
    length = _learned(old) if algo == "r2d2" else 1
    period = min(old["actor.window_skip"], length) if algo == "r2d2" else 1
    block: Tree = {
        "gamma": old["gamma"],
        "n_step": old["n_step"],
        "length": length,
        "overlap": length - period,
        "burn_in": 0,
        "batch_size": old["learner.batch_size"],
        "steps_per_update": float(ratio),
        "learning_starts": max(old["trainer.initial_sample_size"] * period, 1),
        "capacity_steps": old["replay_buffer.capacity"] * period,
        "target_every": old["learner.target_sync_interval"],
        "publish_every": old["trainer.param_sync_interval"],
        "rollout_steps": old["update_param_interval"],
        "double": old["learner.double_dqn"],
        "rescale": old["apply_value_scaling"],
        "loss": "squared",
        "epsilon": {
            "kind": "ladder",
            "start": old["trainer.actor_manager.init_eps_base"],
            "end": old["trainer.actor_manager.min_eps"],
            "power": old["trainer.actor_manager.init_alpha"],
        },
        **_priorities(old, ratio),
    }
    if old["env.wrap_atari"] and may_be_game(old["env.name"]):
        block |= {"reward_min": -1.0, "reward_max": 1.0}
    return block


def _priorities(old: Flat, ratio: float) -> Tree:
    if not old["replay_buffer.prioritized_replay"]:
        return {"priority_exponent": 0.0, "actor_priorities": False}
    beta, updates = old["replay_buffer.initial_beta"], old["replay_buffer.max_step_beta"]
    return {
        "priority_exponent": old["replay_buffer.alpha"],
        "importance": {"start": beta, "end": 1.0, "until_steps": max(round(updates * ratio), 1)},
        "eta": 0.0,
        "actor_priorities": True,
    }


def _curiosity(old: Flat, said: Flat) -> Tree:
    """What makes agent57 of the block of dqn or r2d2."""
    family: Tree = {"beta_max": old["intrinsic_reward.reward_ratio"], "gamma_min": old["gamma"]}
    family |= _UCB if old["intrinsic_reward.use_ucb"] else {"num_arms": 2, "choice": "fixed"}
    novelty: Tree = {
        "distilled_features": old["intrinsic_reward.feature_size"],
        "train_steps": old["intrinsic_reward.predictor_train_window_size"],
    }
    for key, ours in _EPISODIC_NAMES.items():
        names = [f"{section}.{key}" for section in _EPISODIC]
        novelty[ours] = old[next((name for name in names if name in said), names[0])]
    return {"family": {**family, "gamma_middle": None}, "novelty": novelty}


def _run(old: Flat, steps: float) -> Tree:
    """How long, and what happens when; ``steps`` of the environments for each global step."""

    def every(key: str) -> int:
        count: float = old[f"trainer.{key}"] * steps
        return max(round(count), 1)

    return {
        "total_steps": every("max_global_step"),
        "eval": {
            "every_steps": every("eval_interval"),
            "episodes": old["evaluator.n_eval"],
            "deterministic": old["evaluator.eps"] == 0,
        },
        "metrics": {
            "every_steps": every("log_interval"),
            "info_keys": list(old["evaluator.custom_metric_keys"]),
        },
        "checkpoint": {"every_steps": every("snap_interval")},
    }
