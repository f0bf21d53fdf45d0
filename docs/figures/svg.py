"""SVG drawings: columns of tokens with attention masks beside them, in the colours of the page.

Text and lines are drawn in `currentColor`, so that one file serves a light and a dark page. No information is in the
colour alone: a masked token is filled, a replaced one framed, an unchanged one framed with dashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

ROW = 20  # height of a row
CELL = 15  # width of a cell of an attention mask
GAP = 14
WIDE, NARROW = "mwMW#@%", "ijltfr.,;:'|()[]! "  # characters that are 11 and 5 wide; the others are 7.8 wide

# A drawing that is opened as a file follows the system's colours; within a page it has the page's.
STYLE = """
svg.figure:root{color-scheme:light dark}
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
svg.figure .unchanged{fill:none;stroke:var(--accent);stroke-width:1.5;stroke-dasharray:4 2}
svg.figure .line{fill:none;stroke:currentColor;stroke-opacity:.45;stroke-width:1.2}
"""


def text_width(text: str) -> float:
    """An upper estimate of the width of a text: fonts differ."""
    return sum(11 if char in WIDE else 5 if char in NARROW else 9 if char.isupper() else 7.8 for char in text)


@dataclass
class Column:
    """A column of tokens, one for each row. `marks`: style by row: masked, replaced, unchanged or dim."""

    title: str
    tokens: Sequence[str]
    marks: dict[int, str] = field(default_factory=dict)

    @property
    def width(self) -> float:
        return max(text_width(self.title) * 1.16, *(text_width(token) + 8 for token in self.tokens))


@dataclass
class Mask:
    """An attention mask: a row for each query, a column for each key; None leaves a row empty. `first_key`: number of
    the first key, negative for the positions of a memory."""

    title: str
    rows: Sequence[Sequence[int] | None]
    first_key: int = 0

    @property
    def num_keys(self) -> int:
        return max(len(row) for row in self.rows if row is not None)

    @property
    def width(self) -> float:
        return max(self.num_keys * CELL, text_width(self.title) * 1.16)


class Drawing:
    """Elements from top to bottom; the size grows with them."""

    def __init__(self, title: str):
        self.title = title
        self.elements: list[str] = []
        self.width = self.height = 0.0

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        class_attribute = f' class="{style}"' if style else ""
        anchor_attribute = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.elements.append(f'<text x="{x:g}" y="{y:g}"{class_attribute}{anchor_attribute}>{escape(text)}</text>')
        width = text_width(text) * {"dim": 0.86, "key": 0.7, "head": 1.16}.get(style, 1.0)
        self._extend_to(x + width * {"start": 1, "middle": 0.5, "end": 0}[anchor], y + 4)

    def box(self, x: float, y: float, width: float, height: float, style: str, radius: float = 2) -> None:
        self.elements.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
                          f'class="{style}"/>')
        self._extend_to(x + width, y + height)

    def line(self, *points: tuple[float, float]) -> None:
        path = " ".join(f"{'L' if index else 'M'}{x:g} {y:g}" for index, (x, y) in enumerate(points))
        self.elements.append(f'<path d="{path}" class="line"/>')
        for x, y in points:
            self._extend_to(x, y)

    def line_of_text(self, text: str, style: str = "head") -> None:
        """A line of text below all elements."""
        self.text(0, self.height + 18, text, style)
        self.height += 4

    def table(self, columns: Sequence[Column | Mask], x: float = 0, top: float | None = None) -> float:
        """Columns and masks side by side, below all elements or from `top` on: one row for each position. Returns the x
        coordinate after the last column."""
        top = self.height + 8 if top is None else top
        has_key_numbers = any(isinstance(column, Mask) for column in columns)
        first_row = top + 18 + (14 if has_key_numbers else 0)
        for column in columns:
            self.text(x, top + 13, column.title, "head")
            if isinstance(column, Mask):
                self._mask(x, first_row, column)
            else:
                self._tokens(x, first_row, column)
            x += column.width + GAP
        return x

    def _tokens(self, x: float, y: float, column: Column) -> None:
        for row, token in enumerate(column.tokens):
            mark = column.marks.get(row, "")
            if mark in ("masked", "replaced", "unchanged"):
                self.box(x, y + row * ROW + 2, text_width(token) + 8, ROW - 4, mark, 3)
            self.text(x + 4, y + row * ROW + 14.5, token, {"masked": "masked-text", "dim": "dim"}.get(mark, ""))

    def _mask(self, x: float, y: float, mask: Mask) -> None:
        for key in range(mask.num_keys):
            self.text(x + key * CELL + CELL / 2 - 0.5, y - 4, str(key + mask.first_key), "key", "middle")
        for style, is_on in (("off", False), ("on", True)):
            cells = "".join(f"M{x + key * CELL:g} {y + index * ROW + 3:g}h{CELL - 1}v{ROW - 5}h-{CELL - 1}z"
                            for index, row in enumerate(mask.rows) for key, attends in enumerate(row or ())
                            if bool(attends) is is_on)
            if cells:
                self.elements.append(f'<path d="{cells}" class="{style}"/>')
        self._extend_to(x + mask.width, y + len(mask.rows) * ROW)

    def _extend_to(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def __str__(self) -> str:
        width, height = round(self.width + 2), round(self.height + 4)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" class="figure" role="img">\n<title>{escape(self.title)}</title>\n'
                f"<style>{STYLE}</style>\n" + "\n".join(self.elements) + "\n</svg>\n")
