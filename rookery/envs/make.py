"""From a configuration to environments: one of them, or a vector of them.

::

    config = EnvConfig(id="CartPole-v1", num_envs=8)
    env = make_env(config)                                   # one gymnasium environment
    envs = make_vector(config, run_seed=1, first_env=16)     # environments 16 .. 23 of the run
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Literal

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from rookery.core.errors import UserError, near_names
from rookery.envs import atari, extras, pooled, registration, substitutes
from rookery.envs.atari import AtariConfig
from rookery.envs.atari_vector import AtariVector
from rookery.envs.background import BackgroundVector
from rookery.envs.faults import one_line
from rookery.envs.native import NativeVector
from rookery.envs.process import ProcessVector
from rookery.envs.serial import SerialVector
from rookery.envs.stacked import StackedVector
from rookery.envs.transition import VectorEnv

_LOG = logging.getLogger(__name__)

AnyEnv = gym.Env[Any, Any]
AnyVectorEnv = gym.vector.VectorEnv[Any, Any, Any]
Factory = Callable[..., Any]

Backend = Literal["auto", "native", "envpool", "serial", "process"]

WAVE = 1024
"""Episodes that a vector class plays at once when each has its own seed."""

_CALLABLE = "callable:"
_CALLABLES: dict[str, Factory] = {}


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Which environment, how it is wrapped, and how many step together."""

    id: str
    """A gymnasium id ('CartPole-v1', 'module:Env-v0') or a factory ('package.module:factory')."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor or factory."""
    wrappers: list[str | dict[str, Any]] = field(default_factory=list)
    """Applied in order, each 'module:Class' or {wrapper: 'module:Class', kwargs: {...}}."""
    obs_keys: tuple[str, ...] | None = None
    """Entries of a Dict observation that the agent sees; null: all."""
    max_episode_steps: int | None = None
    """Truncate episodes after this many steps; null keeps the environment's registered limit."""
    frame_stack: int = 1
    """Observations stacked on a new first axis; 1 stacks none."""
    num_envs: int = 8
    """Environments in the whole run, divided among those who act."""
    halves: int = 1
    """2: an actor steps its environments in two halves, one of which gets its actions while the
    other steps, where the backend can step in the background. Not for formation replay."""
    backend: Backend = "auto"
    """native (a vector class of the environment's own), envpool (the same tasks in C++, for
    training only), serial (a loop in this process), process (worker processes), or auto: native
    where it gives the same environment, envpool where it is installed and faster, else serial."""
    num_workers: int = 2
    """Worker processes of the process backend."""
    step_timeout_secs: float = 60.0
    """A step or reset of all environments of one process may take this long before it is a hang."""
    action_mask_key: str | None = None
    """Key in info under which the environment gives its mask of allowed actions."""
    check: bool = True
    """Verify that observations and rewards are finite, choices in range and action masks not
    empty. Shapes and dtypes are always verified."""
    on_env_error: Literal["stop", "restart"] = "stop"
    """stop the run when an environment fails, or restart that environment with a new episode
    (at most 5 times in 5 minutes). Native vectors and killed worker processes stop it all the same;
    under the local engine the whole actor is then replaced, as often as supervise allows."""
    atari: AtariConfig = AtariConfig()
    """How Atari games are prepared."""

    def __post_init__(self) -> None:
        if not self.id:
            raise UserError("env.id is empty; give a gymnasium id such as CartPole-v1")
        for name in ("frame_stack", "num_envs", "num_workers"):
            _at_least_one(name, getattr(self, name))
        if self.halves not in (1, 2) or self.num_envs % self.halves:
            raise UserError(
                f"env.halves is {self.halves} of {self.num_envs} environments; it must be 1, or 2 "
                "with an even number of them"
            )
        if self.max_episode_steps is not None:
            _at_least_one("max_episode_steps", self.max_episode_steps)
        if not self.step_timeout_secs > 0:
            raise UserError(
                f"env.step_timeout_secs is {self.step_timeout_secs}; it must be more than 0"
            )
        if self.action_mask_key == "":
            raise UserError("env.action_mask_key is empty; give the key in info, or null for none")
        if self.obs_keys is not None and not self.obs_keys:
            raise UserError("env.obs_keys is empty; name what the agent sees, or null for all")
        for wrapper in self.wrappers:
            parse_wrapper(wrapper)


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"env.{name} is {value}; it must be at least 1")


