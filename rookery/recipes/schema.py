"""Which settings there are for an algorithm and a formation, of which type, and what they mean.

Every source of settings (recipe, file, flags, Python) is a tree of plain data. Trees are laid over
each other, and the result becomes dataclasses here, by jsonargparse::

    schema = Schema("ppo", "sync")
    schema.check_keys(tree)
    config = schema.build(tree)
"""

from __future__ import annotations

import argparse
import re
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, cached_property
from typing import Any, Literal, NoReturn

from jsonargparse import ArgumentParser, set_parsing_settings

from rookery.algos.algorithm import algorithm_names, block_name, config_class
from rookery.core.errors import UserError, naming, near_names
from rookery.core.schedule import LinearSchedule
from rookery.envs.make import EnvConfig
from rookery.envs.registration import info_keys_of
from rookery.formations.settings import (
    formation_block,
    formation_config_class,
    formation_names,
)
from rookery.nets.policy import PolicyConfig
from rookery.params.optimizer import OptimizerConfig
from rookery.recipes.catalog import Tree, lay_over, parse_value, seconds
from rookery.recipes.foreign_names import own_names
from rookery.recipes.schedules import stretched
from rookery.roles.evaluator import EvalConfig
from rookery.roles.recorder import RecordConfig
from rookery.runs.config import CheckpointConfig, EngineName, HostsConfig, MetricsConfig, RunConfig
from rookery.runs.ray_settings import RayConfig
from rookery.runs.supervise import SuperviseConfig

set_parsing_settings(docstring_parse_attribute_docstrings=True)

_TOP: dict[str, tuple[Any, Any, str]] = {
    "engine": (
        EngineName,
        "inline",
        "inline: one thread; local: a process per role; mpi: a rank per role; ray: a Ray cluster.",
    ),
    "threads": (bool, False, "Engine inline: each actor in a thread of its own."),
    "device": (str, "cpu", "Where policies act and learn: cpu, cuda, cuda:1 ..."),
    "seed": (int, 0, "Every random stream of the run is derived from it."),
    "total_steps": (int, 1_000_000, "Environment steps in all."),
    "time_limit_secs": (float | None, None, "End properly after this long, as 90s, 15m or 2h."),
    "stop_at": (float | None, None, "Stop when this mean score is reached; none: never."),
    "stretch_schedules": (bool, False, "Schedules end with the run, however long it is."),
    "name": (str, "", "Name of the run directory; empty: the recipe or environment."),
    "tags": (tuple[str, ...], (), "Words to find the run by."),
}

_SECTIONS: dict[str, type[Any]] = {
    "env": EnvConfig,
    "policy": PolicyConfig,
    "optimizer": OptimizerConfig,
    "eval": EvalConfig,
    "record": RecordConfig,
    "checkpoint": CheckpointConfig,
    "metrics": MetricsConfig,
    "supervise": SuperviseConfig,
    "hosts": HostsConfig,
    "ray": RayConfig,
}

CHOICES = ("recipe", "algo", "formation")
"""Settings that decide which other settings there are."""

_OF_TRAIN = ("run", "init_from")
"""What others have as settings and `rookery train` as arguments of its own."""

_LIKENESS = 0.7
"""Of flags, which are long and many: below this, what is suggested has nothing to do with it."""

_GONE = {
    "async.rollouts_per_batch": "is async.batch_envs now and counts environments: the rollouts "
    "times the environments of one actor",
    "async.threads": "is threads now, without async: --threads true",
}
"""Settings of before, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its type and what it means."""

    kind: Any
    about: str


