"""A report as one HTML file that opens from disk, asks the network for nothing, and suits a phone and the dark.

    Page("A BERT in five minutes").lead("What it is.", [("0.41", "accuracy")]).section("How").code("stemma quickstart")

Text is escaped; `words between backticks` become code. Blocks appear in the order in which they were added.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from stemma.files import write_atomically

Cell = str | int | float

# Nothing may be loaded from anywhere: a browser that obeys this line cannot make a request.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_NUMBER = re.compile(r"[+\-\u2212]?\d[\d,.]*\s*(?:%|[A-Za-z]{1,2}|\u00b1\s*\d[\d.]*)?")
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --muted: #63636a; --faint: #d6d6db; --accent: #0a6ebd;
        --paper: #ffffff; --shade: #f4f4f6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececee; --muted: #a2a2aa; --faint: #48484d; --accent: #5fb2f2; --paper: #161618; --shade: #232326; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 46rem; padding: 2.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
       font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
       -webkit-text-size-adjust: 100%; }
h1 { margin: 0 0 .75rem; font-size: 2rem; line-height: 1.2; letter-spacing: -.015em; text-wrap: balance; }
h2 { margin: 3rem 0 .75rem; font-size: 1.3rem; line-height: 1.3; }
p { margin: .75rem 0; }
.lead { font-size: 1.125rem; color: var(--muted); }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 1.25rem;
           margin: 1.75rem 0; padding: 0; }
.numbers div { border-top: 3px solid var(--faint); padding-top: .6rem; }
.numbers div:first-child { border-color: var(--accent); }
.numbers dd { margin: 0; font-size: 1.7rem; font-weight: 650; line-height: 1.15; font-variant-numeric: tabular-nums; }
.numbers div:first-child dd { color: var(--accent); }
.numbers dt { margin-top: .25rem; font-size: .875rem; line-height: 1.4; color: var(--muted); }
.numbers div { display: flex; flex-direction: column-reverse; justify-content: flex-end; }
figure { margin: 1.5rem 0; }
figure svg { display: block; width: 100%; max-width: 34rem; height: auto; }
figcaption, caption { font-size: .875rem; line-height: 1.45; color: var(--muted); text-align: left; }
figcaption { margin-top: .5rem; }
caption { caption-side: bottom; padding-top: .5rem; }
.wide { overflow-x: auto; margin: 1.25rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem 1rem .4rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--faint); }
th { font-weight: 600; border-bottom-color: var(--muted); }
th:last-child, td:last-child { padding-right: 0; }
.number { text-align: right; white-space: nowrap; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .875em; }
code { background: var(--shade); border-radius: 4px; padding: .1em .3em; overflow-wrap: anywhere; }
td code { overflow-wrap: normal; white-space: nowrap; }
pre { margin: 1.25rem 0; padding: .9rem 1rem; background: var(--shade); border-left: 3px solid var(--accent);
      border-radius: 4px; line-height: 1.5; white-space: pre-wrap; overflow-wrap: anywhere; }
pre code { padding: 0; background: none; font-size: inherit; }
@media (max-width: 30rem) { body { padding-top: 1.5rem; } h1 { font-size: 1.6rem; } .numbers dd { font-size: 1.6rem; } }
@media print { body { max-width: none; padding: 0; } h2, figure, pre { break-inside: avoid; } }
"""


class Page:
    def __init__(self, title: str):
        self.title = title
        self.blocks = [f"<h1>{_text(title)}</h1>"]

    def lead(self, text: str, numbers: Iterable[tuple[Cell, str]] = ()) -> Self:
        """What this is in a sentence or two, and the few numbers that matter, each with what it counts."""
        self.blocks.append(f'<p class="lead">{_text(text)}</p>')
        cells = "".join(f"<div><dt>{_text(label)}</dt><dd>{_text(_shown(value))}</dd></div>"
                        for value, label in numbers)
        if cells:
            self.blocks.append(f'<dl class="numbers">{cells}</dl>')
        return self

    def section(self, title: str, *paragraphs: str) -> Self:
        self.blocks.append(f"<h2>{_text(title)}</h2>")
        return self.text(*paragraphs)

    def text(self, *paragraphs: str) -> Self:
        self.blocks += [f"<p>{_text(paragraph)}</p>" for paragraph in paragraphs]
        return self

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str = "") -> Self:
        """Columns that hold numbers only are set flush right."""
        rows = [list(row) for row in rows]
        marks = [' class="number"' if rows and all(_is_number(row[column]) for row in rows) else ""
                 for column in range(len(header))]
        head = "".join(f'<th scope="col"{mark}>{_text(name)}</th>' for name, mark in zip(header, marks, strict=True))
        body = "\n".join("<tr>" + "".join(f"<td{mark}>{_text(_shown(cell))}</td>"
                                          for cell, mark in zip(row, marks, strict=True)) + "</tr>" for row in rows)
        note = f"<caption>{_text(caption)}</caption>" if caption else ""
        self.blocks.append(f'<div class="wide"><table>{note}<thead><tr>{head}</tr></thead>\n'
                           f"<tbody>{body}</tbody></table></div>")
        return self

    def figure(self, svg: str, caption: str) -> Self:
        """An `<svg>` element as `stemma.lab.plots` draws it; the caption is also what a screen reader says."""
        drawing = svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(caption)}"', 1)
        self.blocks.append(f"<figure>{drawing}<figcaption>{_text(caption)}</figcaption></figure>")
        return self

    def code(self, text: str) -> Self:
        """A command or a file, exactly as typed."""
        self.blocks.append(f"<pre><code>{html.escape(text)}</code></pre>")
        return self

    def html(self) -> str:
        body = "\n".join(self.blocks)
        return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
                f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
                f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
                f"<title>{html.escape(self.title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
                f"<body>\n{body}\n</body>\n</html>\n")

    def write(self, path: str | Path) -> Path:
        write_atomically(Path(path), self.html())
        return Path(path)


def _text(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _shown(cell: Cell) -> str:
    """Whole numbers with thousands marked, fractions to three digits, text as it is."""
    if isinstance(cell, float):
        return f"{cell:,.3f}" if abs(cell) < 1000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _is_number(cell: Cell) -> bool:
    """A number or text that is one: with a sign, a unit of a letter or two, or a spread behind `\u00b1`."""
    return not isinstance(cell, str) or bool(_NUMBER.fullmatch(cell))
