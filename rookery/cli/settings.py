"""From a recipe, files and flags to a :class:`~rookery.runs.config.RunConfig`.

The recipe is resolved first; then the parser is built for its algorithm and formation, so that
``--help`` shows only what applies, with the recipe's own values as defaults.
"""

from __future__ import annotations

import argparse
import difflib
import warnings
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace, set_parsing_settings

from rookery.algos.algorithm import config_class
from rookery.core.errors import UserError, near_names
from rookery.envs.make import EnvConfig
from rookery.nets.actor_critic import PolicyConfig
from rookery.params.optimizer import OptimizerConfig
from rookery.programs.formations import formation_config_class
from rookery.recipes.catalog import Tree, lay_over, load_config_file, load_recipe, recipe_names
from rookery.recipes.catalog import resolve as resolve_recipe
from rookery.roles.evaluator import EvalConfig
from rookery.runs.config import CheckpointConfig, EngineName, MetricsConfig, RunConfig
from rookery.runs.supervise import SuperviseConfig

set_parsing_settings(docstring_parse_attribute_docstrings=True)

_TOP: dict[str, tuple[Any, Any, str]] = {
    "name": (str, "", "Name of the run directory; default: the recipe or environment."),
    "tags": (tuple[str, ...], (), "Words to find the run by."),
    "device": (str, "cpu", "Where policies are evaluated and learned: cpu, cuda, cuda:1 ..."),
    "seed": (int, 0, "Every random stream of the run is derived from it."),
    "total_steps": (int, 1_000_000, "Environment steps in all (short: --steps)."),
    "time_limit_secs": (float | None, None, "End properly after this training time."),
    "stop_at": (float | None, None, "Stop when this mean return is reached; null: never."),
}

_SECTIONS: dict[str, type[Any]] = {
    "env": EnvConfig,
    "policy": PolicyConfig,
    "optimizer": OptimizerConfig,
    "eval": EvalConfig,
    "checkpoint": CheckpointConfig,
    "metrics": MetricsConfig,
    "supervise": SuperviseConfig,
}

_CHOICES = ("algo", "formation", "engine")


def short_flags(algo: str, formation: str) -> dict[str, str]:
    """Short flags and the settings they stand for."""
    return {
        "actors": f"{formation}.num_actors",
        "envs": "env.num_envs",
        "steps": "total_steps",
        "time-limit": "time_limit_secs",
        "gamma": f"{algo}.gamma",
        "lr": "optimizer.lr",
        "log-every": "metrics.every_steps",
        "save-every": "checkpoint.every_steps",
        "eval-every": "eval.every_steps",
        "stop-at": "stop_at",
    }


class _Parser(ArgumentParser):
    """Raises :class:`UserError` instead of printing usage and exiting."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserError(" ".join(str(message).split()))


def train_settings(
    what: str | None, argv: Sequence[str], *, prog: str = "rookery train"
) -> RunConfig:
    """The configuration of ``rookery train WHAT ARGV`` (less what names the run itself)."""
    rest, given = take_flags(list(argv), ("--config", *(f"--{choice}" for choice in _CHOICES)))
    base = _base_tree(what, given)
    return _build(base, rest, prog=f"{prog} {what or '--config'}")


def config_from_tree(tree: Tree) -> RunConfig:
    """A configuration from nested plain data, such as a run's own config.yaml."""
    return _build(resolve_recipe(tree, None), [], prog="rookery")


def _base_tree(what: str | None, given: dict[str, str]) -> Tree:
    """Recipe or environment, its block for the formation, ``--config``; choices laid over."""
    over = load_config_file(Path(given["config"])) if "config" in given else {}
    formation = given.get("formation") or over.get("formation")
    tree: Tree = {}
    if what is not None:
        tree = load_recipe(what) if _is_recipe(what) else {"env": {"id": what}}
        tree["recipe"] = what
    elif not over:
        raise UserError(
            "train what? give a recipe (`rookery recipes`), an environment id, module:factory, "
            "or --config FILE"
        )
    tree = resolve_recipe(lay_over(resolve_recipe(tree, formation), over), formation)
    return lay_over(tree, {c: given[c] for c in _CHOICES if c in given})


def _is_recipe(what: str) -> bool:
    """A plain lower-case word is meant as a recipe unless gymnasium knows it."""
    if what in recipe_names():
        return True
    looks_like_env = ":" in what or "/" in what or "-v" in what or what[:1].isupper()
    if looks_like_env:
        return False
    raise UserError(
        f"unknown recipe '{what}'{near_names(what, recipe_names())} (see `rookery recipes`; "
        "an environment is given as Name-v0 or module:factory)"
    )


