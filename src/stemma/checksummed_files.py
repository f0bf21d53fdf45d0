"""Files that a run or a lab writes and reads again, each verified by its SHA-256.

`checksums.json` in a file's folder has the digests that are valid for it. When a file is rewritten, the new digest is
added before the file is written and the previous one stays, so that a kill at any moment leaves a valid file. Older
folders have no `checksums.json`: they are read without verification, and the first write records all existing files.
"""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from stemma import json_files
from stemma.atomic_files import CHECKSUMS, atomic_write, read_checksums, sha256
from stemma.errors import CorruptFileError

WRITE_ONCE, REWRITTEN, APPENDED = "written once", "rewritten", "append-only"
# Folders written as a whole (a checkpoint, a model, a corpus, a tokenizer, a lab's text) list all their files.
# lineage.json identifies the content of pipeline.toml.
RULES = {
    "run.json": REWRITTEN, "recipe.toml": REWRITTEN, "result.json": REWRITTEN,  # of a run
    "text-*.txt": WRITE_ONCE, "target-*.txt": WRITE_ONCE,  # text from stdin
    "train*.jsonl": WRITE_ONCE, "dev*.jsonl": REWRITTEN, "test*.jsonl": REWRITTEN,  # examples, later with predictions
    "ensemble-*.jsonl": REWRITTEN,
    "log.jsonl": APPENDED,  # a checkpoint records its length and SHA-256; listed when training ends
    "shared.json": WRITE_ONCE,  # of several tasks
    "learning_rate_search.json": WRITE_ONCE,  # of a fine-tune with --find-rate
    "lineage.json": REWRITTEN, "measures.json": REWRITTEN, "contamination.json": REWRITTEN,
    "lab.json": REWRITTEN, "[0-9][0-9][0-9].toml": REWRITTEN,  # an experiment and its recipes
    "scores.json": WRITE_ONCE, "failed.json": WRITE_ONCE,  # of a cell
    "[0-9a-f]" * 16 + ".json": WRITE_ONCE,  # cost of a variant's step
    "quickstart.json": REWRITTEN, "train.txt": WRITE_ONCE, "held-out.txt": WRITE_ONCE,
}


def write_rule(name: str) -> str | None:
    return next((rule for pattern, rule in RULES.items() if fnmatch(name, pattern)), None)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file and record its digest. The caller must have locked the folder."""
    rule = write_rule(path.name)
    assert rule is not None, f"{path.name} has no rule"
    data = content.encode() if isinstance(content, str) else content
    digest = hashlib.sha256(data).hexdigest()
    recorded = _recorded(path) if path.with_name(CHECKSUMS).is_file() else {}
    if path.is_file() and digest in recorded.get(path.name, ()) and path.read_bytes() == data:
        return  # nothing changes
    _record(path, digest, keep_current=rule == REWRITTEN)
    atomic_write(path, data)


def write_object(path: Path, content: object, indent: int | None = 1) -> None:
    write_file(path, json.dumps(content, indent=indent))


def record_finished_file(path: Path) -> None:
    """Record an append-only file that is complete."""
    _record(path, sha256(path), keep_current=False)


def verify_file(path: Path, advice: str) -> None:
    """Raise CorruptFileError if the file's content differs from what was written."""
    listing = path.with_name(CHECKSUMS)
    for attempt in range(2):  # another process may have recorded the digest and not yet written the file
        if not listing.is_file():
            return
        digests = _recorded(path).get(path.name)
        if not digests and (not path.is_file() or write_rule(path.name) == APPENDED):
            return
        if not path.is_file():
            raise CorruptFileError(f"{path} is missing; {advice}")
        if not digests:
            raise CorruptFileError(f"{path} has no checksum in {CHECKSUMS}; {advice}")
        if sha256(path) in digests:
            return
        if attempt:
            raise CorruptFileError(f"{path} is damaged or was edited (its checksum differs from the one written); "
                                   f"{advice}")


def has_checksum(path: Path) -> bool:
    """Whether the file was recorded, even if it no longer exists."""
    return path.with_name(CHECKSUMS).is_file() and path.name in _recorded(path)


def read_verified_object(path: Path, advice: str) -> dict[str, Any]:
    """The JSON object in a verified file."""
    verify_file(path, advice)
    return json_files.read_object(path, advice)


def read_verified_lines(path: Path, advice: str) -> list[dict[str, Any]]:
    """The JSON objects of a verified file, one per line."""
    verify_file(path, advice)
    return json_files.read_lines(path, advice)


def _record(path: Path, digest: str, keep_current: bool) -> None:
    """Record the digest of a file that is about to be written; `keep_current`: the current one stays valid."""
    listing = path.with_name(CHECKSUMS)
    if listing.is_file():
        recorded = _recorded(path)
    else:
        recorded = {file.name: [sha256(file)] for file in path.parent.iterdir()
                    if file.is_file() and write_rule(file.name) in (WRITE_ONCE, REWRITTEN)}
    current = [value for value in recorded.get(path.name, [])[-1:] if keep_current and value != digest]
    recorded[path.name] = [*current, digest]
    content = {name: digests[0] if len(digests) == 1 else digests for name, digests in sorted(recorded.items())}
    atomic_write(listing, json.dumps(content, indent=1))


def _recorded(path: Path) -> dict[str, list[str]]:
    listing = path.with_name(CHECKSUMS)
    return read_checksums(path.parent, f"put it back, or delete {listing}: then nothing in {path.parent} is verified "
                                       "any more.")
