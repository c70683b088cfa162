"""What an agent sees and does: the leaves of its observations and its action.

A signature is saved with every checkpoint, so an agent can be loaded and asked for actions without
its environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.core.spec import Array, EnvForm, LeafSpec


@dataclass(frozen=True, slots=True)
class Signature:
    """Observation leaves by name and the one action leaf."""

    obs: Mapping[str, LeafSpec]
    action: LeafSpec

    def to_json(self) -> dict[str, Any]:
        """JSON data that :meth:`from_json` reads back."""
        return {
            "obs": {name: _leaf_to_json(leaf) for name, leaf in self.obs.items()},
            "action": _leaf_to_json(self.action),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signature:
        """The inverse of :meth:`to_json`."""
        return cls(
            obs={name: _leaf_from_json(leaf) for name, leaf in data["obs"].items()},
            action=_leaf_from_json(data["action"]),
        )

    def difference(self, other: Signature) -> str | None:
        """The first difference that matters to a network in one phrase, None if none."""
        mine, theirs = set(self.obs), set(other.obs)
        if mine != theirs:
            return f"observation leaves {sorted(mine)} against {sorted(theirs)}"
        for name, leaf in self.obs.items():
            if (leaf.shape, leaf.sizes) != (other.obs[name].shape, other.obs[name].sizes):
                return (
                    f"observation '{name}' {_describe(leaf)} against {_describe(other.obs[name])}"
                )
        if (self.action.kind, self.action.shape, self.action.sizes) != (
            other.action.kind,
            other.action.shape,
            other.action.sizes,
        ):
            return f"action {_describe(self.action)} against {_describe(other.action)}"
        return None


def _describe(leaf: LeafSpec) -> str:
    sizes = f" of {list(leaf.sizes)}" if leaf.sizes else ""
    return f"{leaf.kind}{list(leaf.shape)}{sizes}"


def _bound_to_json(bound: Array | None) -> Any:
    """A uniform bound as one number: the bounds of an image would fill pages."""
    if bound is None:
        return None
    first = bound.flat[0] if bound.size else 0
    values = first if bool(np.all(bound == first)) else bound
    return np.asarray(values).tolist()


def form_to_json(form: EnvForm | None) -> dict[str, Any] | None:
    """JSON data that :func:`form_from_json` reads back."""
    if form is None:
        return None
    return {"shape": list(form.shape), "dtype": form.dtype.name, "start": list(form.start)}


def form_from_json(data: Mapping[str, Any] | None) -> EnvForm | None:
    """The inverse of :func:`form_to_json`."""
    if data is None:
        return None
    return EnvForm(tuple(data["shape"]), np.dtype(data["dtype"]), tuple(data["start"]))


def _leaf_to_json(leaf: LeafSpec) -> dict[str, Any]:
    return {
        "kind": leaf.kind,
        "shape": list(leaf.shape),
        "dtype": leaf.dtype.name,
        "sizes": list(leaf.sizes),
        "low": _bound_to_json(leaf.low),
        "high": _bound_to_json(leaf.high),
        "env_form": form_to_json(leaf.env_form),
    }


def _leaf_from_json(data: Mapping[str, Any]) -> LeafSpec:
    shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
    form = form_from_json(data.get("env_form"))
    # Bounds are the environment's own: those of a float64 action would not survive float32.
    precise = dtype if form is None else form.dtype

    def bound(value: Any) -> Array | None:
        if value is None:
            return None
        return np.ascontiguousarray(np.broadcast_to(np.asarray(value, precise), shape))

    return LeafSpec(
        kind=data["kind"],
        shape=shape,
        dtype=dtype,
        sizes=tuple(data["sizes"]),
        low=bound(data["low"]),
        high=bound(data["high"]),
        env_form=form,
    )
