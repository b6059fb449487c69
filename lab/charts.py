"""Draws the report's charts as inline SVG: a panel has two axes, and lines, dots, bars or bands.

Colours come from the page's style sheet by class, so that one drawing serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

WIDTH: Final = 1040
LEFT: Final = 64
RIGHT: Final = 92  # room for a line's name at its end
TOP: Final = 10
BOTTOM: Final = 26
_TICKS: Final = 6
_NAME_HEIGHT: Final = 13.0

Point = tuple[float, float]


def nice_ticks(most: float, count: int = _TICKS) -> list[float]:
    """Round values from 0 to the first one at or beyond `most`, about `count` of them."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)]


def number(value: float) -> str:
    """As short as it can be said: 0.25, 3, 1,200."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


@dataclass(slots=True)
class Panel:
    """One chart over the run's time. `most` is the highest value, `unit` stands at the axis."""

    height: int
    seconds: float
    most: float
    unit: str
    label: str
    parts: list[str] = field(default_factory=list)
    names: list[tuple[float, str, str]] = field(default_factory=list)

    @property
    def top_value(self) -> float:
        return nice_ticks(self.most, 4)[-1]

    def x(self, seconds: float) -> float:
        share = min(max(seconds / self.seconds, 0.0), 1.0)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = min(max(value / self.top_value, 0.0), 1.0)
        return self.height - BOTTOM - share * (self.height - TOP - BOTTOM)

    def line(self, points: Sequence[Point], style: str, name: str) -> None:
        """A line with its name at its end; a gap where a value is not a number."""
        pieces: list[list[str]] = [[]]
        last: Point | None = None
        for at, value in points:
            if math.isnan(value):
                pieces.append([])
                continue
            pieces[-1].append(f"{self.x(at):.1f},{self.y(value):.1f}")
            last = (at, value)
        for piece in pieces:
            if piece:
                path = " ".join(piece)
                self.parts.append(f'<polyline class="line {style}" points="{path}"/>')
        if last is not None:
            self.names.append((self.y(last[1]), name, style))

    def dots(self, points: Iterable[tuple[float, float, str]], style: str) -> None:
        """Dots, each with what it says when pointed at."""
        for at, value, says in points:
            self.parts.append(
                f'<circle class="dot {style}" cx="{self.x(at):.1f}" cy="{self.y(value):.1f}" '
                f'r="3.5"><title>{escape(says)}</title></circle>'
            )

    def limit(self, value: float, says: str) -> None:
        """A level that a line is held against."""
        y = self.y(value)
        self.parts.append(
            f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="small" x="{LEFT + 4}" y="{y - 4:.1f}">{escape(says)}</text>'
        )

    def band(self, begin: float, end: float, style: str, says: str) -> None:
        """A stretch of time over the whole height."""
        x = self.x(begin)
        self.parts.append(
            f'<rect class="{style}" x="{x:.1f}" y="{TOP}" width="{self.x(end) - x:.1f}" '
            f'height="{self.height - TOP - BOTTOM}"><title>{escape(says)}</title></rect>'
        )

    def svg(self, onset_seconds: float | None, onset_name: str) -> str:
        """The panel with its axes, and the incident's onset where there is one."""
        return _svg(
            self.height,
            self.label,
            [
                *_time_axis(self, self.height),
                *self._value_axis(),
                *self.parts,
                *onset(self, self.height, onset_seconds, onset_name),
                *self._names(),
            ],
        )

    def _value_axis(self) -> list[str]:
        marks = []
        for value in nice_ticks(self.most, 4):
            y = self.y(value)
            marks.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
                f"{number(value)}{self.unit}</text>"
            )
        return marks

    def _names(self) -> list[str]:
        """The lines' names at their ends, pushed apart where they would lie on each other."""
        placed: list[str] = []
        floor = self.height - BOTTOM + 4
        wanted = sorted(self.names)
        heights = [min(y + 4, floor) for y, _, _ in wanted]
        for i in range(len(heights) - 2, -1, -1):
            heights[i] = min(heights[i], heights[i + 1] - _NAME_HEIGHT)
        ceiling = TOP + 4.0
        for i, y in enumerate(heights):
            heights[i] = max(y, ceiling)
            ceiling = heights[i] + _NAME_HEIGHT
        for (_, name, style), y in zip(wanted, heights, strict=True):
            placed.append(
                f'<text class="name {style}" x="{WIDTH - RIGHT + 6}" y="{y:.1f}">'
                f"{escape(name)}</text>"
            )
        return placed


