"""Files that a run or a lab writes and reads again: each is known by its SHA-256, by the rule of its name.

`checksums.json` in the folder of a file lists the content that it may have. Where a file is rewritten, the new content
is listed before it is written and the one before it stays listed, so that a kill at any moment leaves a file that is
known. Folders made before there were such listings have none: they are read as they are, and the first file written
there lists what it finds.
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

WRITE_ONCE, REWRITTEN, APPENDED = "written once", "rewritten by us", "append-only"
# Folders that appear whole (a checkpoint, a model, a corpus, a tokenizer, a lab's text) list all that is in them. What
# a pipeline.toml says is known by the numbers in lineage.json.
RULES = {
    "run.json": REWRITTEN, "recipe.toml": REWRITTEN, "result.json": REWRITTEN,  # of a run
    "text-*.txt": WRITE_ONCE, "target-*.txt": WRITE_ONCE,  # what came through a pipe
    "train*.jsonl": WRITE_ONCE, "dev*.jsonl": REWRITTEN, "test*.jsonl": REWRITTEN,  # examples, later with predictions
    "ensemble-*.jsonl": REWRITTEN,
    "log.jsonl": APPENDED,  # a checkpoint notes its length and SHA-256; listed when training is over
    "shared.json": WRITE_ONCE,  # of several tasks
    "lineage.json": REWRITTEN, "measures.json": REWRITTEN, "contamination.json": REWRITTEN,
    "lab.json": REWRITTEN, "[0-9][0-9][0-9].toml": REWRITTEN,  # an experiment and its recipes
    "scores.json": WRITE_ONCE, "failed.json": WRITE_ONCE,  # of a cell
    "[0-9a-f]" * 16 + ".json": WRITE_ONCE,  # what a step of a variant costs
    "quickstart.json": REWRITTEN, "train.txt": WRITE_ONCE, "held-out.txt": WRITE_ONCE,
}


def write_rule(name: str) -> str | None:
    return next((rule for pattern, rule in RULES.items() if fnmatch(name, pattern)), None)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file that is read again; only for whoever holds its folder."""
    rule = write_rule(path.name)
    assert rule is not None, f"{path.name} has no rule"
    data = content.encode() if isinstance(content, str) else content
    digest = hashlib.sha256(data).hexdigest()
    listed = _recorded(path) if path.with_name(CHECKSUMS).is_file() else {}
    if path.is_file() and digest in listed.get(path.name, ()) and path.read_bytes() == data:
        return  # nothing changes
    _record(path, digest, keep_current=rule == REWRITTEN)
    atomic_write(path, data)


def write_object(path: Path, content: object, indent: int | None = 1) -> None:
    write_file(path, json.dumps(content, indent=indent))


def record_finished_file(path: Path) -> None:
    """List a file that was written line by line, now that no more lines come."""
    _record(path, sha256(path), keep_current=False)


def verify_file(path: Path, advice: str) -> None:
    """Raise CorruptFileError unless the file is as it was written last."""
    listing = path.with_name(CHECKSUMS)
    for attempt in range(2):  # another process may be between the listing and the file
        if not listing.is_file():
            return
        known = _recorded(path).get(path.name)
        if not known and (not path.is_file() or write_rule(path.name) == APPENDED):
            return
        if not path.is_file():
            raise CorruptFileError(f"{path} is missing; {advice}")
        if not known:
            raise CorruptFileError(f"{path} has no checksum in {CHECKSUMS}; {advice}")
        if sha256(path) in known:
            return
        if attempt:
            raise CorruptFileError(f"{path} is damaged or was edited (its checksum differs from the one written); "
                                   f"{advice}")


def has_checksum(path: Path) -> bool:
    """Whether there was such a file, even if it is gone."""
    return path.with_name(CHECKSUMS).is_file() and path.name in _recorded(path)


def read_verified_object(path: Path, advice: str) -> dict[str, Any]:
    """The object in a verified file."""
    verify_file(path, advice)
    return json_files.read_object(path, advice)


def read_verified_lines(path: Path, advice: str) -> list[dict[str, Any]]:
    """The objects of a verified file, one a line."""
    verify_file(path, advice)
    return json_files.read_lines(path, advice)


def _record(path: Path, digest: str, keep_current: bool) -> None:
    """Take down what a file is about to hold; `keep` what it holds now."""
    listing = path.with_name(CHECKSUMS)
    if listing.is_file():
        known = _recorded(path)
    else:
        known = {file.name: [sha256(file)] for file in path.parent.iterdir()
                 if file.is_file() and write_rule(file.name) in (WRITE_ONCE, REWRITTEN)}
    before = [one for one in known.get(path.name, [])[-1:] if keep_current and one != digest]
    known[path.name] = [*before, digest]
    told = {name: digests[0] if len(digests) == 1 else digests for name, digests in sorted(known.items())}
    atomic_write(listing, json.dumps(told, indent=1))


def _recorded(path: Path) -> dict[str, list[str]]:
    listing = path.with_name(CHECKSUMS)
    return read_checksums(path.parent, f"put it back, or delete {listing}: then nothing in {path.parent} is verified "
                                       "any more.")