def _build(tree: Tree, argv: list[str], *, prog: str) -> RunConfig:
    tree = dict(tree)
    algo, formation = str(tree.get("algo", "ppo")), str(tree.get("formation", "sync"))
    blocks = {algo: config_class(algo), formation: formation_config_class(formation)}
    for other in _other_blocks(tree, blocks):
        del tree[other]
    defaults = _instantiate(_parser(prog, blocks, {}), tree)
    parser = _parser(prog, blocks, defaults)
    flags = short_flags(algo, formation)
    parsed = parser.parse_args(_expand(argv, flags, parser))
    values = vars(_instances(parser, parsed))
    for ignored in ("help", "print_config"):
        values.pop(ignored, None)
    return RunConfig(
        algo_config=values.pop(algo),
        formation_config=values.pop(formation),
        **values,
    )


def _other_blocks(tree: Tree, blocks: dict[str, Any]) -> list[str]:
    """Blocks of algorithms and formations that a recipe holds but that were not chosen."""
    from rookery.algos.algorithm import algorithm_names
    from rookery.programs.formations import FORMATIONS

    return [n for n in (*algorithm_names(), *FORMATIONS) if n in tree and n not in blocks]


def _parser(prog: str, blocks: dict[str, type[Any]], defaults: dict[str, Any]) -> _Parser:
    parser = _Parser(
        prog=prog,
        description="Train an agent. Settings may be given as --section.name VALUE.",
        default_env=False,
        exit_on_error=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--print_config", action="store_true", help="Print the settings and exit.")
    algo, formation = blocks
    parser.add_argument("--recipe", type=str, default=defaults.get("recipe", ""), help="(set)")
    for choice, default in (("algo", algo), ("formation", formation)):
        parser.add_argument(f"--{choice}", type=str, default=default, help=f"Which {choice}.")
    parser.add_argument(
        "--engine",
        type=EngineName,
        default=defaults.get("engine", "inline"),
        help="inline: one thread; local: a process per role.",
    )
    for name, (kind, default, about) in _TOP.items():
        parser.add_argument(f"--{name}", type=kind, default=defaults.get(name, default), help=about)
    for name, section in {**_SECTIONS, **blocks}.items():
        kwargs = {"default": defaults[name]} if name in defaults else {}
        parser.add_argument(f"--{name}", type=section, **kwargs)
    short = "  ".join(f"--{k} = --{v}" for k, v in short_flags(algo, formation).items())
    parser.epilog = "short flags: " + short
    return parser


def _instantiate(parser: _Parser, tree: Tree) -> dict[str, Any]:
    """Dataclass instances from nested plain data, refusing unknown keys by name."""
    try:
        parsed = parser.parse_object(tree)
    except UserError as error:
        raise UserError(_with_hint(str(error), tree)) from error
    except (argparse.ArgumentError, TypeError, KeyError, ValueError) as error:
        raise UserError(_with_hint(_message(error), tree)) from error
    return dict(vars(_instances(parser, parsed)))


def _instances(parser: _Parser, parsed: Namespace) -> Namespace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make = getattr(parser, "instantiate", None) or parser.instantiate_classes
        instances: Namespace = make(parsed)
    return instances


def _message(error: Exception) -> str:
    return " ".join(str(error).split())


def _with_hint(message: str, tree: Tree) -> str:
    """Add near names when the message says which option is not accepted."""
    for section, cls in {**_SECTIONS}.items():
        known = [field.name for field in fields(cls)]
        block = tree.get(section)
        if isinstance(block, dict):
            for key in block:
                if key not in known and key in message:
                    return message + near_names(key, known)
    unknown = [key for key in tree if key in message and key not in (*_TOP, *_SECTIONS)]
    if unknown:
        return message + near_names(unknown[0], (*_TOP, *_SECTIONS, *_CHOICES))
    return message


def _expand(argv: list[str], flags: dict[str, str], parser: _Parser) -> list[str]:
    """Short flags written out; unknown flags refused with near names."""
    known = {option for action in parser._actions for option in action.option_strings} | {
        f"--{flag}" for flag in flags
    }
    out = []
    for word in argv:
        if not word.startswith("--"):
            out.append(word)
            continue
        name, equals, value = word.partition("=")
        full = f"--{flags[name[2:]]}" if name[2:] in flags else name
        if full not in known and not any(full.startswith(f"{k}.") for k in known):
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(close)}?" if close else " (see --help)"
            raise UserError(f"unknown flag {name}{hint}")
        value = "null" if full == "--stop_at" and value == "none" else value
        out.append(full + equals + value)
    return _none_to_null(out)


def _none_to_null(argv: list[str]) -> list[str]:
    """``--stop-at none`` as people write it."""
    return [
        "null" if word == "none" and before in ("--stop_at", "--eval.every_steps") else word
        for before, word in zip(["", *argv], argv, strict=False)
    ]


def take_flags(argv: list[str], names: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Take ``--name VALUE`` and ``--name=VALUE`` out of ``argv``."""
    rest: list[str] = []
    given: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in names:
            rest.append(word)
            continue
        if not equals:
            value = next(words, "")
        if not value:
            raise UserError(f"{name}: give it a value")
        given[name[2:]] = value
    return rest, given
