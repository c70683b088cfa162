"""A bundle: a trained policy in one safetensors file that can be played anywhere.

It holds the weights and the observation statistics, and as metadata all that is needed to play
and judge the policy: its network, what it sees and does, its environment. How it was trained is
told, but never needed: a bundle outlives the settings of the algorithm that made it. ::

    write_bundle(path, info, policy.state_dict())
    bundle = read_bundle(path)                 # refused if a single bit differs
    bundle.policy(), bundle.env(), bundle.eval()

The checksum is the SHA-256 of the whole file with the checksum's own digits written as zeros.
Nothing in a bundle can run code when it is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rookery.core.errors import UserError
from rookery.runs.atomic import write_atomic, writing
from rookery.runs.tensorfile import (
    METADATA,
    DamagedError,
    SavedArrays,
    json_bytes,
    read_safetensors,
    safetensors_chunks,
)

if TYPE_CHECKING:  # torch takes a second to import; listing bundles must not wait for it
    from rookery.core.signature import Signature
    from rookery.envs.make import EnvConfig
    from rookery.nets.policy import Policy
    from rookery.roles.evaluator import EvalConfig

Config = TypeVar("Config")

SUFFIX = ".safetensors"
FORMAT, VERSION = "rookery-bundle", 1
_INFO, _SUM = "rookery", "sha256"
"""Names in the metadata of the file."""
_NO_SUM = "0" * 64


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a bundle's file holds."""

    path: Path
    info: dict[str, Any]
    """See docs/zoo.md."""
    arrays: SavedArrays

    def policy(self) -> Policy:
        """The policy with its weights."""
        from rookery.nets.networks import network_class
        from rookery.nets.policy import PolicyConfig
        from rookery.roles.learner import load_weights
        from rookery.runs.checkpoint_files import State

        network = network_class(self.info["network"])
        if network is None:
            raise self._too_new(f"a network of the kind '{self.info['network']}'")
        settings = self.info.get("network_settings", {})
        policy = network(self._config(PolicyConfig, "policy"), self.signature(), **settings)
        try:
            load_weights(policy, State(self.arrays))
        except UserError as error:
            raise UserError(f"bundle {self.path}: {error}") from error
        policy.eval()
        return policy

    def signature(self) -> Signature:
        """What the agent sees and does."""
        from rookery.core.signature import Signature

        return Signature.from_json(self.info["signature"])

    def env(self) -> EnvConfig:
        """The environment it was trained in."""
        from rookery.envs.make import EnvConfig

        return self._config(EnvConfig, "env")

    def eval(self) -> EvalConfig:
        """How it is judged."""
        from rookery.roles.evaluator import EvalConfig

        return self._config(EvalConfig, "eval")

    def _config(self, cls: type[Config], section: str) -> Config:
        return self._built(cls, section, self.info[section])

    def _built(self, cls: type[Config], section: str, data: Mapping[str, Any]) -> Config:
        """Settings that later versions added take their defaults; none may be left unheeded."""
        known = {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type]
        given: dict[str, Any] = dict(data)
        for name, value in data.items():
            if name not in known:
                raise self._too_new(f"the setting {section}.{name}")
            if isinstance(known[name], tuple):  # JSON has only lists
                given[name] = tuple(value)
            elif is_dataclass(known[name]):
                given[name] = self._built(type(known[name]), f"{section}.{name}", value)
        return cls(**given)

    def _too_new(self, what: str) -> UserError:
        theirs = self.info["versions"]["rookery"]
        return UserError(
            f"bundle {self.path} needs {what}, which this Rookery does not know; "
            f"it was made with Rookery {theirs}: install that"
        )


def write_bundle(path: Path, info: dict[str, Any], arrays: SavedArrays) -> None:
    """Write a bundle as a whole or not at all."""
    data = _sealed({"format": FORMAT, "version": VERSION} | info, arrays)
    with writing(path, "--out"):
        write_atomic(path, data)


def _sealed(info: dict[str, Any], arrays: SavedArrays) -> bytes:
    # The sum first, so that its zeros are the first to be found.
    metadata = {_SUM: _NO_SUM, _INFO: json_bytes("bundle", info).decode()}
    data = b"".join(safetensors_chunks("bundle", arrays, metadata))
    return data.replace(_NO_SUM.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def is_bundle(path: Path) -> bool:
    """Whether a file says that it is a bundle; it may still be damaged."""
    try:
        return _INFO in _metadata(path.read_bytes())
    except (OSError, ValueError):
        return False


def read_info(path: Path) -> dict[str, Any]:
    """What a bundle says about itself; the whole file is verified."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the path") from error
    try:
        metadata = _metadata(data)
    except ValueError as error:
        raise DamagedError(f"{path} is damaged or not a bundle: {error}") from error
    if _INFO not in metadata or _SUM not in metadata:
        raise UserError(
            f"{path} is not a bundle: it holds arrays only; "
            "give a run, a checkpoint, or what `rookery zoo add` writes"
        )
    seal = metadata[_SUM].encode()
    if hashlib.sha256(data.replace(seal, _NO_SUM.encode(), 1)).hexdigest().encode() != seal:
        raise DamagedError(
            f"bundle {path} is damaged (checksum differs); get it anew from where it came"
        )
    info: dict[str, Any] = json.loads(metadata[_INFO])
    if (info["format"], info["version"]) != (FORMAT, VERSION):
        raise UserError(
            f"bundle {path} is of format version {info['version']}, this Rookery reads version "
            f"{VERSION}; it was made with Rookery {info['versions']['rookery']}: install that"
        )
    return info | {"sha256": metadata[_SUM], "bytes": len(data)}


def read_bundle(path: Path) -> Bundle:
    """The bundle in ``path``, verified."""
    return Bundle(path, read_info(path), read_safetensors(path))


def _metadata(data: bytes) -> dict[str, str]:
    """The writer's text in the header of a safetensors file; ValueError if it is none."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= len(data) - 8:
        raise ValueError("it has no safetensors header")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        raise ValueError("its header is not valid JSON") from None
    metadata = header.get(METADATA, {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its header is not that of a safetensors file")
    return metadata
