"""Where an episode is, in a few words: what the window's bar and the terminal's last line tell."""

from __future__ import annotations

from rookery.play.controls import Controls
from rookery.play.player import Moment

_SHORT = {"episode": "ep", "step": "st", "return": "ret", "value": "val", "speed": ""}
_ENDS = {"": "", "terminated": "ended", "truncated": "time limit", "cut": "stopped"}


def short_number(value: float) -> str:
    """A return in few characters."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def numbers(moment: Moment, controls: Controls | None) -> list[tuple[str, str]]:
    """Names and numbers."""
    value = "-" if moment.decision is None else f"{moment.decision.value:.2f}"
    found = [
        ("episode", str(moment.episode + 1)),
        ("step", f"{moment.step:,}"),
        ("return", short_number(moment.score)),
        ("value", value),
    ]
    return found if controls is None else [*found, ("speed", controls.words)]


def status_line(moment: Moment, controls: Controls | None, columns: int) -> str:
    """The numbers on one line of at most ``columns`` characters."""
    pairs = numbers(moment, controls)
    end = _ENDS[moment.over]
    forms = [
        "  ".join([f"{name} {words}" for name, words in pairs] + [end] * bool(end)),
        " ".join(f"{_SHORT[name]} {words}".strip() for name, words in pairs),
        " ".join(f"{_SHORT[name]} {words}".strip() for name, words in pairs[:3]),
    ]
    for form in forms:
        if len(form) <= columns:
            return form
    return forms[-1][:columns]
