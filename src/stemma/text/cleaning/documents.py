"""Reads and writes whole documents, one at a time and in order."""

from __future__ import annotations

import json
import logging
import re
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from stemma.atomic_files import check_output_path
from stemma.errors import UserError
from stemma.text.readers import JSON_LINES, PLAIN, Passage

logger = logging.getLogger(__name__)

LIMIT = 10_000_000  # characters; a longer document is filtered in parts, so that memory stays bounded
LINE_ENDS = re.compile(r"\s*\n\s*")


def whole_documents(passages: Iterable[Passage], limit: float = LIMIT) -> Iterator[str]:
    """Joins the passages of each document, up to the limit."""
    parts: list[str] = []
    length = 0
    for passage in passages:
        if passage.starts_document or length >= limit:
            if not passage.starts_document:
                logger.info(f"{passage.source}: a document of more than {limit:,} characters is filtered in parts.")
            if parts:
                yield "".join(parts)
            parts, length = [], 0
        parts.append(passage.text)
        length += len(passage.text)
    if parts:
        yield "".join(parts)


class DocumentWriter:
    """Writes documents as plain text or JSON lines; `ends` has the end offset of each."""

    def __init__(self, file: IO[bytes], suffix: str, documents: str):
        self.file = file
        self.json = suffix in JSON_LINES
        # A document must not contain the separator: a blank line, or any line end if each document is a line.
        self._line_end, self._separator = (" ", "\n") if documents == "line" else ("\n", "\n\n")
        self.ends = array("q")

    def write(self, text: str) -> None:
        line = json.dumps({"text": text}, ensure_ascii=False) + "\n" if self.json else self._plain(text)
        self.ends.append((self.ends[-1] if self.ends else 0) + self.file.write(line.encode()))

    def _plain(self, text: str) -> str:
        return LINE_ENDS.sub(self._line_end, text.strip()) + self._separator


def check_output(out: Path, overwrite: bool) -> None:
    """Raise if the output path or its format is not valid, before any work is done."""
    if out.is_dir():
        raise UserError(f"{out} is a folder; name the file to write in it, such as {out / 'clean.txt'}.")
    if out.suffix.lower() not in (*PLAIN, *JSON_LINES):
        raise UserError(f"{out} must end in {', '.join((*PLAIN, *JSON_LINES))}: its suffix says how to write it.")
    check_output_path(out, overwrite)
