"""MkDocs hook: replaces images of figures by inline SVG, so that they have the colours of the page. In the Markdown
files they are ordinary images, which other viewers show as well."""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MIN_SCALE = 0.74  # on narrower screens a drawing scrolls instead of shrinking further, so that it stays readable
IMAGE = re.compile(r'<img alt="([^"]*)" src="[^"]*figures/([\w-]+)\.svg"\s*/?>')


def on_page_content(html: str, **_: Any) -> str:
    return IMAGE.sub(lambda match: inline_svg(match[1], match[2]), html)


def inline_svg(alt_text: str, name: str) -> str:
    """The SVG of a figure in a frame; the alternative text of the image becomes its label."""
    svg = (HERE / f"{name}.svg").read_text(encoding="utf-8")
    svg = re.sub(r"<title>.*?</title>\n", "", svg)
    width = re.search(r' width="(\d+)"', svg)
    assert width is not None
    attributes = f'style="min-width:{int(width[1]) * MIN_SCALE:.0f}px" aria-label="{escape(unescape(alt_text))}" role='
    return f'<span class="figure-frame" tabindex="0">{svg.replace("role=", attributes, 1)}</span>'
