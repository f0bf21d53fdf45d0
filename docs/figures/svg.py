"""Drawings as SVG: rows of tokens with attention masks beside them, that follow the colours of the page.

Text and lines take `currentColor`, so that one file serves a light and a dark page. What a colour says, a shape says
too: a masked token is filled, a replaced one framed, a kept one framed with dashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

ROW = 20  # height of a token's row
CELL = 15  # side of one cell of a mask
GAP = 14
WIDE, NARROW = "mwMW#@%", "ijltfr.,;:'|()[]! "  # of characters, at this size: 11 and 5 wide, the others 7.8

# Opened by itself, a drawing follows the system's colours; within a page it has the page's.
STYLE = """
svg.figure{color:#1d232b;--accent:#1d6a86;--other:#b4532a;--on-accent:#fff;font:13px ui-sans-serif,system-ui,sans-serif}
@media (prefers-color-scheme:dark){svg.figure{color:#e4e7eb;--accent:#7cc3dc;--other:#f0a37c;--on-accent:#10242c}}
svg.figure text{fill:currentColor}
svg.figure .head{font-weight:600}
svg.figure .dim{fill-opacity:.68;font-size:11px}
svg.figure .key{fill-opacity:.68;font-size:9px}
svg.figure .on{fill:var(--accent)}
svg.figure .off{fill:currentColor;fill-opacity:.08}
svg.figure .masked{fill:var(--accent)}
svg.figure .masked-text{fill:var(--on-accent)}
svg.figure .replaced{fill:none;stroke:var(--other);stroke-width:2}
svg.figure .kept{fill:none;stroke:var(--accent);stroke-width:1.5;stroke-dasharray:4 2}
svg.figure .line{fill:none;stroke:currentColor;stroke-opacity:.45;stroke-width:1.2}
"""


def extent(words: str) -> float:
    """How wide text is, about: fonts differ, so rather too much."""
    return sum(11 if one in WIDE else 5 if one in NARROW else 9 if one.isupper() else 7.8 for one in words)


@dataclass
class Column:
    """A column of words, one for each row; `marks` says by row how a word is shown: masked, replaced, kept or dim."""

    title: str
    words: Sequence[str]
    marks: dict[int, str] = field(default_factory=dict)

    @property
    def width(self) -> float:
        return max(extent(self.title) * 1.16, *(extent(word) + 8 for word in self.words))


@dataclass
class Mask:
    """A grid: a row for each query, a column for each key; None leaves a row empty. `first`: the number of the first
    key, where keys before the text come from a memory."""

    title: str
    rows: Sequence[Sequence[int] | None]
    first: int = 0

    @property
    def keys(self) -> int:
        return max(len(row) for row in self.rows if row is not None)

    @property
    def width(self) -> float:
        return max(self.keys * CELL, extent(self.title) * 1.16)


class Drawing:
    """Elements from top to bottom; the size follows from what is drawn."""

    def __init__(self, title: str):
        self.title = title
        self.parts: list[str] = []
        self.width = self.height = 0.0

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        kind = f' class="{kind}"' if kind else ""
        where = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{kind}{where}>{escape(words)}</text>')
        width = extent(words) * (0.86 if "dim" in kind else 0.7 if "key" in kind else 1.16 if "head" in kind else 1.0)
        self._reach(x + width * {"start": 1, "middle": 0.5, "end": 0}[anchor], y + 4)

    def box(self, x: float, y: float, width: float, height: float, kind: str, radius: float = 2) -> None:
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
                          f'class="{kind}"/>')
        self._reach(x + width, y + height)

    def line(self, *points: tuple[float, float]) -> None:
        path = " ".join(f"{'L' if number else 'M'}{x:g} {y:g}" for number, (x, y) in enumerate(points))
        self.parts.append(f'<path d="{path}" class="line"/>')
        for x, y in points:
            self._reach(x, y)

    def say(self, words: str, kind: str = "head") -> None:
        """One line of text below all that is there."""
        self.text(0, self.height + 18, words, kind)
        self.height += 4

    def table(self, columns: Sequence[Column | Mask], x: float = 0, top: float | None = None) -> float:
        """Columns and masks side by side below all that is there, or from `top` on: one row for each position. Gives
        back where the next column would stand."""
        top = self.height + 8 if top is None else top
        numbered = any(isinstance(column, Mask) for column in columns)
        first = top + 18 + (14 if numbered else 0)
        for column in columns:
            self.text(x, top + 13, column.title, "head")
            if isinstance(column, Mask):
                self._mask(x, first, column)
            else:
                self._words(x, first, column)
            x += column.width + GAP
        return x

    def _words(self, x: float, y: float, column: Column) -> None:
        for number, word in enumerate(column.words):
            mark = column.marks.get(number, "")
            if mark in ("masked", "replaced", "kept"):
                self.box(x, y + number * ROW + 2, extent(word) + 8, ROW - 4, mark, 3)
            self.text(x + 4, y + number * ROW + 14.5, word,
                      {"masked": "masked-text", "dim": "dim"}.get(mark, ""))

    def _mask(self, x: float, y: float, mask: Mask) -> None:
        for key in range(mask.keys):
            self.text(x + key * CELL + CELL / 2 - 0.5, y - 4, str(key + mask.first), "key", "middle")
        for kind, wanted in (("off", False), ("on", True)):
            cells = "".join(f"M{x + key * CELL:g} {y + number * ROW + 3:g}h{CELL - 1}v{ROW - 5}h-{CELL - 1}z"
                            for number, row in enumerate(mask.rows) for key, seen in enumerate(row or ())
                            if bool(seen) is wanted)
            if cells:
                self.parts.append(f'<path d="{cells}" class="{kind}"/>')
        self._reach(x + mask.width, y + len(mask.rows) * ROW)

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def __str__(self) -> str:
        width, height = round(self.width + 2), round(self.height + 4)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" class="figure" role="img">\n<title>{escape(self.title)}</title>\n'
                f"<style>{STYLE}</style>\n" + "\n".join(self.parts) + "\n</svg>\n")
