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

from stemma.atomic_files import CHECKSUMS, atomic_folder, lock_folder, sha256
from stemma.corpus.corpus import MANIFEST, TEXT, Corpus
from stemma.corpus.fields import ArraySource, field_files, read_fields
from stemma.corpus.lexicon_matcher import LexiconMatcher, covered_tokens
from stemma.corpus.phrase_mining import SCORE, mine_phrases
from stemma.corpus.text_batches import RELEVANCE, ROLES
from stemma.corpus.text_chunks import iter_text_chunks
from stemma.errors import UserError
from stemma.json_files import parse_object
from stemma.text.lexicon import SHOWN, AnnotatedSpans, Lexicon, read_annotations

MINE = "mine"
ANNOTATION_NAMES = ("phrases", "entities", ROLES, RELEVANCE)  # names that side arrays have, whether or not they are
#                                                               there
BEGIN, INSIDE = 1, 2  # what a unit's first token is marked with, and its others
MAX_SPEAKERS = 254  # that a byte can tell apart, beside none
ProgressCallback = Callable[[int], None]


def annotate(path: str | Path, *, phrases: str | Path | None = None, entities: str | Path | None = None,
             speakers: str | Path | None = None, min_count: int = 10, threshold: float = 0.5, max_words: int = 4,
             encoding: str = "utf-8", top: int = 10, overwrite: bool = False,
             token_fields: Mapping[str, ArraySource] | None = None, document_fields: Mapping[str,
                                                                                             ArraySource] | None = None,
             progress: ProgressCallback | None = None) -> dict[str, Any]:
    """Add side arrays to a corpus: `phrases` is "mine" or a file, the others are files (see `text/lexicon.py`).
    `token_fields` and `document_fields`: by name an array or a .npy file with a row of numbers for each token or
    document. Returns what was found, by side; `progress` hears how many tokens of the text have been looked at."""
    wanted = {name: source for name, source in (("phrases", phrases), ("entities", entities), ("roles", speakers))
              if source is not None}
    if not wanted and not token_fields and not document_fields:
        raise UserError("there is nothing to annotate; name --phrases mine, --phrases FILE, --entities FILE, "
                        "--roles FILE, --token-field NAME=FILE.npy or --document-field NAME=FILE.npy.")
    if min_count < 1 or max_words < 2 or not -1 <= threshold <= 1:
        raise UserError(f"--min-count {min_count}, --longest {max_words} and --threshold {threshold:g}: they must be at "
                        "least 1, at least 2, and between -1 and 1.")
    path = Path(path)
    if not path.is_dir():
        Corpus.open(path)  # says what is there instead
    # Whoever comes second must see what the first one added, so the corpus is opened by one at a time.
    with lock_folder(path, f"corpus {path} is being annotated by another command; wait until that is done."):
        corpus = Corpus.open(path)
        numbers = read_fields(token_fields or {}, document_fields or {},
                               {"token": corpus.num_tokens, "document": corpus.manifest["documents"]},
                               [*corpus.manifest["arrays"], *ANNOTATION_NAMES, TEXT])
        there = [name for name in wanted if name in corpus.annotations()]
        there += [one.name for one in numbers if one.name in corpus.fields]
        if there and not overwrite:
            raise UserError(f"corpus {path} has {' and '.join(there)} already; add --overwrite to replace them.")
        read = {name: _read(name, source, encoding, corpus) for name, source in wanted.items()}
        found: dict[str, dict[str, Any]] = {}
        shards = corpus.manifest["shards"]
        changed = [f"{shard['folder']}/{name}.bin" for shard in shards for name in wanted]
        changed += [file for one in numbers for file in field_files(one.name, one.per, shards)]
        replaced = {file for one in numbers if one.name in corpus.fields
                    for file in field_files(one.name, corpus.fields[one.name].per, shards)}
        with atomic_folder(path.resolve(), overwrite=True, checksums=False) as folder:
            _link_files(path, folder, {MANIFEST, CHECKSUMS, *changed, *replaced})
            for one in numbers:
                one.write(folder, shards)
            for name, marks in read.items():
                arrays = [np.memmap(folder / shard["folder"] / f"{name}.bin", np.uint8, "w+", shape=(shard["tokens"],))
                          for shard in corpus.manifest["shards"]]
                side = AnnotationWriter(corpus, arrays)
                if marks is None:
                    found[name] = side.write_mined(min_count, threshold, max_words, top, progress)
                elif isinstance(marks, Lexicon):
                    found[name] = side.write_matches(marks, top, progress)
                else:
                    found[name] = side.write_spans(marks, name == "roles", top)
                for array in arrays:
                    array.flush()
                if marks is not None:
                    found[name] |= {"file": Path(wanted[name]).name, "sha256": sha256(Path(wanted[name]))}
            fields = {one.name: one.record() for one in numbers}
            _update_manifest(corpus, folder, found, fields, changed, replaced)
    told = {"corpus": str(path), "tokens": corpus.num_tokens, "annotations": found}
    return {**told, "fields": fields} if fields else told


