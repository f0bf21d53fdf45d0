"""`report.md`: the story of `report.html` as Markdown, its plots as small files beside it, fit to be committed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stemma.atomic_files import atomic_write, make_folder
from stemma.lab.report.html_report import PALETTE, Cell, format_cell, is_number
from stemma.lab.report.lab_html import write_sections
from stemma.lab.results_data import Results

SUMMARY, PICTURES = "report.md", "pictures"


def write_lab_markdown(results: Results, folder: Path) -> Path:
    sheet = MarkdownReport(results["title"])
    write_sections(results, sheet)
    make_folder(folder / PICTURES)
    for name, svg in sheet.pictures.items():
        atomic_write(folder / PICTURES / name, svg)
    for old in (folder / PICTURES).glob("*.svg"):  # of an earlier report that had more to show
        if old.name not in sheet.pictures:
            old.unlink()
    atomic_write(folder / SUMMARY, "\n\n".join(sheet.blocks) + "\n")
    return folder / SUMMARY


class MarkdownReport:
    """A sheet as `stemma.lab.report.lab_report` wants it. Text may hold `code` between backticks, as on a page."""

    def __init__(self, title: str):
        self.blocks = [f"# {_text(title)}"]
        self.pictures: dict[str, str] = {}

    def intro(self, text: str, numbers: Iterable[tuple[Cell, str]] = ()) -> None:
        self.text(text)
        self.points(f"{format_cell(value)}: {label}" for value, label in numbers)

    def tab(self, title: str, *paragraphs: str) -> None:
        self.blocks.append(f"## {_text(title)}")
        self.text(*paragraphs)

    def section(self, title: str, *paragraphs: str) -> None:
        self.blocks.append(f"### {_text(title)}")
        self.text(*paragraphs)

    def text(self, *paragraphs: str) -> None:
        self.blocks += map(_text, paragraphs)

    def points(self, items: Iterable[str]) -> None:
        self.blocks.append("\n".join(f"- {_text(item)}" for item in items))

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str = "",
              sortable: bool = False) -> None:
        """Nothing sorts in Markdown, but whoever draws it may."""
        rows = [list(row) for row in rows]
        marks = ["---:" if rows and all(is_number(row[column]) for row in rows) else "---"
                 for column in range(len(header))]
        lines = [list(header), marks, *([format_cell(cell) for cell in row] for row in rows)]
        self.blocks.append("\n".join(
            f"| {' | '.join(_text(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines))
        if caption:
            self.text(caption)

    def figure(self, svg: str, caption: str, name: str = "") -> None:
        file = f"{name or len(self.pictures) + 1}.svg"
        self.pictures[file] = standalone_svg(svg)
        self.blocks.append(f"![{file.removesuffix('.svg')}]({PICTURES}/{file})\n\n{_text(caption)}")

    def tree(self, family: Sequence[Mapping[str, Any]]) -> None:
        """The compared recipes and those above them; the whole family is for a page."""
        known = {entry["name"]: entry for entry in family}
        kept = {entry["name"] for entry in family if entry["lit"]}
        for name in list(kept):
            while (name := known[name]["parent"]) in known:
                kept.add(name)
        lines: list[str] = []

        def grow(parent: str | None, depth: int) -> None:
            for entry in family:
                if entry["name"] in kept and (entry["parent"] if entry["parent"] in known else None) == parent:
                    name = f"**{entry['name']}**" if entry["lit"] else entry["name"]
                    idea = f": {_text(entry['summary'])}" if entry["lit"] and entry["summary"] else ""
                    lines.append(f"{'  ' * depth}- {name}{f' ({year})' if (year := entry['year']) else ''}{idea}")
                    grow(entry["name"], depth + 1)

        grow(None, 0)
        self.blocks.append("\n".join(lines))

    def code(self, text: str) -> None:
        self.blocks.append(f"```\n{text}\n```")


def standalone_svg(svg: str) -> str:
    """A drawing of a page as a file of its own: with a size, and with the page's colours in the light and the dark."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    size = f' width="{float(box[1]) * 1.5:.0f}" height="{float(box[2]) * 1.5:.0f}"' if box else ""
    head, _, rest = svg.partition(">")
    return f"{head}{size}><style>{PALETTE}</style>{rest}"


def _text(text: str) -> str:
    """Text with what Markdown would take for markup put behind backslashes; code, and a _ within a word, stay."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else
                   re.sub(r"([\\*<>#\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", part) for part in parts)