class _Parser(ArgumentParser):
    """Raises instead of printing usage and exiting."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise _RefusedError(message)


class _RefusedError(ValueError):
    """jsonargparse did not accept a value."""


@cache
def _parser_of(sections: tuple[tuple[str, type[Any]], ...]) -> _Parser:
    """A parser of the top level and ``sections``; to make one takes a tenth of a second."""
    parser = _Parser(exit_on_error=False, default_env=False, add_help=False)
    for name, (kind, default, about) in _TOP.items():
        parser.add_argument(f"--{name}", type=kind, default=default, help=about)
    for name, section in sections:
        parser.add_argument(f"--{name}", type=section)
    return parser


class Schema:
    """The settings of runs with one algorithm and one formation."""

    def __init__(self, algo: str, formation: str) -> None:
        self.algo, self.formation = algo, formation
        self.block, self.formation_block = block_name(algo), formation_block(formation)
        self.formation_class = formation_config_class(formation)
        taken = {*_TOP, *_SECTIONS, *CHOICES}
        _check_free("--algo", algo, self.block, taken | {*formation_names(), self.formation_block})
        if ":" in formation:
            others = taken | {*formation_names(), *algorithm_names()}
            _check_free("--formation", formation, self.formation_block, others)
        blocks = {self.block: config_class(algo), self.formation_block: self.formation_class}
        self.sections: dict[str, type[Any]] = {**_SECTIONS, **blocks}
        self.blocks: dict[str, type[Any]] = {}
        """Sections and the blocks within them, as env and env.atari."""
        self.kinds: dict[str, Any] = {name: kind for name, (kind, _, _) in _TOP.items()}
        for section, cls in self.sections.items():
            self._add_block(section, cls)

    def _add_block(self, path: str, cls: type[Any]) -> None:
        self.blocks[path] = cls
        hints = typing.get_type_hints(cls)
        for field in fields(cls):
            kind, below = hints[field.name], f"{path}.{field.name}"
            if is_dataclass(kind):
                self._add_block(below, typing.cast(type[Any], kind))
            else:
                self.kinds[below] = kind

    @cached_property
    def short_flags(self) -> dict[str, str]:
        """Short flags, as written in Python, and the settings they stand for."""
        return {
            "steps": "total_steps",
            "time_limit": "time_limit_secs",
            "envs": "env.num_envs",
            "stack_frames": "env.frame_stack",
            **self._replica_flags(),
            "gamma": f"{self.block}.gamma",
            "lr": "optimizer.lr",
            "log_every": "metrics.every_steps",
            "log_episodes": "metrics.every_episodes",
            "save_every": "checkpoint.every_steps",
            "eval_every": "eval.every_steps",
            "eval_after_limit": "eval.after_limit",
            "listen": "hosts.listen",
            "places": "hosts.places",
            "token_file": "hosts.token_file",
            "address": "ray.address",
        }

    def _replica_flags(self) -> dict[str, str]:
        """``actors``, ``workers`` where those act; ``learners`` and ``servers`` where there may be
        several."""
        flags = {"actors": f"{self.formation_block}.num_actors"}
        if self.formation_class.acting_role == "worker":
            flags["workers"] = flags["actors"]
        for name in ("learners", "servers"):
            if f"{self.formation_block}.num_{name}" in self.kinds:
                flags[name] = f"{self.formation_block}.num_{name}"
        return flags

    def _why_no_flag(self, name: str, write: Callable[[str], str]) -> str | None:
        """What to write instead of those that other formations have."""
        actors, works = write("actors"), self.formation_class.acting_role == "worker"
        if name == "workers":
            return f": formation {self.formation} has actors; use {actors}"
        if name == "learners" and works:
            return f": in formation {self.formation} the workers learn; use {actors}"
        if name == "learners":
            return f": formation {self.formation} has one learner; leave it out"
        if name == "servers":
            return f": formation {self.formation} has no parameter servers; leave it out"
        return None

    @property
    def _parser(self) -> _Parser:
        return _parser_of(tuple(self.sections.items()))

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """All settings by their path, with what their docstrings say."""
        about = {action.dest: action.help or "" for action in self._parser._actions}
        return {path: Setting(kind, about.get(path, "")) for path, kind in self.kinds.items()}

    # ---- from what people write to a tree ------------------------------------------------------

    def path_of(self, name: str) -> str | None:
        """The setting that a flag (without dashes) stands for; None if there is none."""
        head, dot, tail = name.partition(".")
        path = self._present(self.short_flags.get(head, head) + dot + tail)
        block = "." in path and path in self.blocks  # as a whole, such as dqn.epsilon
        known = block or path in self.kinds or path in CHOICES or self._leads_into_mapping(path)
        return path if known else None

    def _present(self, path: str) -> str:
        """``path``, by the name that it has now."""
        before = f"{self.formation_block}.num_workers"
        works = self.formation_class.acting_role == "worker"
        return f"{self.formation_block}.num_actors" if works and path == before else path

    def with_present_names(self, tree: Tree, where: str = "") -> Tree:
        """``tree`` with num_actors where it has the num_workers of before."""
        block = tree.get(self.formation_block)
        before = f"{self.formation_block}.num_workers"
        if self._present(before) == before or not isinstance(block, Mapping):
            return tree
        if "num_workers" not in block:
            return tree
        if "num_actors" in block:
            raise UserError(f"{where}{before}: is num_actors now, which is there too; leave one")
        renamed = {"num_actors" if key == "num_workers" else key: block[key] for key in block}
        return tree | {self.formation_block: renamed}

    def _leads_into_mapping(self, path: str) -> bool:
        """Whether ``path`` is an entry of a mapping, as env.kwargs.x or optimizer.lr.start."""
        parent, _, entry = path.rpartition(".")
        return parent in self.kinds and _may_have(self.kinds[parent], entry)

    def hint(self, name: str, write: Callable[[str], str] = str) -> str:
        """What someone may have meant who wrote the unknown ``name``, as ``write`` writes it."""
        if name in _GONE:
            return f": it {_GONE[name]}"
        if instead := self._why_no_flag(name, write):
            return instead
        for ours in own_names(name, self.block):
            if ours in (*_OF_TRAIN, *self.short_flags) or self.path_of(ours) is not None:
                return f": it is {write(ours)} here"
        section = name.partition(".")[0]
        if section in (*algorithm_names(), *formation_names()) and section not in self.sections:
            kind = "algo" if section in algorithm_names() else "formation"
            return f": this run uses {kind} {getattr(self, kind)}; choose {kind} {section} for it"
        known = [write(known) for known in (*self.short_flags, *self.kinds, *CHOICES)]
        last = {write(path.rpartition(".")[2]): write(path) for path in self.kinds}
        close = near_names(write(name), known, likeness=_LIKENESS)
        close = close or near_names(write(name), last, last, likeness=_LIKENESS)
        return close or "; `rookery train RECIPE --help-all` lists all"

    def value(self, path: str, text: str) -> Any:
        """``text`` of a flag as plain data for the setting at ``path``."""
        kind = self.kinds.get(path, Any)
        if _is_optional(kind) and text in ("none", "null"):
            return None
        if path == "time_limit_secs":
            return seconds(text)
        if _is_text(kind):
            return text
        if _is_list(kind) and not text.startswith("["):
            if str in _elements(kind):
                return [word.strip() for word in text.split(",")]
            text = f"[{text}]"
        value = parse_value(text)
        whole = isinstance(value, float) and value.is_integer() and kind in (int, int | None)
        return int(value) if whole else value

    def block_value(self, path: str, text: str) -> Tree:
        """``text`` of a flag for all or some settings of the block at ``path``, as a mapping."""
        value = parse_value(text)
        self._check_block(path, value, "")
        return dict(value)

    # ---- from a tree to a configuration --------------------------------------------------------

    def check_keys(self, tree: Tree, where: str = "") -> None:
        """Refuse keys that do not exist, with near names; ``where`` says whose tree it is."""
        top = [*(name for name in self.kinds if "." not in name), *self.sections, *CHOICES]
        for key, value in tree.items():
            if key not in top:
                raise _unknown(where, str(key), top)
            if key in self.sections:
                self._check_block(key, value, where)

    def _check_block(self, path: str, value: Any, where: str) -> None:
        """Refuse keys that the block at ``path`` does not have."""
        if not isinstance(value, Mapping):
            raise UserError(f"{where}{path}: must be a mapping of settings, got {value!r}")
        known = [f"{path}.{field.name}" for field in fields(self.blocks[path])]
        for name, entry in value.items():
            below = f"{path}.{name}"
            if below not in known:
                raise _unknown(where, below, known)
            if below in self.blocks:
                self._check_block(below, entry, where)

    def build(self, tree: Tree) -> RunConfig:
        """The configuration that ``tree`` describes; every value is checked."""
        if not (tree.get("env") or {}).get("id"):
            raise UserError("env.id is missing: name a recipe or an environment, or set env.id")
        plain = {key: value for key, value in tree.items() if key not in (*CHOICES, "version")}
        if keys := info_keys_of(str(tree["env"]["id"])):
            plain = lay_over({"metrics": {"info_keys": list(keys)}}, plain)
        self._check_schedules(plain)
        with naming(algo=self.block, formation=self.formation_block):
            values = self._instances(plain)
            config = RunConfig(
                recipe=str(tree.get("recipe") or ""),
                algo=self.algo,
                formation=self.formation,
                algo_config=values.pop(self.block),
                formation_config=values.pop(self.formation_block),
                **values,
            )
            return stretched(config) if config.stretch_schedules else config

    def _instances(self, tree: Tree) -> dict[str, Any]:
        parser = self._parser
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                parsed = parser.parse_object(tree)
                instances = _instantiate(parser)(parsed)
        except (argparse.ArgumentError, TypeError, KeyError, ValueError) as error:
            raise UserError(self._explain(str(error), tree)) from error
        return dict(vars(instances))

    def _check_schedules(self, tree: Tree) -> None:
        """Schedules first: jsonargparse would only say that they are no numbers."""
        for path, kind in self.kinds.items():
            value = lookup(tree, path)
            if LinearSchedule not in typing.get_args(kind) or not isinstance(value, Mapping):
                continue
            known = [field.name for field in fields(LinearSchedule)]
            for name in value:
                if name not in known:
                    raise _unknown("", f"{path}.{name}", [f"{path}.{k}" for k in known])
            needed = [f.name for f in fields(LinearSchedule) if f.default is MISSING]
            missing = [name for name in needed if name not in value]
            if missing:
                raise UserError(f"{path}: a schedule needs {', '.join(needed)}; add {missing[0]}")
            try:
                LinearSchedule(**value)
            except UserError as error:
                raise UserError(f"{path}: {error}") from error
            except (TypeError, ValueError) as error:
                raise UserError(f"{path}: a schedule is made of numbers, got {value!r}") from error

    def _explain(self, message: str, tree: Tree) -> str:
        """What jsonargparse complains about, in one line: which key, what it takes, what it got."""
        found = re.search(r'[Kk]ey "([\w.]+)"', message)
        path = found.group(1) if found else ""
        while path and path not in self.kinds:
            path = path.rpartition(".")[0]
        if not path:
            return " ".join(message.split())
        kind, value = self.kinds[path], lookup(tree, path)
        hint = near_names(value, _literals(kind)) if isinstance(value, str) else ""
        return f"{self._label(path)}: must be {describe(kind)}, got {value!r}{hint}"

    def _label(self, path: str) -> str:
        """A setting as people know it: what has no section is known by its flag."""
        short = next((name for name, target in self.short_flags.items() if target == path), path)
        return path if "." in path else as_flag(short)


def drop_other_blocks(tree: Tree, algo: str, formation: str) -> Tree:
    """``tree`` without the blocks of algorithms and formations that were not chosen."""
    chosen = {block_name(algo), formation_block(formation)}
    others = {*algorithm_names(), *formation_names()} - chosen
    return {key: value for key, value in tree.items() if key not in others}


def as_flag(name: str) -> str:
    """A setting or short flag as it is typed."""
    return f"--{name}" if "." in name else f"--{name.replace('_', '-')}"


def describe(kind: Any) -> str:
    """A type in words."""
    if kind in _WORDS:
        return _WORDS[kind]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is tuple and args and args[-1] is not Ellipsis:
        return f"a list of {len(args)}, each {describe(args[0])}"
    if origin in (list, tuple):
        return f"a list, each {describe(args[0])}"
    return "a mapping"


_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
    LinearSchedule: "a schedule {start, end, until_steps}",
}


def _check_free(flag: str, name: str, block: str, taken: set[str]) -> None:
    if block in taken:
        raise UserError(
            f"{flag}: {name} would name its settings '{block}', which is taken; "
            "give the class another name"
        )


def _unknown(where: str, path: str, known: list[str]) -> UserError:
    if path in _GONE:
        return UserError(f"{where}{path}: {_GONE[path]}")
    hint = near_names(path, known) or "; see `rookery train RECIPE --print_config`"
    return UserError(f"{where}{path}: unknown setting{hint}")


def _instantiate(parser: ArgumentParser) -> Callable[[Any], Any]:
    """The method of this name in newer and in older versions of jsonargparse."""
    method: Callable[[Any], Any] = (
        getattr(parser, "instantiate", None) or parser.instantiate_classes
    )
    return method


def lookup(tree: Mapping[str, Any], path: str) -> Any:
    """The value at ``path``, None where there is none."""
    value: Any = tree
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _options(kind: Any) -> tuple[Any, ...]:
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if union else (kind,)


def _is_optional(kind: Any) -> bool:
    return type(None) in _options(kind)


def _literals(kind: Any) -> list[str]:
    return [
        str(value)
        for option in _options(kind)
        if typing.get_origin(option) is Literal
        for value in typing.get_args(option)
    ]


def _is_text(kind: Any) -> bool:
    return any(option is str or typing.get_origin(option) is Literal for option in _options(kind))


def _is_list(kind: Any) -> bool:
    return any(typing.get_origin(option) in (list, tuple) for option in _options(kind))


def _elements(kind: Any) -> set[Any]:
    """What the elements of a list may be."""
    options = [option for option in _options(kind) if typing.get_origin(option) in (list, tuple)]
    return {element for option in options for element in typing.get_args(option)}


def _may_have(kind: Any, entry: str) -> bool:
    """Whether a value of this type may be a mapping with ``entry`` in it."""
    for option in _options(kind):
        if typing.get_origin(option) is dict:
            return True
        if is_dataclass(option) and entry in {field.name for field in fields(option)}:
            return True
    return False
