"""Marks beside the tokens of a corpus: phrases, entities, who speaks. They are side arrays of one byte a token, made
once and stored in the shards; the corpus keeps its fingerprint, since its text has not changed. Numbers beside tokens
or documents are float fields (`fields.py`).

The folder is made anew beside its place, where files that stay are links to the old ones, and then takes its place.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stemma.corpus.batches import RELEVANCE, ROLES
from stemma.corpus.fields import Source, files_of, read_numbers
from stemma.corpus.matching import Matcher, inside
from stemma.corpus.mining import SCORE, mine
from stemma.corpus.shards import MANIFEST, TEXT, Corpus
from stemma.corpus.stretches import stretches
from stemma.errors import UserError
from stemma.files import CHECKSUMS, folder_atomically, only_here, sha256
from stemma.json_files import parse_object
from stemma.text.lexicon import SHOWN, Lexicon, Spans, read_marks

MINE = "mine"
SIDES = ("phrases", "entities", ROLES, RELEVANCE)  # names that side arrays have, whether or not they are there
BEGINS, GOES_ON = 1, 2  # what a unit's first token is marked with, and its others
MOST_ROLES = 254  # that a byte can tell apart, beside none
Progress = Callable[[int], None]


def annotate(path: str | Path, *, phrases: str | Path | None = None, entities: str | Path | None = None,
             roles: str | Path | None = None, min_count: int = 10, threshold: float = 0.5, longest: int = 4,
             encoding: str = "utf-8", top: int = 10, overwrite: bool = False,
             token_fields: Mapping[str, Source] | None = None, document_fields: Mapping[str, Source] | None = None,
             progress: Progress | None = None) -> dict[str, Any]:
    """Add side arrays to a corpus: `phrases` is "mine" or a file, the others are files (see `text/lexicon.py`).
    `token_fields` and `document_fields`: by name an array or a .npy file with a row of numbers for each token or
    document. Returns what was found, by side; `progress` hears how many tokens of the text have been looked at."""
    wanted = {name: source for name, source in (("phrases", phrases), ("entities", entities), ("roles", roles))
              if source is not None}
    if not wanted and not token_fields and not document_fields:
        raise UserError("there is nothing to annotate; name --phrases mine, --phrases FILE, --entities FILE, "
                        "--roles FILE, --token-field NAME=FILE.npy or --document-field NAME=FILE.npy.")
    if min_count < 1 or longest < 2 or not -1 <= threshold <= 1:
        raise UserError(f"--min-count {min_count}, --longest {longest} and --threshold {threshold:g}: they must be at "
                        "least 1, at least 2, and between -1 and 1.")
    path = Path(path)
    if not path.is_dir():
        Corpus.open(path)  # says what is there instead
    # Whoever comes second must see what the first one added, so the corpus is opened by one at a time.
    with only_here(path, f"corpus {path} is being annotated by another command; wait until that is done."):
        corpus = Corpus.open(path)
        numbers = read_numbers(token_fields or {}, document_fields or {},
                               {"token": corpus.tokens, "document": corpus.manifest["documents"]},
                               [*corpus.manifest["arrays"], *SIDES, TEXT])
        there = [name for name in wanted if name in corpus.sides()]
        there += [one.name for one in numbers if one.name in corpus.fields]
        if there and not overwrite:
            raise UserError(f"corpus {path} has {' and '.join(there)} already; add --overwrite to replace them.")
        read = {name: _read(name, source, encoding, corpus) for name, source in wanted.items()}
        found: dict[str, dict[str, Any]] = {}
        shards = corpus.manifest["shards"]
        changed = [f"{shard['folder']}/{name}.bin" for shard in shards for name in wanted]
        changed += [file for one in numbers for file in files_of(one.name, one.per, shards)]
        replaced = {file for one in numbers if one.name in corpus.fields
                    for file in files_of(one.name, corpus.fields[one.name].per, shards)}
        with folder_atomically(path.resolve(), overwrite=True, checksums=False) as folder:
            _link(path, folder, {MANIFEST, CHECKSUMS, *changed, *replaced})
            for one in numbers:
                one.write(folder, shards)
            for name, marks in read.items():
                arrays = [np.memmap(folder / shard["folder"] / f"{name}.bin", np.uint8, "w+", shape=(shard["tokens"],))
                          for shard in corpus.manifest["shards"]]
                side = Side(corpus, arrays)
                if marks is None:
                    found[name] = side.mined(min_count, threshold, longest, top, progress)
                elif isinstance(marks, Lexicon):
                    found[name] = side.matched(marks, top, progress)
                else:
                    found[name] = side.placed(marks, name == "roles", top)
                for array in arrays:
                    array.flush()
                if marks is not None:
                    found[name] |= {"file": Path(wanted[name]).name, "sha256": sha256(Path(wanted[name]))}
            fields = {one.name: one.record() for one in numbers}
            _seal(corpus, folder, found, fields, changed, replaced)
    told = {"corpus": str(path), "tokens": corpus.tokens, "annotations": found}
    return {**told, "fields": fields} if fields else told


def _read(name: str, source: str | Path, encoding: str, corpus: Corpus) -> Lexicon | Spans | None:
    """What a file says, or None: to be mined."""
    if name == "phrases" and str(source) == MINE:
        return None
    marks = read_marks(source, encoding)
    if isinstance(marks, Spans):
        _check_places(source, marks, corpus, roles=name == "roles")
    elif name == "roles":
        raise UserError(f"{source} is a lexicon, and roles are given by span; write document, start, end and role, a "
                        "line each.")
    return marks


def _check_places(source: str | Path, spans: Spans, corpus: Corpus, roles: bool) -> None:
    """Every span must lie inside its document, and roles must be named."""
    count = len(corpus.documents) - 1
    lengths = {int(number): len(corpus.text(int(number))) for number in np.unique(spans.table[:, 0]) if number < count}
    problems = []
    for (document, _, end), kind, line in zip(spans.table.tolist(), spans.kinds, spans.lines.tolist(), strict=True):
        if document >= count:
            problems.append((f"line {line}", f"there is no document {document}; the last one is {count - 1}"))
        elif end > lengths[document]:
            problems.append((f"line {line}", f"ends at {end}, and document {document} has {lengths[document]} "
                                             "characters"))
        elif roles and kind is None:
            problems.append((f"line {line}", "says not who speaks; add a fourth column, or a type"))
    if not problems and roles and len(set(spans.kinds)) > MOST_ROLES:
        problems.append(("", f"there are {len(set(spans.kinds))} roles, and at most {MOST_ROLES} can be told apart"))
    if problems:
        raise UserError(f"{source} does not fit the corpus {corpus.path}:", problems[:SHOWN])


class Side:
    """One side array being filled: a byte for each token."""

    def __init__(self, corpus: Corpus, arrays: Sequence[np.ndarray]):
        self.corpus, self.arrays = corpus, arrays
        self.bounds = np.cumsum([0, *(len(array) for array in arrays)])

    def mined(self, min_count: int, threshold: float, longest: int, top: int,
              progress: Progress | None) -> dict[str, Any]:
        found = mine(self.corpus, min_count, threshold, longest, progress)
        units = self._match([phrase.text for phrase in found], characters=False)
        described = [{"text": phrase.text, "count": int(count), "score": round(phrase.score, 4)}
                     for phrase, count in zip(found, units, strict=True)]
        return {"source": "mined", "score": SCORE, "min_count": min_count, "threshold": threshold, "longest": longest,
                **self._summary(described, top)}

    def matched(self, lexicon: Lexicon, top: int, progress: Progress | None) -> dict[str, Any]:
        """Chinese entries may begin and end with any character: a segmenter does not know the names of a lexicon."""
        units = self._match(list(lexicon.entries), characters=True, progress=progress)
        described = [{"text": entry, "count": int(count), **({"type": kind} if kind else {})}
                     for (entry, kind), count in zip(lexicon.entries.items(), units, strict=True)]
        return {"source": "lexicon", **self._summary(described, top)}

    def placed(self, spans: Spans, roles: bool, top: int) -> dict[str, Any]:
        """Every token that a span touches belongs to it, unless the span before it has it already."""
        number = {kind: 1 + place for place, kind in enumerate(dict.fromkeys(spans.kinds))}
        counts: Counter[tuple[str, str | None]] = Counter()
        edges = np.flatnonzero(np.diff(spans.table[:, 0], prepend=-1, append=-1))
        for here in map(slice, edges[:-1], edges[1:]):
            document = int(spans.table[here.start, 0])
            first, behind = (int(bound) for bound in self.corpus.documents[document:document + 2])
            starts = self.corpus.slice("starts", first, behind)
            ends = starts + self.corpus.slice("lengths", first, behind)
            start = np.searchsorted(ends, spans.table[here, 1], side="right")
            stop = np.searchsorted(starts, spans.table[here, 2], side="left")
            start[1:] = np.maximum(start[1:], np.maximum.accumulate(stop)[:-1])
            kept = np.flatnonzero(stop > start)
            marks = _marks(start[kept], stop[kept], behind - first)
            kinds = [spans.kinds[here.start + place] for place in kept]
            if roles:
                marks[marks > 0] = np.repeat([number[kind] for kind in kinds], (stop - start)[kept])
            self._write(first, marks)
            text = self.corpus.text(document)
            counts.update((" ".join(text[slice(*spans.table[here.start + place, 1:])].split()), kind)
                          for place, kind in zip(kept, kinds, strict=True))
        described = [{"text": text, "count": count, **({"type": kind} if kind else {})}
                     for (text, kind), count in counts.items()]
        return {"source": "spans", **self._summary(described, top)} | ({"roles": list(number)} if roles else {})

    def _match(self, entries: list[str], characters: bool, progress: Progress | None = None) -> np.ndarray:
        """(entries,) how often each was found and marked."""
        units = np.zeros(len(entries), np.int64)
        tokenizer = self.corpus.tokenizer
        matcher = Matcher([tokenizer.prepare(entry) for entry in entries], tokenizer.lowercase)
        for stretch in stretches(self.corpus, characters):
            first, stop, entry = matcher.find(stretch)
            units += np.bincount(entry, minlength=len(entries))
            self._write(stretch.first, _marks(first, stop, stretch.tokens))
            if progress:
                progress(stretch.first + stretch.tokens)
        return units

    def _write(self, first: int, marks: np.ndarray) -> None:
        """A stretch may hold documents of several shards."""
        for number, array in enumerate(self.arrays):
            low, high = self.bounds[number:number + 2]
            start, stop = max(first, low), min(first + len(marks), high)
            if start < stop:
                array[start - low:stop - low] = marks[start - first:stop - first]

    def _summary(self, described: list[dict[str, Any]], top: int) -> dict[str, Any]:
        covered = sum(int(np.count_nonzero(array)) for array in self.arrays)
        types: Counter[str] = Counter()
        for one in described:
            if "type" in one:
                types[one["type"]] += one["count"]
        best = sorted((one for one in described if one["count"]), key=lambda one: (-one["count"], one["text"]))
        return {"entries": len(described), "found": len(best), "units": sum(one["count"] for one in described),
                "tokens": covered, "share": covered / self.corpus.tokens, **({"types": dict(types)} if types else {}),
                "top": best[:top]}


def _marks(first: np.ndarray, stop: np.ndarray, count: int) -> np.ndarray:
    """(count,) bytes: where units begin, where they go on."""
    marks = np.where(inside(first, stop, count), GOES_ON, 0).astype(np.uint8)
    marks[first] = BEGINS
    return marks


def _link(old: Path, new: Path, without: Iterable[str]) -> None:
    """The same files in a new folder: links where the disk has them, copies elsewhere."""
    for file in old.rglob("*"):
        name = file.relative_to(old)
        if file.is_dir():
            (new / name).mkdir(parents=True, exist_ok=True)
        elif name.as_posix() not in without:
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file, new / name)
            except OSError:
                shutil.copy2(file, new / name)


def _seal(corpus: Corpus, folder: Path, found: dict[str, dict[str, Any]], fields: dict[str, dict[str, Any]],
          changed: Iterable[str], replaced: Collection[str]) -> None:
    """Say in the manifest what was added, and in the checksums what it must be."""
    manifest = {**corpus.manifest, "arrays": {**corpus.manifest["arrays"], **dict.fromkeys(found, "|u1")}}
    records = {name: {key: value for key, value in side.items() if key != "top"} for name, side in found.items()}
    manifest["annotations"] = {**manifest.get("annotations", {}), **records}
    if fields:
        manifest["fields"] = {**manifest.get("fields", {}), **fields}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")
    sums = parse_object((corpus.path / CHECKSUMS).read_bytes())
    sums = {name: value for name, value in sums.items() if name not in replaced}
    sums |= {name: sha256(folder / name) for name in (MANIFEST, *changed)}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1))
