"""Adds annotations to a corpus: phrases, entities, speakers. An annotation is an array of one byte per token in each
shard. The corpus keeps its fingerprint, since its text does not change. Vectors per token or document are float fields
(`fields.py`).

The new folder is written next to the old one, with hard links to unchanged files, and then replaces it.
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
from stemma.errors import UserError, first_problems
from stemma.json_files import parse_object
from stemma.text.lexicon import AnnotatedSpans, Lexicon, read_annotations

MINE = "mine"
ANNOTATION_NAMES = ("phrases", "entities", ROLES, RELEVANCE)  # reserved, whether or not a corpus has them
BEGIN, INSIDE = 1, 2  # marks of a unit's first token and of its other tokens
MAX_SPEAKERS = 254  # 1 + speaker must fit a byte; 0 is no speaker
ProgressCallback = Callable[[int], None]


def annotate(path: str | Path, *, phrases: str | Path | None = None, entities: str | Path | None = None,
             speakers: str | Path | None = None, min_count: int = 10, threshold: float = 0.5, max_words: int = 4,
             encoding: str = "utf-8", top: int = 10, overwrite: bool = False,
             token_fields: Mapping[str, ArraySource] | None = None,
             document_fields: Mapping[str, ArraySource] | None = None,
             progress: ProgressCallback | None = None) -> dict[str, Any]:
    """Add annotations to a corpus: `phrases` is "mine" or a file, the others are files (see `text/lexicon.py`).
    `token_fields` and `document_fields` map a name to an array or a .npy file with a row for each token or document.
    Returns a summary of each annotation. Calls `progress` with the number of tokens processed so far."""
    sources = {name: source for name, source in (("phrases", phrases), ("entities", entities), ("roles", speakers))
               if source is not None}
    if not sources and not token_fields and not document_fields:
        raise UserError("there is nothing to annotate; name --phrases mine, --phrases FILE, --entities FILE, "
                        "--roles FILE, --token-field NAME=FILE.npy or --document-field NAME=FILE.npy.")
    if min_count < 1 or max_words < 2 or not -1 <= threshold <= 1:
        raise UserError(f"--min-count {min_count}, --longest {max_words} and --threshold {threshold:g}: they must be "
                        "at least 1, at least 2, and between -1 and 1.")
    path = Path(path)
    if not path.is_dir():
        Corpus.open(path)  # raises an error that describes the path
    # One process at a time: a second one must see the annotations of the first.
    with lock_folder(path, f"corpus {path} is being annotated by another command; wait until that is done."):
        corpus = Corpus.open(path)
        new_fields = read_fields(token_fields or {}, document_fields or {},
                                 {"token": corpus.num_tokens, "document": corpus.manifest["documents"]},
                                 [*corpus.manifest["arrays"], *ANNOTATION_NAMES, TEXT])
        existing = [name for name in sources if name in corpus.annotations()]
        existing += [field.name for field in new_fields if field.name in corpus.fields]
        if existing and not overwrite:
            raise UserError(f"corpus {path} has {' and '.join(existing)} already; add --overwrite to replace them.")
        annotations = {name: _read(name, source, encoding, corpus) for name, source in sources.items()}
        summaries: dict[str, dict[str, Any]] = {}
        shards = corpus.manifest["shards"]
        changed = [f"{shard['folder']}/{name}.bin" for shard in shards for name in sources]
        changed += [file for field in new_fields for file in field_files(field.name, field.per, shards)]
        replaced = {file for field in new_fields if field.name in corpus.fields
                    for file in field_files(field.name, corpus.fields[field.name].per, shards)}
        with atomic_folder(path.resolve(), overwrite=True, checksums=False) as folder:
            _link_files(path, folder, {MANIFEST, CHECKSUMS, *changed, *replaced})
            for field in new_fields:
                field.write(folder, shards)
            for name, annotation in annotations.items():
                arrays = [np.memmap(folder / shard["folder"] / f"{name}.bin", np.uint8, "w+", shape=(shard["tokens"],))
                          for shard in corpus.manifest["shards"]]
                writer = AnnotationWriter(corpus, arrays)
                if annotation is None:
                    summaries[name] = writer.write_mined(min_count, threshold, max_words, top, progress)
                elif isinstance(annotation, Lexicon):
                    summaries[name] = writer.write_matches(annotation, top, progress)
                else:
                    summaries[name] = writer.write_spans(annotation, name == "roles", top)
                for array in arrays:
                    array.flush()
                if annotation is not None:
                    source = Path(sources[name])
                    summaries[name] |= {"file": source.name, "sha256": sha256(source)}
            fields = {field.name: field.record() for field in new_fields}
            _update_manifest(corpus, folder, summaries, fields, changed, replaced)
    result = {"corpus": str(path), "tokens": corpus.num_tokens, "annotations": summaries}
    return {**result, "fields": fields} if fields else result


def _read(name: str, source: str | Path, encoding: str, corpus: Corpus) -> Lexicon | AnnotatedSpans | None:
    """The annotations of a file; None if phrases are to be mined."""
    if name == "phrases" and str(source) == MINE:
        return None
    annotation = read_annotations(source, encoding)
    if isinstance(annotation, AnnotatedSpans):
        _check_spans(source, annotation, corpus, are_speakers=name == "roles")
    elif name == "roles":
        raise UserError(f"{source} is a lexicon, and roles are given by span; write document, start, end and role, a "
                        "line each.")
    return annotation


def _check_spans(source: str | Path, spans: AnnotatedSpans, corpus: Corpus, are_speakers: bool) -> None:
    """Check that spans are inside their documents, and that speakers are named."""
    count = len(corpus.document_starts) - 1
    lengths = {int(document): len(corpus.document_text(int(document))) for document in np.unique(spans.table[:, 0])
               if document < count}
    problems = []
    for (document, _, end), kind, line in zip(spans.table.tolist(), spans.kinds, spans.lines.tolist(), strict=True):
        if document >= count:
            problems.append((f"line {line}", f"there is no document {document}; the last one is {count - 1}"))
        elif end > lengths[document]:
            problems.append((f"line {line}", f"ends at {end}, and document {document} has {lengths[document]} "
                                             "characters"))
        elif are_speakers and kind is None:
            problems.append((f"line {line}", "has no speaker; add a fourth column, or a type"))
    if not problems and are_speakers and len(set(spans.kinds)) > MAX_SPEAKERS:
        problems.append(("", f"there are {len(set(spans.kinds))} roles, and at most {MAX_SPEAKERS} can be told apart"))
    if problems:
        raise UserError(f"{source} does not fit the corpus {corpus.path}:", first_problems(problems))


class AnnotationWriter:
    """Writes one annotation array: a byte for each token."""

    def __init__(self, corpus: Corpus, arrays: Sequence[np.ndarray]):
        self.corpus, self.arrays = corpus, arrays
        self.bounds = np.cumsum([0, *(len(array) for array in arrays)])

    def write_mined(self, min_count: int, threshold: float, max_words: int, top: int,
                    progress: ProgressCallback | None) -> dict[str, Any]:
        phrases = mine_phrases(self.corpus, min_count, threshold, max_words, progress)
        units = self._find_and_write([phrase.text for phrase in phrases], characters=False)
        described = [{"text": phrase.text, "count": int(count), "score": round(phrase.score, 4)}
                     for phrase, count in zip(phrases, units, strict=True)]
        return {"source": "mined", "score": SCORE, "min_count": min_count, "threshold": threshold, "longest": max_words,
                **self._summary(described, top)}

    def write_matches(self, lexicon: Lexicon, top: int, progress: ProgressCallback | None) -> dict[str, Any]:
        """Chinese entries may begin and end at any character: a word segmenter does not know a lexicon's names."""
        units = self._find_and_write(list(lexicon.entries), characters=True, progress=progress)
        described = [{"text": entry, "count": int(count), **({"type": kind} if kind else {})}
                     for (entry, kind), count in zip(lexicon.entries.items(), units, strict=True)]
        return {"source": "lexicon", **self._summary(described, top)}

    def write_spans(self, spans: AnnotatedSpans, are_speakers: bool, top: int) -> dict[str, Any]:
        """A token that overlaps a span belongs to it, unless it already belongs to the previous span."""
        kind_ids = {kind: 1 + index for index, kind in enumerate(dict.fromkeys(spans.kinds))}
        counts: Counter[tuple[str, str | None]] = Counter()
        edges = np.flatnonzero(np.diff(spans.table[:, 0], prepend=-1, append=-1))
        for rows in map(slice, edges[:-1], edges[1:]):
            document = int(spans.table[rows.start, 0])
            first, document_end = (int(bound) for bound in self.corpus.document_starts[document:document + 2])
            starts = self.corpus.values_between("starts", first, document_end)
            ends = starts + self.corpus.values_between("lengths", first, document_end)
            start = np.searchsorted(ends, spans.table[rows, 1], side="right")
            stop = np.searchsorted(starts, spans.table[rows, 2], side="left")
            start[1:] = np.maximum(start[1:], np.maximum.accumulate(stop)[:-1])
            nonempty = np.flatnonzero(stop > start)
            marks = _begin_inside_marks(start[nonempty], stop[nonempty], document_end - first)
            kinds = [spans.kinds[rows.start + index] for index in nonempty]
            if are_speakers:
                marks[marks > 0] = np.repeat([kind_ids[kind] for kind in kinds], (stop - start)[nonempty])
            self._write(first, marks)
            text = self.corpus.document_text(document)
            counts.update((" ".join(text[slice(*spans.table[rows.start + index, 1:])].split()), kind)
                          for index, kind in zip(nonempty, kinds, strict=True))
        described = [{"text": text, "count": count, **({"type": kind} if kind else {})}
                     for (text, kind), count in counts.items()]
        summary = {"source": "spans", **self._summary(described, top)}
        return {**summary, "roles": list(kind_ids)} if are_speakers else summary

    def _find_and_write(self, entries: list[str], characters: bool,
                        progress: ProgressCallback | None = None) -> np.ndarray:
        """Mark all matches; returns (entries,) the number of matches of each."""
        units = np.zeros(len(entries), np.int64)
        tokenizer = self.corpus.tokenizer
        matcher = LexiconMatcher([tokenizer.pre_normalize(entry) for entry in entries], tokenizer.lowercase)
        for chunk in iter_text_chunks(self.corpus, characters):
            first, stop, entry = matcher.find(chunk)
            units += np.bincount(entry, minlength=len(entries))
            self._write(chunk.first_token, _begin_inside_marks(first, stop, chunk.num_tokens))
            if progress:
                progress(chunk.first_token + chunk.num_tokens)
        return units

    def _write(self, first_token: int, marks: np.ndarray) -> None:
        """Write marks from a global token index on; they may span several shards."""
        for index, array in enumerate(self.arrays):
            low, high = self.bounds[index:index + 2]
            start, stop = max(first_token, low), min(first_token + len(marks), high)
            if start < stop:
                array[start - low:stop - low] = marks[start - first_token:stop - first_token]

    def _summary(self, described: list[dict[str, Any]], top: int) -> dict[str, Any]:
        covered = sum(int(np.count_nonzero(array)) for array in self.arrays)
        types: Counter[str] = Counter()
        for entry in described:
            if "type" in entry:
                types[entry["type"]] += entry["count"]
        best = sorted((entry for entry in described if entry["count"]),
                      key=lambda entry: (-entry["count"], entry["text"]))
        return {"entries": len(described), "found": len(best), "units": sum(entry["count"] for entry in described),
                "tokens": covered, "share": covered / self.corpus.num_tokens,
                **({"types": dict(types)} if types else {}),
                "top": best[:top]}


