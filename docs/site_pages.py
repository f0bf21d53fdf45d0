"""Pages that are made when the site is built: the changelog and how to contribute, from the files at the root."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
FROM_THE_ROOT = {"project/changelog.md": "CHANGELOG.md", "project/contributing.md": "CONTRIBUTING.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in FROM_THE_ROOT.items():
        files.append(File.generated(config, page, content=as_page((ROOT / source).read_text())))
    return files


def as_page(text: str) -> str:
    """A file of the root as a page of project/: links into docs/ become links between pages."""
    return re.sub(r"\]\(docs/", "](../", text)
