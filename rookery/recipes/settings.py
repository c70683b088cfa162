"""From a recipe, files, flags and Python arguments to a :class:`~rookery.runs.config.RunConfig`.

Precedence: recipe < ``--config`` < flags (or Python arguments). The recipe is resolved first; its
algorithm and formation decide which settings there are (:mod:`rookery.recipes.schema`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium as gym

from rookery.algos.algorithm import usual_formation
from rookery.core.errors import UserError, near_names
from rookery.envs.instances import env_settings
from rookery.envs.make import EnvConfig, register_callable
from rookery.formations.settings import formation_block
from rookery.recipes.catalog import Tree, lay_over, load_config_file, load_recipe, recipe_names
from rookery.recipes.catalog import resolve as resolve_recipe
from rookery.recipes.schema import CHOICES, Schema, as_flag, drop_other_blocks
from rookery.recipes.upgrade import upgraded
from rookery.runs.config import VERSION, RunConfig
from rookery.runs.ray_settings import range_of

Trainable = str | gym.Env[Any, Any] | Callable[..., Any]
"""A recipe, an environment's id, ``module:factory``, an environment, its class, or a factory."""


def settings_from_flags(what: str | None, flags: Mapping[str, str]) -> RunConfig:
    """The configuration of ``rookery train WHAT --flag VALUE ...``; flags without dashes."""
    given = dict(flags)
    file = given.pop("config", None)
    if what is None and file is None:
        raise UserError(
            "train what? give a recipe (`rookery recipes`), an environment id, module:factory, "
            "or --config FILE"
        )
    over = _file_tree(file)
    given, ranged = _with_range(given, _as_flag)
    tree, schema = _base(_named_tree(what), over, given, f"--config {file}: ")
    return _come_and_go(schema.build(_with_flags(schema, tree, given)), ranged)


def tree_of_flags(config: RunConfig, flags: Mapping[str, str]) -> Tree:
    """``flags``, which led to ``config``, as they are written in a file for ``--config``.

    One of them may be ``config``: what that file says is part of it.
    """
    schema, given = Schema(config.algo, config.formation), _with_range(flags, _as_flag)[0]
    over = resolve_recipe(_file_tree(given.pop("config", None)), schema.formation_block)
    over = schema.with_present_names(drop_other_blocks(over, config.algo, config.formation))
    chosen = {name: getattr(config, name) for name in CHOICES if name in given or name in over}
    return {"version": VERSION} | chosen | _with_flags(schema, over, given) | chosen


def _file_tree(file: str | None) -> Tree:
    """What the file of ``--config`` says, if one was given."""
    return upgraded(load_config_file(Path(file)), f"--config {file}") if file is not None else {}


def settings_from_python(what: Trainable, given: Mapping[str, Any]) -> RunConfig:
    """The configuration of ``rookery.train(what, **given)``: short flags or whole sections."""
    given, ranged = _with_range(given, _as_it_is)
    tree, schema = _base(_named_tree(what), {}, given, "")
    return _come_and_go(schema.build(_with_arguments(schema, tree, given)), ranged)


def revised_by_flags(config: RunConfig, flags: Mapping[str, str]) -> RunConfig:
    """``config`` with some settings changed by flags."""
    schema = Schema(config.algo, config.formation)
    flags, ranged = _with_range(flags, _as_flag, anew=True)
    return _come_and_go(schema.build(_with_flags(schema, config.to_tree(), flags)), ranged)


def revised(config: RunConfig, given: Mapping[str, Any]) -> RunConfig:
    """``config`` with some settings changed by Python arguments."""
    for name in CHOICES:
        if name in given and given[name] != getattr(config, name):
            raise UserError(
                f"{name}: a run keeps its own, {getattr(config, name)}; train with {given[name]} "
                "anew, and init_from=RUN to begin with its weights"
            )
    schema = Schema(config.algo, config.formation)
    given, ranged = _with_range(given, _as_it_is, anew=True)
    return _come_and_go(schema.build(_with_arguments(schema, config.to_tree(), given)), ranged)


def _with_range(
    given: Mapping[str, Any], write: Callable[[int | None], Any], *, anew: bool = False
) -> tuple[dict[str, Any], str]:
    """``given`` with ``--actors MIN:MAX`` as the two settings that it stands for, as ``write``
    writes them, and what was given; ``anew``: one number takes the place of an earlier range."""
    for name in ("actors", "workers"):
        found = range_of(f"--{name}", str(given.get(name, "")))
        if found is not None:
            least, most = map(write, found)
            return {**given, name: most, "ray.min_actors": least}, f"--{name} {given[name]}"
        if anew and name in given and "ray.min_actors" not in given:
            return {**given, "ray.min_actors": write(None)}, ""
    return dict(given), ""


def _as_flag(value: int | None) -> str:
    return "none" if value is None else str(value)


def _as_it_is(value: int | None) -> int | None:
    return value


