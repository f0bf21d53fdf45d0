"""A report as one HTML file without external requests, for phones and desktops, light and dark mode.

    HtmlReport("BERT").intro("What it is.", [("0.41", "accuracy")]).section("How").code("stemma quickstart")

Text is escaped; `words between backticks` become code. Blocks appear in the order in which they are added. With
JavaScript, tabs work and sortable tables can be sorted; without it, and on paper, the page shows everything in order.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from stemma.atomic_files import atomic_write

STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
PALETTE = STYLE[:STYLE.index("* {")]  # the colours of light and dark mode
_SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
_NUMBER = re.compile(r"[+\-\u2212]?\d[\d,.]*\s*(?:%|[A-Za-z]{1,2}|\u00b1\s*\d[\d.]*)?")


class NumberCell(NamedTuple):
    """A table cell with a number: its text and its sort key (None sorts last)."""

    text: str
    sort_value: float | None


Cell = str | int | float | NumberCell
EMPTY = NumberCell("\u2013", None)


class ReportWriter(Protocol):
    """What a report is written with: `HtmlReport` or `MarkdownReport`."""

    def intro(self, text: str, numbers: Iterable[tuple[Cell, str]] = ()) -> object: ...
    def tab(self, title: str, *paragraphs: str) -> object: ...
    def section(self, title: str, *paragraphs: str) -> object: ...
    def text(self, *paragraphs: str) -> object: ...
    def points(self, items: Iterable[str]) -> object: ...
    def table(self, header: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str = "",
              sortable: bool = False) -> object: ...
    def figure(self, svg: str, caption: str, name: str = "") -> object: ...
    def tree(self, family: Sequence[Mapping[str, object]]) -> object: ...
    def code(self, text: str) -> object: ...


class HtmlReport:
    def __init__(self, title: str):
        self.title = title
        self.blocks = [f"<h1>{_text(title)}</h1>"]
        self._panels: list[str] = []
        self._figures = 0

    def intro(self, text: str, numbers: Iterable[tuple[Cell, str]] = ()) -> Self:
        """A summary in a sentence or two, and the main numbers, each with a label."""
        self.blocks.append(f'<p class="lead">{_text(text)}</p>')
        cells = "".join(f"<div><dt>{_text(label)}</dt><dd>{_text(format_cell(value))}</dd></div>"
                        for value, label in numbers)
        if cells:
            self.blocks.append(f'<dl class="numbers">{cells}</dl>')
        return self

    def tab(self, title: str, *paragraphs: str) -> Self:
        """Start a tab. It holds all blocks up to the next tab."""
        name = re.sub(r"\W+", "-", title.lower())
        self.blocks.append(f'{"</section>" if self._panels else ""}<section class="panel" id="{name}">\n'
                           f"<h2>{_text(title)}</h2>")
        self._panels.append(name)
        return self.text(*paragraphs)

    def section(self, title: str, *paragraphs: str) -> Self:
        level = "h3" if self._panels else "h2"
        self.blocks.append(f"<{level}>{_text(title)}</{level}>")
        return self.text(*paragraphs)

    def text(self, *paragraphs: str) -> Self:
        self.blocks += [f"<p>{_text(paragraph)}</p>" for paragraph in paragraphs]
        return self

    def points(self, items: Iterable[str]) -> Self:
        self.blocks.append(f'<ul class="points">{"".join(f"<li>{_text(item)}</li>" for item in items)}</ul>')
        return self

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str = "",
              sortable: bool = False) -> Self:
        """Columns of numbers are right-aligned."""
        self.blocks.append(html_table(header, rows, caption, sortable))
        return self

    def figure(self, svg: str, caption: str, name: str = "") -> Self:
        """Add an `<svg>` element; the caption is also its label for screen readers."""
        self._figures += 1
        name = f"plot-{name or self._figures}"
        # matplotlib uses the same ids in every figure, and ids must be unique within a page
        unique = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
        labelled = unique.replace("<svg", f'<svg role="img" aria-label="{html.escape(caption)}"', 1)
        self.blocks.append(f'<figure id="{name}">{labelled}<figcaption>{_text(caption)}</figcaption></figure>')
        return self

    def tree(self, family: Sequence[Mapping[str, Any]], details: Mapping[str, str] | None = None) -> Self:
        """Recipes (name, parent, year, title, summary, lit) below their parents; `details` is HTML to expand."""
        names = {entry["name"] for entry in family}
        children: dict[str | None, list[Mapping[str, Any]]] = {}
        for entry in family:
            children.setdefault(entry["parent"] if entry["parent"] in names else None, []).append(entry)

        def branch(parent: str | None) -> str:
            return "".join(f"<li>{_recipe(entry, (details or {}).get(entry['name']))}"
                           + (f"<ul>{branch(entry['name'])}</ul>" if entry["name"] in children else "") + "</li>\n"
                           for entry in children.get(parent, ()))

        self.blocks.append(f'<ul class="tree">{branch(None)}</ul>')
        return self

    def code(self, text: str) -> Self:
        """A preformatted block: a command or a file."""
        self.blocks.append(f"<pre><code>{html.escape(text)}</code></pre>")
        return self

    def html(self) -> str:
        body = "\n".join(self.blocks) + ("\n</section>" if self._panels else "")
        script = f"\n<script>{_SCRIPT}</script>" if self._panels or '<table class="sortable">' in body else ""
        return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
                f'<meta http-equiv="Content-Security-Policy" content="{_policy(bool(script))}">\n'
                f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
                f"<title>{html.escape(self.title)}</title>\n<style>\n{STYLE}</style>\n</head>\n"
                f"<body>\n{body}{script}\n</body>\n</html>\n")

    def write(self, path: str | Path) -> Path:
        atomic_write(Path(path), self.html())
        return Path(path)


def html_table(header: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str = "", sortable: bool = False) -> str:
    rows = [list(row) for row in rows]
    marks = [' class="number"' if rows and all(is_number(row[column]) for row in rows) else ""
             for column in range(len(header))]
    head = "".join(f'<th scope="col"{mark}>{_text(name)}</th>' for name, mark in zip(header, marks, strict=True))
    body = "\n".join("<tr>" + "".join(f"<td{mark}{_sort_key(cell) if sortable else ''}>{_cell(cell)}</td>"
                                      for cell, mark in zip(row, marks, strict=True)) + "</tr>" for row in rows)
    note = f"<caption>{_text(caption)}</caption>" if caption else ""
    kind = ' class="sortable"' if sortable else ""
    return (f'<div class="wide"><table{kind}>{note}<thead><tr>{head}</tr></thead>\n'
            f"<tbody>{body}</tbody></table></div>")


def _policy(script: bool) -> str:
    """A content security policy that forbids all requests and allows only our script, identified by its digest."""
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    allowed = f"; script-src 'sha256-{digest}'" if script else ""
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:{allowed}"


def _recipe(entry: Mapping[str, Any], details: str | None) -> str:
    """One line of a tree. Highlighted recipes also have a text label, because colour alone is not accessible."""
    mark = "lit" if entry["lit"] else "dim" if details is None else ""
    line = f'<span class="name">{_text(entry["name"])}</span> <span class="year">{entry["year"] or ""}</span>'
    line += ' <span class="tag">compared here</span>' if entry["lit"] else ""
    if entry["summary"] and mark != "dim":
        line += f' <span class="idea">{_text(entry["summary"])}</span>'
    if details is None:
        return f'<div class="{mark}">{line}</div>'
    return f'<details class="{mark}"><summary>{line}</summary><div class="unfolded">{details}</div></details>'


def _text(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _cell(cell: Cell) -> str:
    """Allow line breaks after the dots of a key, so that tables of keys fit a phone."""
    return re.sub(r"(?<=[a-z_])\.(?=[a-z])", ".<wbr>", _text(format_cell(cell)))


def format_cell(cell: Cell) -> str:
    """Integers with thousands separators, floats with three decimals, text unchanged."""
    if isinstance(cell, NumberCell):
        return cell.text
    if isinstance(cell, float):
        return f"{cell:,.3f}" if abs(cell) < 1000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _sort_key(cell: Cell) -> str:
    """The attribute that the script sorts by, if that is not the cell's text."""
    value = cell.sort_value if isinstance(cell, NumberCell) else cell
    return "" if isinstance(value, str) else f' data-sort="{"" if value is None else repr(value)}"'


def is_number(cell: Cell) -> bool:
    """Whether a cell is a number, or text of one with a sign, a short unit or a standard deviation."""
    return not isinstance(cell, str) or bool(_NUMBER.fullmatch(cell))