def _read(name: str, source: str | Path, encoding: str, corpus: Corpus) -> Lexicon | AnnotatedSpans | None:
    """What a file says, or None: to be mined."""
    if name == "phrases" and str(source) == MINE:
        return None
    marks = read_annotations(source, encoding)
    if isinstance(marks, AnnotatedSpans):
        _check_spans(source, marks, corpus, are_speakers=name == "roles")
    elif name == "roles":
        raise UserError(f"{source} is a lexicon, and roles are given by span; write document, start, end and role, a "
                        "line each.")
    return marks


def _check_spans(source: str | Path, spans: AnnotatedSpans, corpus: Corpus, are_speakers: bool) -> None:
    """Every span must lie inside its document, and roles must be named."""
    count = len(corpus.document_starts) - 1
    lengths = {int(number): len(corpus.document_text(int(number))) for number in np.unique(spans.table[:,
        0]) if number < count}
    problems = []
    for (document, _, end), kind, line in zip(spans.table.tolist(), spans.kinds, spans.lines.tolist(), strict=True):
        if document >= count:
            problems.append((f"line {line}", f"there is no document {document}; the last one is {count - 1}"))
        elif end > lengths[document]:
            problems.append((f"line {line}", f"ends at {end}, and document {document} has {lengths[document]} "
                                             "characters"))
        elif are_speakers and kind is None:
            problems.append((f"line {line}", "says not who speaks; add a fourth column, or a type"))
    if not problems and are_speakers and len(set(spans.kinds)) > MAX_SPEAKERS:
        problems.append(("", f"there are {len(set(spans.kinds))} roles, and at most {MAX_SPEAKERS} can be told apart"))
    if problems:
        raise UserError(f"{source} does not fit the corpus {corpus.path}:", problems[:SHOWN])