def _come_and_go(config: RunConfig, ranged: str) -> RunConfig:
    """``config``, if its engine has actors that come and go, or no ``ranged`` number was given."""
    if ranged and config.engine != "ray":
        raise UserError(
            f"{ranged}: actors come and go under --engine ray; give one number under "
            f"{config.engine}"
        )
    return config


def env_of_flags(flags: Mapping[str, str]) -> Tree:
    """The section ``env`` that flags of it, such as ``env.id``, stand for."""
    section: Tree = _with_flags(Schema("ppo", "sync"), {}, flags).get("env", {})
    return section


def revised_env(env: EnvConfig, given: Tree) -> EnvConfig:
    """``env`` with some of its settings changed."""
    return settings_from_python(env.id, {"env": lay_over(asdict(env), given)}).env


def config_from_tree(tree: Tree, where: str = "config.yaml") -> RunConfig:
    """A configuration from nested plain data, such as a run's own config.yaml; ``where`` it is."""
    tree, schema = _base({}, upgraded(tree, where), {}, f"{where}: ")
    return schema.build(tree)


def _named_tree(what: Trainable | None) -> Tree:
    """The settings that a recipe, an environment or a callable stands for."""
    if what is None:
        return {}
    if isinstance(what, gym.Env | gym.vector.VectorEnv):
        env = env_settings(what)
        return {"env": env, "name": env["id"].rpartition("/")[2].rpartition(":")[2]}
    if callable(what):
        name = getattr(what, "__name__", type(what).__name__)
        return {"env": {"id": register_callable(what)}, "name": name}
    tree = load_recipe(what) if _is_recipe(what) else {"env": {"id": what}}
    return tree | {"recipe": what}


def _is_recipe(what: str) -> bool:
    """A plain lower-case word is meant as a recipe; environments have a version or a colon."""
    if what in recipe_names():
        return True
    looks_like_one = ":" in what or "/" in what or "-v" in what or what[:1].isupper()
    if looks_like_one or what in gym.registry:
        return False
    raise UserError(
        f"unknown recipe '{what}'{near_names(what, recipe_names())} (see `rookery recipes`; "
        "an environment is given as Name-v0 or module:factory)"
    )


def _base(tree: Tree, over: Tree, chosen: Mapping[str, Any], where: str) -> tuple[Tree, Schema]:
    """Recipe, its block for the formation, and ``over``; and the settings that this allows."""
    sources = (chosen, over, tree)
    formation = next((str(s["formation"]) for s in sources if s.get("formation")), "")
    if not formation:
        algo = next((str(s["algo"]) for s in sources if s.get("algo")), "ppo")
        formation = usual_formation(algo)
    algo = str(chosen.get("algo") or _algo_of(tree, over, formation) or "ppo")
    schema, recipe = Schema(algo, formation), f"recipe {tree.get('recipe')}: "
    over = schema.with_present_names(resolve_recipe(over, schema.formation_block), where)
    tree = schema.with_present_names(resolve_recipe(tree, schema.formation_block), recipe)
    merged = lay_over(tree, over) | {"formation": formation}
    if "listen" in chosen and "engine" not in chosen:  # hosts join no other
        merged["engine"] = "local"
    schema.check_keys(drop_other_blocks(over, algo, formation), where)
    merged = drop_other_blocks(merged, algo, formation)
    schema.check_keys(merged, recipe)
    return merged, schema


def _algo_of(tree: Tree, over: Tree, formation: str) -> Any:
    """The algorithm that a recipe and what is laid over it name for ``formation``."""
    block = formation_block(formation)
    return lay_over(resolve_recipe(tree, block), resolve_recipe(over, block)).get("algo")


def _with_flags(schema: Schema, tree: Tree, flags: Mapping[str, str]) -> Tree:
    for flag, text in flags.items():
        path = _not_a_recipe(schema.path_of(flag))
        if path is None:
            raise UserError(f"unknown flag {as_flag(flag)}{schema.hint(flag, as_flag)}")
        if path in schema.blocks:
            tree = lay_over(tree, _put({}, path, schema.block_value(path, text)))
        elif path not in CHOICES:
            tree = _put(tree, path, schema.value(path, text))
    return tree


def _with_arguments(schema: Schema, tree: Tree, given: Mapping[str, Any]) -> Tree:
    for name, value in given.items():
        path = _not_a_recipe(schema.path_of(name))
        if name in schema.sections:
            section = schema.with_present_names({name: value})
            schema.check_keys(section)
            tree = lay_over(tree, section)
        elif path is None:
            raise UserError(f"unknown setting '{name}'{schema.hint(name)}")
        elif path not in CHOICES:
            tree = _put(tree, path, value)
    return tree


def _not_a_recipe(path: str | None) -> str | None:
    if path == "recipe":
        raise UserError("recipe: name it as what to train: `rookery train RECIPE`")
    return path


def _put(tree: Tree, path: str, value: Any) -> Tree:
    """``tree`` with one value changed."""
    name, _, rest = path.partition(".")
    if not rest:
        return tree | {name: value}
    below = tree.get(name)
    return tree | {name: _put(dict(below) if isinstance(below, Mapping) else {}, rest, value)}