def _begin_inside_marks(first: np.ndarray, stop: np.ndarray, count: int) -> np.ndarray:
    """(count,) bytes: BEGIN at a unit's first token, INSIDE at its other tokens, 0 elsewhere."""
    marks = np.where(covered_tokens(first, stop, count), INSIDE, 0).astype(np.uint8)
    marks[first] = BEGIN
    return marks


def _link_files(old: Path, new: Path, excluded: Iterable[str]) -> None:
    """Hard-link the files into a new folder; copy them if the file system has no hard links."""
    for file in old.rglob("*"):
        name = file.relative_to(old)
        if file.is_dir():
            (new / name).mkdir(parents=True, exist_ok=True)
        elif name.as_posix() not in excluded:
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file, new / name)
            except OSError:
                shutil.copy2(file, new / name)


def _update_manifest(corpus: Corpus, folder: Path, annotations: dict[str, dict[str, Any]],
                     fields: dict[str, dict[str, Any]], changed: Iterable[str], replaced: Collection[str]) -> None:
    """Add the annotations and fields to the manifest, and the new files to the checksums."""
    manifest = {**corpus.manifest, "arrays": {**corpus.manifest["arrays"], **dict.fromkeys(annotations, "|u1")}}
    records = {name: {key: value for key, value in summary.items() if key != "top"}
               for name, summary in annotations.items()}
    manifest["annotations"] = {**manifest.get("annotations", {}), **records}
    if fields:
        manifest["fields"] = {**manifest.get("fields", {}), **fields}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")
    sums = parse_object((corpus.path / CHECKSUMS).read_bytes())
    sums = {name: value for name, value in sums.items() if name not in replaced}
    sums |= {name: sha256(folder / name) for name in (MANIFEST, *changed)}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1))
