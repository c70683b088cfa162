"""A trained policy in another environment than its own, such as its game with sticky actions.

What does not fit is refused. What fits but is another task is told in one line::

    trained = moved(find_trained("zoo:pong"), replace(trained.env, id="ALE/Pong-v5"))
    WARNING: pong was trained with sticky actions 0 and is judged with 0.25
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from rookery.core.errors import UserError
from rookery.envs.atari import AtariConfig, Game, may_be_game
from rookery.envs.make import EnvConfig, prepared_game
from rookery.programs.plan import probe
from rookery.runs.trained import Trained

_LOG = logging.getLogger(__name__)


def moved(trained: Trained, env: EnvConfig) -> Trained:
    """``trained`` in ``env``, if it can play there."""
    if (other := other_game(trained.env, env)) is not None:
        raise UserError(
            f"{trained.name} was trained in another game ({other}); "
            f"give {env.id} an agent of its own"
        )
    if not _looks_like_game(env):
        env = replace(env, atari=AtariConfig())  # of the game it was trained in
    # Whole games are played here, so lives need not be told.
    seen = probe(replace(env, atari=replace(env.atari, life_loss=False)))
    difference = trained.policy.signature.difference(seen)
    if difference is not None:
        raise UserError(
            f"{trained.name} was trained in {trained.env.id} and does not fit {env.id} "
            f"as it is set now ({difference})"
        )
    for what, before, now in _changes(trained.env, env):
        _LOG.warning(
            "%s was trained with %s %s and is judged with %s", trained.name, what, before, now
        )
    return replace(trained, env=env)


def other_game(before: EnvConfig, now: EnvConfig) -> str | None:
    """The id of the Atari game ``before``, if ``now`` is one too, but not the same."""
    old, new = _game(before), _game(now)
    if old is None or new is None or old.rom == new.rom:
        return None
    return before.id


def _game(env: EnvConfig) -> Game | None:
    """The Atari game that ``env`` is; what is none need not be found here any more."""
    return prepared_game(env) if _looks_like_game(env) else None


def _looks_like_game(env: EnvConfig) -> bool:
    return may_be_game(env.id.rpartition(":")[2])  # a module may stand in front


def _changes(before: EnvConfig, now: EnvConfig) -> Iterator[tuple[str, object, object]]:
    """What makes the task another one: its name, value and new value."""
    old, new = _game(before), _game(now)
    if old is None or new is None:
        if before.id != now.id:
            yield "environment", before.id, now.id
        return
    sticky = (old.sticky_under(before.atari), new.sticky_under(now.atari))
    if sticky[0] != sticky[1]:
        yield "sticky actions", f"{sticky[0]:g}", f"{sticky[1]:g}"
    if before.atari.frame_skip != now.atari.frame_skip:
        yield "frame skip", before.atari.frame_skip, now.atari.frame_skip