class AnnotationWriter:
    """One side array being filled: a byte for each token."""

    def __init__(self, corpus: Corpus, arrays: Sequence[np.ndarray]):
        self.corpus, self.arrays = corpus, arrays
        self.bounds = np.cumsum([0, *(len(array) for array in arrays)])

    def write_mined(self, min_count: int, threshold: float, max_words: int, top: int,
              progress: ProgressCallback | None) -> dict[str, Any]:
        found = mine_phrases(self.corpus, min_count, threshold, max_words, progress)
        units = self._find_and_write([phrase.text for phrase in found], characters=False)
        described = [{"text": phrase.text, "count": int(count), "score": round(phrase.score, 4)}
                     for phrase, count in zip(found, units, strict=True)]
        return {"source": "mined", "score": SCORE, "min_count": min_count, "threshold": threshold, "longest": max_words,
                **self._summary(described, top)}

    def write_matches(self, lexicon: Lexicon, top: int, progress: ProgressCallback | None) -> dict[str, Any]:
        """Chinese entries may begin and end with any character: a segmenter does not know the names of a lexicon."""
        units = self._find_and_write(list(lexicon.entries), characters=True, progress=progress)
        described = [{"text": entry, "count": int(count), **({"type": kind} if kind else {})}
                     for (entry, kind), count in zip(lexicon.entries.items(), units, strict=True)]
        return {"source": "lexicon", **self._summary(described, top)}

    def write_spans(self, spans: AnnotatedSpans, are_speakers: bool, top: int) -> dict[str, Any]:
        """Every token that a span touches belongs to it, unless the span before it has it already."""
        number = {kind: 1 + place for place, kind in enumerate(dict.fromkeys(spans.kinds))}
        counts: Counter[tuple[str, str | None]] = Counter()
        edges = np.flatnonzero(np.diff(spans.table[:, 0], prepend=-1, append=-1))
        for here in map(slice, edges[:-1], edges[1:]):
            document = int(spans.table[here.start, 0])
            first, behind = (int(bound) for bound in self.corpus.document_starts[document:document + 2])
            starts = self.corpus.values_between("starts", first, behind)
            ends = starts + self.corpus.values_between("lengths", first, behind)
            start = np.searchsorted(ends, spans.table[here, 1], side="right")
            stop = np.searchsorted(starts, spans.table[here, 2], side="left")
            start[1:] = np.maximum(start[1:], np.maximum.accumulate(stop)[:-1])
            kept = np.flatnonzero(stop > start)
            marks = _begin_inside_marks(start[kept], stop[kept], behind - first)
            kinds = [spans.kinds[here.start + place] for place in kept]
            if are_speakers:
                marks[marks > 0] = np.repeat([number[kind] for kind in kinds], (stop - start)[kept])
            self._write(first, marks)
            text = self.corpus.document_text(document)
            counts.update((" ".join(text[slice(*spans.table[here.start + place, 1:])].split()), kind)
                          for place, kind in zip(kept, kinds, strict=True))
        described = [{"text": text, "count": count, **({"type": kind} if kind else {})}
                     for (text, kind), count in counts.items()]
        return {"source": "spans", **self._summary(described, top)} | ({"roles": list(number)} if are_speakers else {})

    def _find_and_write(self, entries: list[str], characters: bool, progress: ProgressCallback
                        | None = None) -> np.ndarray:
        """(entries,) how often each was found and marked."""
        units = np.zeros(len(entries), np.int64)
        tokenizer = self.corpus.tokenizer
        matcher = LexiconMatcher([tokenizer.pre_normalize(entry) for entry in entries], tokenizer.lowercase)
        for stretch in iter_text_chunks(self.corpus, characters):
            first, stop, entry = matcher.find(stretch)
            units += np.bincount(entry, minlength=len(entries))
            self._write(stretch.first_token, _begin_inside_marks(first, stop, stretch.num_tokens))
            if progress:
                progress(stretch.first_token + stretch.num_tokens)
        return units

    def _write(self, first_token: int, marks: np.ndarray) -> None:
        """A stretch may hold documents of several shards."""
        for number, array in enumerate(self.arrays):
            low, high = self.bounds[number:number + 2]
            start, stop = max(first_token, low), min(first_token + len(marks), high)
            if start < stop:
                array[start - low:stop - low] = marks[start - first_token:stop - first_token]

    def _summary(self, described: list[dict[str, Any]], top: int) -> dict[str, Any]:
        covered = sum(int(np.count_nonzero(array)) for array in self.arrays)
        types: Counter[str] = Counter()
        for one in described:
            if "type" in one:
                types[one["type"]] += one["count"]
        best = sorted((one for one in described if one["count"]), key=lambda one: (-one["count"], one["text"]))
        return {"entries": len(described), "found": len(best), "units": sum(one["count"] for one in described),
                "tokens": covered, "share": covered / self.corpus.num_tokens,
                **({"types": dict(types)} if types else {}),
                "top": best[:top]}


def _begin_inside_marks(first: np.ndarray, stop: np.ndarray, count: int) -> np.ndarray:
    """(count,) bytes: where units begin, where they go on."""
    marks = np.where(covered_tokens(first, stop, count), INSIDE, 0).astype(np.uint8)
    marks[first] = BEGIN
    return marks


def _link_files(old: Path, new: Path, without: Iterable[str]) -> None:
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


def _update_manifest(corpus: Corpus, folder: Path, annotations: dict[str, dict[str, Any]],
                     fields: dict[str, dict[str, Any]],
          changed: Iterable[str], replaced: Collection[str]) -> None:
    """Say in the manifest what was added, and in the checksums what it must be."""
    manifest = {**corpus.manifest, "arrays": {**corpus.manifest["arrays"], **dict.fromkeys(annotations, "|u1")}}
    records = {name: {key: value for key, value in side.items() if key != "top"} for name, side in annotations.items()}
    manifest["annotations"] = {**manifest.get("annotations", {}), **records}
    if fields:
        manifest["fields"] = {**manifest.get("fields", {}), **fields}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")
    sums = parse_object((corpus.path / CHECKSUMS).read_bytes())
    sums = {name: value for name, value in sums.items() if name not in replaced}
    sums |= {name: sha256(folder / name) for name in (MANIFEST, *changed)}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1))
