"""A hook of MkDocs: drawings stand in the page itself, so that they take the colours of its palette. In the Markdown
they are ordinary images, which other readers of the file show as well."""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SMALLEST = 0.74  # of its own size: on narrower screens a drawing is moved sideways instead, so that it can be read
IMAGE = re.compile(r'<img alt="([^"]*)" src="[^"]*figures/([\w-]+)\.svg"\s*/?>')


def on_page_content(html: str, **_: Any) -> str:
    return IMAGE.sub(lambda found: drawn(found[1], found[2]), html)


def drawn(alternative: str, name: str) -> str:
    """The drawing as a part of the page; what the image says to those who do not see it becomes its label."""
    svg = (HERE / f"{name}.svg").read_text(encoding="utf-8")
    svg = re.sub(r"<title>.*?</title>\n", "", svg)
    width = re.search(r' width="(\d+)"', svg)
    assert width is not None
    least = f'style="min-width:{int(width[1]) * SMALLEST:.0f}px" aria-label="{escape(unescape(alternative))}" role='
    return f'<span class="figure-frame" tabindex="0">{svg.replace("role=", least, 1)}</span>'
