"""The picture of a run for a terminal of any size, as lines of styled text.

Wide terminals get a box: the curve at the left, facts at the right. Narrow or low ones get a list
in which the least important lines are left out.
"""

from __future__ import annotations

from rookery.cli.live.cells import (
    Glyphs,
    Line,
    bar,
    clock,
    fit,
    flow,
    joined,
    rounded,
    spread,
    tail,
    width_of,
)
from rookery.cli.live.facts import UNKNOWN, Fact, Section, losses_of, sections_of, without_bar
from rookery.cli.live.plot import plot
from rookery.cli.live.story import Story

BOX_WIDTH, BOX_HEIGHT = 66, 13
"""The least room for the box."""
FACTS_WIDTH = 30
_AROUND_BODY = 6
"""Rows of the box beside curve and facts."""
_LEAST_CURVE, _FIRST_CURVE, _MOST_CURVE = 4, 12, 60
"""Rows of the curve: in a list the first come before less important facts."""
_LEAST_BAR = 8
_MINOR = 6
"""Facts from this rank on give way to the curve."""


def compose(story: Story, now: float, columns: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """At most ``rows - 1`` lines, each of fewer than ``columns`` cells (but at least one).

    The last column stays free, so that no terminal wraps, and the last row is the cursor's.
    """
    width, height = max(columns - 1, 1), max(rows - 1, 1)
    picture = _Picture(story, now, width, height, glyphs)
    large = width >= BOX_WIDTH and height >= BOX_HEIGHT
    lines = picture.box() if large else picture.rows()
    return [fit(line, width) for line in lines[:height]]


class _Picture:
    """One moment of a story at one size."""

    def __init__(self, story: Story, now: float, width: int, height: int, glyphs: Glyphs) -> None:
        self.story, self.now, self.glyphs = story, now, glyphs
        self.width, self.height = width, height

    # ---- what is said ------------------------------------------------------------------------

    def _name(self) -> str:
        config = self.story.config
        return self.glyphs.legible(config.name or config.recipe or config.env.id)

    def _how(self) -> str:
        config = self.story.config
        return f" {self.glyphs.dot} ".join((config.algo, config.formation, config.engine))

    def _state(self) -> Line:
        state = self.story.state
        style = {"running": "title", "solved": "good", "failed": "alarm"}.get(state, "value")
        stage = self.story.stage if state == "running" else None
        shown = state if stage is None else stage.text
        return [(f"{shown} ", style), (clock(self.story.elapsed_secs(self.now)), "value")]

    def _left(self) -> str:
        if self.story.state != "running":
            return ""
        secs = self.story.remaining_secs(self.now)
        return "" if secs is None else f"{clock(secs)} left"

    def _path(self, width: int) -> Line:
        return [(tail(self.glyphs.legible(str(self.story.path)), width, self.glyphs.cut), "label")]

    def _progress(self, width: int) -> Line:
        """The bar, and beside it as much as there is room for."""
        share = self.story.share(self.now)
        percent: Line = [(f"{share:.0%}", "value")]
        left: list[Line] = [[(self._left(), "")]] if self._left() else []
        for parts in ([self._steps(), percent, *left], [self._near_steps(), *left], [percent]):
            room = self._room_for_bar(parts, width)
            if room >= _LEAST_BAR:
                beside = joined(parts, "  ")
                return [*bar(share, room, self.glyphs, "bar"), ("  ", ""), *beside]
        return bar(share, width, self.glyphs, "bar")

    def _room_for_bar(self, parts: list[Line], width: int) -> int:
        return width - width_of(joined(parts, "  ")) - 2

    def _steps(self) -> Line:
        total = self.story.config.total_steps
        return [(f"{self.story.steps_now:,}", "value"), (f" / {total:,} steps", "label")]

    def _near_steps(self) -> Line:
        total = self.story.config.total_steps
        return [(f"{rounded(self.story.steps_now)}/{rounded(total)}", "value")]

    def _curve(self, width: int, height: int) -> list[Line]:
        story = self.story
        marks = [(float(score.steps), score.mean) for score in story.scores]
        lines = plot(
            story.points,
            marks,
            width=width,
            height=height,
            glyphs=self.glyphs,
            goal=story.config.stop_at,
        )
        if lines or story.points:
            return lines
        return [*[[] for _ in range(height // 2)], [(f"  {self._awaited()}", "label")]]

    def _awaited(self) -> str:
        """Why there is no curve yet."""
        story = self.story
        if story.last:
            return "no episode has ended yet"
        if story.stage is not None:
            return story.stage.text
        return f"training, first record {story.first_record_at}"

    # ---- the box -----------------------------------------------------------------------------

    def box(self) -> list[Line]:
        """Curve and facts side by side in a frame."""
        inner = self.width - 2
        left = inner - FACTS_WIDTH - 1
        sections = self._that_fit(self.height - _AROUND_BODY)
        facts = self._facts_column(sections)
        body = max(len(facts), min(self.height - _AROUND_BODY, _MOST_CURVE))
        facts += [[(" " * FACTS_WIDTH, "")]] * (body - len(facts))
        curve = [[(" ", ""), *line] for line in self._curve(left - 2, body)]
        curve += [[]] * (body - len(curve))
        side = self.glyphs.vertical
        right_tee, left_tee, down_tee, up_tee = tuple(self.glyphs.tees)
        first = sections[0][0] if sections else ""
        lines = [
            self._top(),
            self._boxed(self._progress(inner - 2)),
            [
                *self._rule(self.story.score_name, left, right_tee),
                *self._rule(first, FACTS_WIDTH, down_tee),
                (left_tee, "border"),
            ],
        ]
        for drawn, fact in zip(curve, facts, strict=True):
            head = fact[0][0].startswith(right_tee) and fact[0][1] == "border"
            middle: Line = [] if head else [(side, "border")]
            end: Line = [(left_tee if head else side, "border")]
            lines.append([(side, "border"), *fit(drawn, left), *middle, *fact, *end])
        lines += [
            [
                *self._rule("", left, right_tee),
                *self._rule("", FACTS_WIDTH, up_tee),
                (left_tee, "border"),
            ],
            self._boxed((flow(losses_of(self.story), inner - 2, 1) or [[]])[0]),
            self._bottom(),
        ]
        return lines

    def _that_fit(self, room: int) -> list[Section]:
        """Sections without the facts of the highest rank, until headings and facts fit."""
        sections = sections_of(self.story, self.glyphs)
        while sections and sum(len(facts) + 1 for _, facts in sections) - 1 > room:
            worst = max(fact.rank for _, facts in sections for fact in facts)
            kept = [(title, [f for f in facts if f.rank < worst]) for title, facts in sections]
            sections = [(title, facts) for title, facts in kept if facts]
        return sections

    def _facts_column(self, sections: list[Section]) -> list[Line]:
        column: list[Line] = []
        for place, (title, facts) in enumerate(sections):
            if place:
                column.append(self._rule(title, FACTS_WIDTH, self.glyphs.tees[0]))
            for fact in facts:
                line = spread([(fact.label, "label")], fact.value, FACTS_WIDTH - 2)
                column.append([(" ", ""), *line, (" ", "")])
        return column

    def _top(self) -> Line:
        corner, end = self.glyphs.corners[0], self.glyphs.corners[1]
        dash = self.glyphs.horizontal
        name: Line = [(f" {self._name()} ", "title"), (f"{self._how()} ", "label")]
        state: Line = [(" ", ""), *self._state(), (" ", "")]
        return self._ruled(corner + dash, name, state, dash + end)

    def _bottom(self) -> Line:
        corner, end = self.glyphs.corners[2], self.glyphs.corners[3]
        dash = self.glyphs.horizontal
        path: Line = [(" ", ""), *self._path(self.width - 8), (" ", "")]
        return self._ruled(corner + dash, path, [], dash + end)

    def _ruled(self, start: str, left: Line, right: Line, end: str) -> Line:
        """Text at both ends of a horizontal border."""
        room = self.width - len(start) - len(end) - width_of(right) - 1
        left = fit(left, min(width_of(left), room))
        dashes = self.glyphs.horizontal * (room + 1 - width_of(left))
        return [(start, "border"), *left, (dashes, "border"), *right, (end, "border")]

    def _rule(self, title: str, width: int, start: str) -> Line:
        """``start`` and a border of ``width`` cells with a title."""
        dash = self.glyphs.horizontal
        if not title:
            return [(start + dash * width, "border")]
        dashes = dash * (width - len(title) - 3)
        return [(start + dash, "border"), (f" {title} ", "heading"), (dashes, "border")]

    def _boxed(self, line: Line) -> Line:
        side = self.glyphs.vertical
        return [(f"{side} ", "border"), *fit(line, self.width - 4), (f" {side}", "border")]

    # ---- the list ----------------------------------------------------------------------------

    def rows(self) -> list[Line]:
        """Lines without a frame. Room is given in the order of importance, not of appearance."""
        width, room = self.width, self.height
        facts = self._for_list()
        major = [_short(fact) for fact in facts if fact.rank < _MINOR]
        minor = [_short(fact) for fact in facts if fact.rank >= _MINOR]
        said = flow(major, width, room - 1)
        room -= 1 + len(said)
        title = [self._title(width)] if room > 0 else []
        room -= len(title)
        has_curve = room >= _LEAST_CURVE and bool(self.story.points)
        first = min(room, _FIRST_CURVE) if has_curve else 0
        room -= first
        rest = flow([*minor, *losses_of(self.story)], width, room - 1)
        room -= len(rest)
        path = [self._path(width)] if room > 0 else []
        room -= len(path)
        curve = self._curve(width, min(first + room, _MOST_CURVE)) if has_curve else []
        return [*title, self._progress(width), *said, *curve, *rest, *path]

    def _title(self, width: int) -> Line:
        """The name, and as much of the rest as there is room for."""
        name, state = (self._name(), "title"), self._state()
        full: Line = [name, (f"  {self._how()}  ", "label")]
        for left, right in ((full, state), ([name, (" ", "")], state), ([name], state[1:])):
            if width_of(left) + width_of(right) <= width:
                return spread(left, right, width)
        return [name]

    def _for_list(self) -> list[Fact]:
        """Facts that are known, the most important first, in few words."""
        facts = [fact for _, facts in sections_of(self.story, self.glyphs) for fact in facts]
        told = [
            Fact("eval" if fact.label == "last" else fact.label, without_bar(fact.value), fact.rank)
            for fact in facts
            if fact.value != UNKNOWN
        ]
        left: list[Line] = [[(self._left(), "")]] if self._left() else []
        if self._room_for_bar([self._near_steps(), *left], self.width) < _LEAST_BAR:
            told.append(Fact("steps", self._near_steps(), -2))
            if left:
                told.append(Fact("left", [(self._left().removesuffix(" left"), "")], -1))
        return sorted(told, key=lambda fact: fact.rank)


def _short(fact: Fact) -> Line:
    return [(f"{fact.label} ", "label"), *fact.value]
