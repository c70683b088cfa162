"""The kinds of policies, by the names that bundles have for them."""

from __future__ import annotations

from rookery.nets.actor_critic import ActorCritic
from rookery.nets.curious import CuriousQNetwork
from rookery.nets.policy import Policy
from rookery.nets.q_network import QNetwork

_KINDS: tuple[type[Policy], ...] = (ActorCritic, QNetwork, CuriousQNetwork)


def network_class(kind: str) -> type[Policy] | None:
    """The class of policies called ``kind``, if it is known."""
    return next((found for found in _KINDS if found.kind == kind), None)
