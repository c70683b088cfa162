"""An environment that was already made, as what to train in: its spec makes more of its kind."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from rookery.core.errors import UserError
from rookery.envs.make import register_callable


def env_settings(env: Any) -> dict[str, Any]:
    """The section ``env`` that stands for an instance of an environment."""
    spec = _spec_of(env)
    kwargs = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    known = gym.registry.get(spec.id)
    if known is None or spec.additional_wrappers or not _is_plain(kwargs):
        return {"id": register_callable(_Maker(spec))}
    settings: dict[str, Any] = {"id": spec.id, "kwargs": kwargs}
    if spec.max_episode_steps not in (None, known.max_episode_steps):
        settings["max_episode_steps"] = spec.max_episode_steps
    return settings


def _spec_of(env: Any) -> EnvSpec:
    name = type(getattr(env, "unwrapped", env)).__name__
    remedy = f"train its class or a function that makes one: rookery.train({name})"
    if isinstance(env, gym.vector.VectorEnv):
        raise UserError(
            f"{name} is a vector of environments; give one of them, or its id, and num_envs as envs"
        )
    spec: EnvSpec | None = env.spec
    if spec is None:
        raise UserError(
            f"{name} was not made by gymnasium.make, so no second one can be made for it; {remedy}"
        )
    for wrapper in spec.additional_wrappers:
        if wrapper.kwargs is None:
            raise UserError(
                f"wrapper {wrapper.name} of {name} does not say how it was made (it is no "
                f"gymnasium.utils.RecordConstructorArgs); {remedy}"
            )
    return spec


def _is_plain(kwargs: dict[str, Any]) -> bool:
    """Whether ``kwargs`` can be written to a file."""
    try:
        return bool(json.loads(json.dumps(kwargs)) == kwargs)
    except (TypeError, ValueError):
        return False


class _Maker:
    """Makes environments of one spec."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec, self.__name__ = spec, spec.id.rpartition("/")[2]

    def __call__(self, **kwargs: Any) -> Any:
        return gym.make(self.spec, **kwargs)
