"""What a cluster is like, in a file, so that `rookery slurm` need not be told each time::

# ~/.config/rookery/slurm.yaml
account: my-project
partition: cpu
cpus: 12
setup: /home/me/setup.sh
sbatch: {mem: 20G}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from rookery.core.errors import UserError, near_names
from rookery.engines.slurm import Nodes

_NUMBERS = ("nodes", "cpus", "host_actors", "stop_ahead_secs")
_TRUTH = {"true": True, "false": False}
KEYS = (*(field.name for field in fields(Nodes)), "host_actors", "mpi")


def usual_profile() -> Path:
    """The file that is read where --profile names no other."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "rookery" / "slurm.yaml"


def read_profile(given: str | None) -> dict[str, Any]:
    """The settings in the file of ``--profile``, else in the usual one, if there is one."""
    path = Path(given) if given is not None else usual_profile()
    where = f"--profile {path}"
    try:
        # Every value as text, as flags are: YAML takes 1:00:00 for 3600.
        tree = yaml.load(path.read_text("utf-8"), yaml.BaseLoader)
    except (OSError, UnicodeDecodeError) as error:
        if given is None and isinstance(error, FileNotFoundError):
            return {}
        raise UserError(f"{where}: cannot be read: {error}; check the path") from error
    except yaml.YAMLError as error:
        raise UserError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error
    if tree in (None, ""):
        return {}
    if not isinstance(tree, Mapping):
        raise UserError(f"{where}: must be a mapping, as `partition: cpu`")
    return {key: _value(f"{where}: {key}", key, tree[key]) for key in map(_known(where), tree)}


def _known(where: str) -> Any:
    def checked(key: str) -> str:
        if key not in KEYS:
            hint = near_names(key, KEYS) or f"; there are {', '.join(KEYS)}"
            raise UserError(f"{where}: unknown key {key}{hint}")
        return key

    return checked


def _value(where: str, key: str, given: Any) -> Any:
    if key == "sbatch":
        if not isinstance(given, Mapping) or not all(isinstance(v, str) for v in given.values()):
            raise UserError(f"{where}: must be options of sbatch, as {{mem: 20G}}")
        return dict(given)
    if not isinstance(given, str):
        raise UserError(f"{where}: must be one value")
    return value_of(where, key, given)


def value_of(where: str, key: str, text: str) -> Any:
    """``text`` of a flag or of the file as what ``key`` needs."""
    if key in _NUMBERS:
        if not text.isdecimal():
            raise UserError(f"{where}: must be a whole number, got {text}")
        return int(text)
    if key == "requeue":
        if text not in _TRUTH:
            raise UserError(f"{where}: must be true or false, got {text}")
        return _TRUTH[text]
    return text
