"""`report.md`: the sections of `report.html` as Markdown, with the plots as SVG files in `pictures/`."""

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
    report = MarkdownReport(results["title"])
    write_sections(results, report)
    make_folder(folder / PICTURES)
    for name, svg in report.pictures.items():
        atomic_write(folder / PICTURES / name, svg)
    for path in (folder / PICTURES).glob("*.svg"):  # left by an earlier report that had more plots
        if path.name not in report.pictures:
            path.unlink()
    atomic_write(folder / SUMMARY, "\n\n".join(report.blocks) + "\n")
    return folder / SUMMARY


class MarkdownReport:
    """A `ReportWriter` for Markdown. Text may hold `code` between backticks."""

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
        """`sortable` has no effect in Markdown."""
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
        """The compared recipes and their ancestors only; the HTML report shows the whole family."""
        entries = {entry["name"]: entry for entry in family}
        compared = {entry["name"] for entry in family if entry["lit"]}
        for name in list(compared):
            while (name := entries[name]["parent"]) in entries:
                compared.add(name)
        lines: list[str] = []

        def add_children(parent: str | None, depth: int) -> None:
            for entry in family:
                if entry["name"] in compared and (entry["parent"] if entry["parent"] in entries else None) == parent:
                    name = f"**{entry['name']}**" if entry["lit"] else entry["name"]
                    summary = f": {_text(entry['summary'])}" if entry["lit"] and entry["summary"] else ""
                    lines.append(f"{'  ' * depth}- {name}{f' ({year})' if (year := entry['year']) else ''}{summary}")
                    add_children(entry["name"], depth + 1)

        add_children(None, 0)
        self.blocks.append("\n".join(lines))

    def code(self, text: str) -> None:
        self.blocks.append(f"```\n{text}\n```")


def standalone_svg(svg: str) -> str:
    """An inline SVG as a file: with a size, and with the page's colours for light and dark mode."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    size = f' width="{float(box[1]) * 1.5:.0f}" height="{float(box[2]) * 1.5:.0f}"' if box else ""
    head, _, body = svg.partition(">")
    return f"{head}{size}><style>{PALETTE}</style>{body}"


def _text(text: str) -> str:
    """Escape what Markdown would take for markup, except in code and underscores within a word."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else
                   re.sub(r"([\\*<>#\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", part) for part in parts)