@dataclass(slots=True)
class Rows:
    """Bars over the run's time, a row each: (name, begin, end, class, what it says)."""

    seconds: float
    label: str
    rows: list[tuple[str, float, float, str, str]] = field(default_factory=list)

    _ROW: Final = 26

    def x(self, seconds: float) -> float:
        share = min(max(seconds / self.seconds, 0.0), 1.0)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def svg(self, onset_seconds: float | None, onset_name: str) -> str:
        top = TOP + (16 if onset_seconds is not None else 0)  # the onset's name has its own line
        height = top + max(len(self.rows), 1) * self._ROW + BOTTOM
        parts = [*_time_axis(self, height)]
        if not self.rows:
            parts.append(f'<text class="small" x="{LEFT + 8}" y="{top + 18}">nothing found</text>')
        for index, (name, begin, end, style, says) in enumerate(self.rows):
            y, x = top + index * self._ROW + 3, self.x(begin)
            width = max(self.x(end) - x, 4)
            parts.append(
                f'<rect class="{style}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="20" rx="3">'
                f"<title>{escape(says)}</title></rect>" + _bar_name(name, x, width, y + 14)
            )
        return _svg(height, self.label, [*parts, *onset(self, height, onset_seconds, onset_name)])


def _bar_name(name: str, x: float, width: float, y: float) -> str:
    """Inside the bar where it fits, else before it."""
    if len(name) * 6.8 + 12 < width:
        return f'<text class="inbar" x="{x + 6:.1f}" y="{y}">{escape(name)}</text>'
    anchor, at = ("end", x - 6) if x - LEFT > len(name) * 6.8 else ("start", x + width + 6)
    return f'<text class="small" x="{at:.1f}" y="{y}" text-anchor="{anchor}">{escape(name)}</text>'


def grouped_bars(
    label: str, groups: Sequence[tuple[str, Sequence[float]]], styles: Sequence[str], unit: str
) -> str:
    """A group of bars for each name, the value over each."""
    height, count = 190, max(len(groups), 1)
    most = max((value for _, values in groups for value in values), default=0.0)
    panel = Panel(height, 1.0, most, unit, label)
    parts = panel._value_axis()
    space = (WIDTH - LEFT - RIGHT) / count
    bar = min(space / (len(styles) + 1), 46)
    for index, (name, values) in enumerate(groups):
        begin = LEFT + (index + 0.5) * space - bar * len(values) / 2
        for place, (value, style) in enumerate(zip(values, styles, strict=True)):
            y, x = panel.y(value), begin + place * bar
            parts.append(
                f'<rect class="bar {style}" x="{x + 1:.1f}" y="{y:.1f}" width="{bar - 2:.1f}" '
                f'height="{height - BOTTOM - y:.1f}"><title>{escape(name)}: {number(value)}{unit}'
                "</title></rect>"
                f'<text class="tick" x="{x + bar / 2:.1f}" y="{y - 3:.1f}" text-anchor="middle">'
                f"{number(round(value, 1))}</text>"
            )
        parts.append(
            f'<text class="tick" x="{LEFT + (index + 0.5) * space:.1f}" y="{height - 8}" '
            f'text-anchor="middle">{escape(name)}</text>'
        )
    return _svg(height, label, parts)


def onset(chart: Panel | Rows, height: int, seconds: float | None, name: str) -> list[str]:
    """The vertical line at which the incident began."""
    if seconds is None:
        return []
    x = chart.x(seconds)
    anchor, at = ("start", x + 5) if x < WIDTH * 0.7 else ("end", x - 5)
    return [
        f'<line class="onset" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>',
        f'<text class="onset-name" x="{at:.1f}" y="{TOP + 9}" text-anchor="{anchor}">'
        f"{escape(name)}</text>",
    ]


def _time_axis(chart: Panel | Rows, height: int) -> list[str]:
    marks = [
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height - BOTTOM}" '
        f'y2="{height - BOTTOM}"/>'
    ]
    for seconds in nice_ticks(chart.seconds, 10):
        if seconds <= chart.seconds:
            marks.append(
                f'<text class="tick" x="{chart.x(seconds):.1f}" y="{height - 8}" '
                f'text-anchor="middle">{number(seconds)} s</text>'
            )
    return marks


def _svg(height: int, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