def parse_wrapper(wrapper: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The 'module:Class' and arguments of one entry of ``EnvConfig.wrappers``."""
    entry = {"wrapper": wrapper} if isinstance(wrapper, str) else dict(wrapper)
    name, kwargs = entry.pop("wrapper", None), entry.pop("kwargs", None) or {}
    if entry or not isinstance(name, str) or ":" not in name or not isinstance(kwargs, Mapping):
        raise UserError(
            f"env.wrappers has the entry {wrapper!r}; write 'module:Class' or "
            "{'wrapper': 'module:Class', 'kwargs': {...}}"
        )
    return name, dict(kwargs)


def register_callable(factory: Factory) -> str:
    """An id under which this process, and no other, finds ``factory``."""
    name = getattr(factory, "__name__", type(factory).__name__)
    env_id, count = f"{_CALLABLE}{name}", 1
    while _CALLABLES.get(env_id, factory) is not factory:
        count += 1
        env_id = f"{_CALLABLE}{name}#{count}"
    _CALLABLES[env_id] = factory
    return env_id


def is_callable_id(env_id: str) -> bool:
    """Whether only the process that registered this environment has it."""
    return env_id.startswith(_CALLABLE)


def make_env(config: EnvConfig, render_mode: str | None = None) -> AnyEnv:
    """One environment with its time limit, wrappers and frame stack."""
    game = prepared_game(config)
    if game is not None:
        return _make_game(config, game, render_mode)
    kwargs = dict(config.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    factory = find_factory(config.id)
    if factory is None:
        env = _make_registered(config, kwargs)
    else:
        env = _make_from_factory(config, factory, kwargs)
    for entry in config.wrappers:
        env = _wrap(env, *parse_wrapper(entry))
    if config.obs_keys is not None:
        env = _with_keys(env, config.id, config.obs_keys)
    if config.frame_stack > 1:
        _require_unstacked(config, env)
        env = gym.wrappers.FrameStackObservation(env, config.frame_stack)
    return env


def _require_unstacked(config: EnvConfig, env: AnyEnv) -> None:
    """Refuse to stack what the environment stacks by itself."""
    if getattr(env.unwrapped, "stacks_frames", False):
        raise UserError(
            f"env.frame_stack is {config.frame_stack}, but {config.id} stacks frames by itself "
            "(env.kwargs.stack); leave env.frame_stack at 1"
        )


def prepared_game(config: EnvConfig) -> atari.Game | None:
    """The Atari game that ``env.atari`` prepares, None where the environment stays as it is."""
    known = find_factory(config.id) is None
    game = atari.game_of(find_spec(config.id)) if known else None
    if game is not None and config.atari.preprocess and not config.wrappers:
        _require_plain(config, game)
        return game
    if unheeded := config.atari.changed():
        usual = getattr(atari.AtariConfig(), unheeded[0])
        raise UserError(
            f"env.atari.{unheeded[0]} is set, but {_why_not(config, game)}; "
            f"set it to {'null' if usual is None else str(usual).lower()} or leave it out"
        )
    return None


def has_time_limit(config: EnvConfig) -> bool:
    """Whether episodes are known to be truncated, however they are played."""
    if config.max_episode_steps is not None or prepared_game(config) is not None:
        return True
    return find_factory(config.id) is None and find_spec(config.id).max_episode_steps is not None


def _why_not(config: EnvConfig, game: atari.Game | None) -> str:
    """Why ``env.atari`` would not be heeded."""
    if game is None:
        return f"{config.id} is not one of the ids it prepares (ALE/*-v5, *NoFrameskip-v4)"
    return "env.wrappers is not empty" if config.wrappers else "env.atari.preprocess is false"


def _require_plain(config: EnvConfig, game: atari.Game) -> None:
    """Refuse the settings that the preprocessing of a game does not go together with."""
    atari.require_kwargs(game, config.kwargs)
    if config.frame_stack > 1:
        raise UserError(
            f"env.frame_stack is {config.frame_stack}, but {game.id} is stacked by env.atari.stack "
            f"(here {config.atari.stack}); leave env.frame_stack at 1"
        )
    if config.obs_keys is not None:
        raise UserError(f"env.obs_keys is set, but {game.id} has one observation; unset it")
    if config.action_mask_key is not None:
        raise UserError(f"env.action_mask_key is set, but {game.id} has no action masks; unset it")


def _make_game(config: EnvConfig, game: atari.Game, render_mode: str | None) -> AnyEnv:
    limit = config.atari.max_steps(config.max_episode_steps)

    def build() -> AnyEnv:
        return atari.make_game(game, config.atari, max_steps=limit, render_mode=render_mode)

    env: AnyEnv = _build(config.id, build)
    return env


def _make_games(config: EnvConfig, num_envs: int, *, life_loss: bool) -> AtariVector | None:
    """Games in C++ threads; None if the environment is no game or single ones are asked for."""
    game = prepared_game(config)
    if game is None:
        return None
    if config.backend not in ("auto", "native"):
        if life_loss:
            raise UserError(
                f"env.atari.life_loss needs env.backend=auto or native, not {config.backend}"
            )
        return None
    limit = config.atari.max_steps(config.max_episode_steps)

    def build() -> AtariVector:
        return AtariVector(game, num_envs, config.atari, max_steps=limit, life_loss=life_loss)

    games: AtariVector = _build(config.id, build)
    return games


def find_factory(env_id: str) -> Factory | None:
    """The factory that ``env_id`` names, or None if it is a gymnasium id."""
    if env_id.startswith(_CALLABLE):
        if env_id not in _CALLABLES:
            raise UserError(
                f"the environment '{env_id}' was given as a Python callable, which only the "
                "process that registered it has; put it in a module and give env.id='module:name'"
            )
        return _CALLABLES[env_id]
    module_name, colon, attribute = env_id.rpartition(":")
    if not colon:
        return None
    found = getattr(_import(module_name, f"env.id={env_id}"), attribute, None)
    if found is not None and not callable(found):
        raise UserError(f"env.id={env_id} names a {type(found).__name__}; it must be callable")
    return found


def _import(module: str, wanted_by: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{wanted_by}: importing '{module}' failed ({one_line(error)}); install the package "
            "that has it, or run from the directory where it lies"
        ) from error


def find_spec(env_id: str) -> EnvSpec:
    """The registered specification of a gymnasium id; a UserError with near names if unknown."""
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module, f"env.id={env_id}")
    if name.startswith("rookery/"):
        registration.register()
    extras.register(name)
    if atari.may_be_game(name) and name not in gym.registry:
        gym.register_envs(_import("ale_py", f"env.id={env_id}"))
    try:
        return gym.envs.registration._find_spec(name)
    except gym.error.Error as error:
        raise UserError(_unknown(env_id, name, module)) from error


def _unknown(env_id: str, name: str, module: str) -> str:
    hint = registration.which_exist(name) or near_names(name, gym.registry)
    if module:
        return (
            f"env.id={env_id}: the module '{module}' has no '{name}' and registers no environment "
            f"of that name{hint or '; check the spelling'}"
        )
    remedy = hint or "; write 'module:name' if a module of yours registers or makes it"
    return f"env.id={env_id}: gymnasium knows no such environment{remedy}"


def _make_registered(config: EnvConfig, kwargs: dict[str, Any]) -> AnyEnv:
    spec = find_spec(config.id)
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps

    env: AnyEnv = _build(config.id, lambda: gym.make(spec, disable_env_checker=True, **kwargs))
    return extras.wrapped(spec.id, env)


def _make_from_factory(config: EnvConfig, factory: Factory, kwargs: dict[str, Any]) -> AnyEnv:
    env = _build(config.id, lambda: factory(**kwargs))
    if isinstance(env, gym.vector.VectorEnv):
        raise UserError(
            f"env.id={config.id} gives a vector environment, and a single one is needed here; let "
            "the factory return a gymnasium.Env when it is called without num_envs"
        )
    if not isinstance(env, gym.Env):
        raise UserError(
            f"env.id={config.id} returned a {type(env).__name__}; it must return a gymnasium.Env"
        )
    limit = config.max_episode_steps
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


def _build(env_id: str, build: Callable[[], Any]) -> Any:
    """Call a constructor of the user's, and say in one line what it lacks if it fails."""
    try:
        return build()
    except UserError:
        raise
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise UserError(
            f"env.id={env_id} needs a package that is not installed ({one_line(error)}); "
            "install it and run again"
        ) from error
    except TypeError as error:
        raise UserError(
            f"env.id={env_id} could not be built ({one_line(error)}); check env.kwargs"
        ) from error
    except Exception as error:
        raise UserError(
            f"env.id={env_id} could not be built ({one_line(error)}); "
            "check env.kwargs and the environment's constructor"
        ) from error


def _wrap(env: AnyEnv, name: str, kwargs: dict[str, Any]) -> AnyEnv:
    module_name, _, attribute = name.rpartition(":")
    module = _import(module_name, f"env.wrappers '{name}'")
    wrapper = getattr(module, attribute, None)
    if wrapper is None:
        hint = near_names(attribute, vars(module)) or "; check the spelling"
        raise UserError(f"env.wrappers '{name}': '{module_name}' has no '{attribute}'{hint}")
    try:
        wrapped = wrapper(env, **kwargs)
    except Exception as error:
        raise UserError(
            f"env.wrappers '{name}' could not be applied ({one_line(error)}); check its kwargs"
        ) from error
    if not isinstance(wrapped, gym.Env):
        raise UserError(
            f"env.wrappers '{name}' returned a {type(wrapped).__name__}; it must return a "
            "gymnasium.Env"
        )
    return wrapped


def _with_keys(env: AnyEnv, env_id: str, keys: tuple[str, ...]) -> AnyEnv:
    """``env`` that shows only the entries ``keys`` of its Dict observations."""
    space = env.observation_space
    if not isinstance(space, gym.spaces.Dict):
        raise UserError(
            f"env.obs_keys is set, but {env_id} observes a {type(space).__name__}, which has no "
            "entries; unset it"
        )
    for key in keys:
        if key not in space.spaces:
            hint = near_names(key, space.spaces)
            raise UserError(
                f"env.obs_keys: {env_id} has no entry '{key}'{hint} ({', '.join(space.spaces)})"
            )
    return gym.wrappers.FilterObservation(env, keys)


def make_vector(
    config: EnvConfig,
    *,
    run_seed: int,
    first_env: int = 0,
    num_envs: int | None = None,
    info_keys: tuple[str, ...] = (),
    role: str = "env",
) -> VectorEnv:
    """Environments ``first_env ..`` of a run, stepped together by the backend of ``config``.

    ``role`` names their random streams, so that evaluation never shares one with training.
    """
    count = config.num_envs if num_envs is None else num_envs
    _at_least_one("num_envs", count)
    games = _make_games(config, count, life_loss=config.atari.life_loss)
    if games is not None:
        return BackgroundVector(
            games,
            config,
            run_seed=run_seed,
            first_env=first_env,
            info_keys=info_keys,
            role=role,
        )
    if config.backend == "process":
        if config.id.startswith(_CALLABLE):
            raise UserError(
                f"env.backend=process cannot carry the Python callable '{config.id}' to its "
                "workers; put it in a module and give env.id='module:name'"
            )
        return ProcessVector(
            config,
            run_seed=run_seed,
            first_env=first_env,
            num_envs=count,
            info_keys=info_keys,
            role=role,
        )
    if config.backend in ("auto", "native", "envpool"):
        native = _make_pooled(config, count) or _make_native(config, count)
        if native is not None:
            return NativeVector(
                native,
                config,
                run_seed=run_seed,
                first_env=first_env,
                info_keys=info_keys,
                role=role,
            )
    return SerialVector(
        lambda: make_env(config),
        config,
        run_seed=run_seed,
        first_env=first_env,
        num_envs=count,
        info_keys=info_keys,
        role=role,
    )


def make_seeded(
    config: EnvConfig,
    num_envs: int,
    num_episodes: int,
    seed_for: Callable[[int], int],
    info_keys: tuple[str, ...] = (),
) -> tuple[VectorEnv, bool]:
    """Environments whose every episode begins with the seed that ``seed_for(row)`` gives.

    Returns them and whether they play in waves: a vector class that seeds each of its environments
    (attribute ``seeds_each``) can do so only for all at once, so its rows begin together; one with
    ``seeds_rows`` can at any time. Atari games are whole here, whatever ``life_loss`` says.
    """
    count = min(num_envs, num_episodes)
    games = _make_games(config, count, life_loss=False)
    given: dict[str, Any] = {"run_seed": 0, "info_keys": info_keys, "seed_for": seed_for}
    if games is not None:
        return BackgroundVector(games, config, **given), False
    if config.backend in ("auto", "native"):
        native = _make_native(config, num_episodes if num_episodes <= WAVE else WAVE)
        if native is not None and getattr(native, "seeds_each", False):
            return NativeVector(native, config, **given), True
        if native is not None:
            native.close()
    return SerialVector(lambda: make_env(config), config, num_envs=count, **given), False


def _make_pooled(config: EnvConfig, num_envs: int) -> AnyVectorEnv | None:
    """envpool's environments; None when they were not asked for and would not be better."""
    if config.backend not in ("auto", "envpool"):
        return None
    reason = pooled.unfit(config)
    if config.backend == "auto" and (reason or not _better_pooled(config.id)):
        return None
    if reason:
        raise UserError(f"env.backend=envpool: {reason}; use env.backend=auto or serial")
    single = make_env(replace(config, frame_stack=1))
    try:
        vector: AnyVectorEnv = pooled.PooledVector(config.id, num_envs, single)
    except pooled.CannotPoolError as error:
        if config.backend == "envpool":
            raise UserError(f"env.backend=envpool: {error}") from error
        _LOG.warning("%s: stepping gymnasium's own: %s", config.id, error)
        return None
    finally:
        single.close()
    return vector if config.frame_stack == 1 else StackedVector(vector, config.frame_stack)


def _better_pooled(env_id: str) -> bool:
    """Whether envpool is there and faster, and the id is still gymnasium's own."""
    if env_id not in pooled.FASTER or not pooled.installed():
        return False
    return str(find_spec(env_id).entry_point).startswith("gymnasium.")


def _make_native(config: EnvConfig, num_envs: int) -> AnyVectorEnv | None:
    """The environment's own vector class; None when ``auto`` must do without."""
    strict = config.backend == "native"
    creator, limit, reason = _native_creator(config)
    if creator is None or reason:
        if strict:
            raise UserError(f"env.backend=native: {reason}; use env.backend=auto or serial")
        return None
    kwargs = dict(config.kwargs) | ({} if limit is None else {"max_episode_steps": limit})
    env = _build(config.id, lambda: creator(num_envs=num_envs, **kwargs))
    if not isinstance(env, gym.vector.VectorEnv):
        if strict:
            raise UserError(
                f"env.backend=native: {config.id} returned a {type(env).__name__} for "
                f"num_envs={num_envs}, not a gymnasium VectorEnv; use env.backend=serial"
            )
        return None
    if not strict and not _same_as_single(config, env):
        env.close()
        return None
    return env


def _native_creator(config: EnvConfig) -> tuple[Factory | None, int | None, str]:
    """What builds the native vector, its time limit, and why it cannot be used ('' if it can)."""
    creator, limit = find_factory(config.id), config.max_episode_steps
    if creator is None:
        spec = find_spec(config.id)
        if atari.game_of(spec) is not None:
            return None, None, f"the vector class of {config.id} always preprocesses (env.atari)"
        creator = _load_vector_entry(config, spec)
        if creator is None:
            return None, None, f"{config.id} has no vector class of its own"
        if spec.additional_wrappers:
            return creator, None, f"{config.id} is registered with wrappers"
        if limit is None:
            limit = config.kwargs.get("max_episode_steps", spec.max_episode_steps)
        creator = _with_defaults(creator, spec)
    elif not _accepts(creator, "num_envs"):
        return None, None, f"the factory {config.id} has no num_envs argument"
    return creator, limit, _not_honoured(config, creator, limit)


def _load_vector_entry(config: EnvConfig, spec: EnvSpec) -> Factory | None:
    entry: Any = spec.vector_entry_point or substitutes.vector_class(spec, config)
    if isinstance(entry, str):
        entry = _build(config.id, lambda: gym.envs.registration.load_env_creator(entry))
    creator: Factory | None = entry
    return creator


def _with_defaults(creator: Factory, spec: EnvSpec) -> Factory:
    """``creator`` with the keyword arguments of the registration as defaults."""
    return functools.partial(creator, **spec.kwargs) if spec.kwargs else creator


def _not_honoured(config: EnvConfig, creator: Factory, limit: int | None) -> str:
    """The setting that a native vector cannot carry out, '' if there is none."""
    if config.wrappers:
        return "a native vector takes no env.wrappers"
    if config.obs_keys is not None:
        return "a native vector shows all entries (env.obs_keys)"
    if config.frame_stack > 1:
        return f"a native vector cannot stack frames (env.frame_stack={config.frame_stack})"
    if config.action_mask_key is not None and config.backend == "auto":
        return "whether a native vector gives action masks is not known before it runs"
    if limit is not None and not _accepts(creator, "max_episode_steps"):
        return f"its vector class takes no max_episode_steps (here {limit})"
    return ""


def _accepts(creator: Factory, name: str) -> bool:
    """Whether ``creator`` names a parameter ``name``; ``**kwargs`` might swallow it unread."""
    try:
        return name in inspect.signature(creator).parameters
    except (TypeError, ValueError):
        return False


def _same_as_single(config: EnvConfig, vector: AnyVectorEnv) -> bool:
    """Whether the vector class has the spaces of the single environment, so is the same task."""
    if not _has_single(config):
        return True
    single = make_env(config)
    same = (
        single.observation_space == vector.single_observation_space
        and single.action_space == vector.single_action_space
    )
    single.close()
    if not same:
        _LOG.info("%s: its vector class has other spaces; stepping single ones", config.id)
    return bool(same)


def _has_single(config: EnvConfig) -> bool:
    """Whether the id also makes single environments."""
    factory = find_factory(config.id)
    if factory is None:
        return find_spec(config.id).entry_point is not None
    parameter = inspect.signature(factory).parameters["num_envs"]
    return parameter.default is not inspect.Parameter.empty and parameter.default is None
