"""Cleans web text as for GPT-2's WebText and C4: normalize, deduplicate, filter by language and quality. Counts what
each step drops.

One pass, in order; only hashes of a document stay in memory. Near-duplicates are known at the end, so the remaining
documents are first written to an unnamed temporary file, which the system removes in any case.
"""

from __future__ import annotations

import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from stemma.atomic_files import atomic_file, make_folder
from stemma.errors import UserError, did_you_mean
from stemma.text.cleaning.datatrove_filters import datatrove_filters
from stemma.text.cleaning.documents import DocumentWriter, check_output, whole_documents
from stemma.text.cleaning.duplicates import HashCounts, NearDuplicates
from stemma.text.cleaning.language import LANGUAGES, identify
from stemma.text.cleaning.normalize import normalize_text
from stemma.text.cleaning.rules import CleaningRules, first_failed_rule
from stemma.text.ngrams import normalized_words
from stemma.text.readers import read_passages

EXAMPLE_CHARS = 100  # length of the excerpt shown of a dropped document


@dataclass
class FilterStats:
    """Number of documents and characters that one step dropped (or changed)."""

    setting: Any
    documents: int = 0
    characters: int = 0
    examples: list[str] = field(default_factory=list)


class Cleaner:
    """Cleans documents one by one, and counts what each step drops."""

    def __init__(self, rules: CleaningRules, languages: Sequence[str] = (), also: Sequence[str] = (), show: int = 0):
        for language in languages:
            if language not in LANGUAGES:
                raise UserError(f'--language is "{language}"; it can be {", ".join(LANGUAGES)}.'
                                f"{did_you_mean(language, LANGUAGES)}")
        self.rules, self.languages, self.show = rules, languages, show
        self.datatrove_filters = datatrove_filters(also)
        self.documents = self.characters = 0
        self.lines, self.texts = HashCounts(), HashCounts()
        thresholds = rules.model_dump()
        last_steps = {name: thresholds.pop(name) for name in ("line_documents", "near_duplicates")}
        settings = {"normalise": None, "empty": None, "exact_duplicates": None,
                    **({"language": list(languages)} if languages else {}), **thresholds, **dict.fromkeys(also),
                    **{name: value for name, value in last_steps.items() if value}}
        self.steps = {name: FilterStats(setting) for name, setting in settings.items()}

    def clean(self, raw: str) -> str | None:
        raw = raw.strip("\n")  # line ends around a document belong to the file format
        self.documents += 1
        self.characters += len(raw)
        text = normalize_text(raw)
        if text != raw:
            self._count("normalise", len(raw) - len(text))
        if not text:
            self.example("empty", raw)
            return self._drop("empty", text)
        if self.texts.times(text):
            return self._drop("exact_duplicates", text)
        self.texts.add(text)
        if self.languages and identify(text) not in self.languages:
            return self._drop("language", text)
        if (rule := first_failed_rule(text, self.rules)) is not None:
            return self._drop(rule, text)
        for name, apply_filter in self.datatrove_filters.items():
            remaining, reason = apply_filter(text)
            if not remaining:
                return self._drop(name, text, reason)
            self.steps[name].characters += len(text) - len(remaining)
            text = remaining
        return self._without_shared_lines(text) if self.rules.line_documents else text

    def _without_shared_lines(self, text: str) -> str | None:
        lines = text.split("\n")
        remaining = [line for line in lines if not line or self.lines.times(line) < self.rules.line_documents]
        cleaned = normalize_text("\n".join(remaining)) if len(remaining) < len(lines) else text
        if len(normalized_words(cleaned)) < max(1, self.rules.min_words):
            return self._drop("line_documents", text)
        self.steps["line_documents"].characters += len(text) - len(cleaned)
        for line in dict.fromkeys(remaining):  # only written lines count, once per document
            self.lines.add(line)
        return cleaned

    def _drop(self, name: str, text: str, reason: str = "") -> str | None:
        self._count(name, len(text))
        self.example(name, text, reason)
        return None

    def _count(self, name: str, characters: int) -> None:
        self.steps[name].documents += 1
        self.steps[name].characters += characters

    def example(self, name: str, text: str, reason: str = "") -> None:
        if text and len(self.steps[name].examples) < self.show:
            start = " ".join(text[: 4 * EXAMPLE_CHARS].split())
            short = start if len(start) <= EXAMPLE_CHARS else start[: EXAMPLE_CHARS - 1] + "…"
            self.steps[name].examples.append(f"{reason}: {short}" if reason else short)


def clean(
    paths: Sequence[str | Path], out: str | Path, *, rules: CleaningRules | None = None, languages: Sequence[str] = (),
    also: Sequence[str] = (), documents: str = "blank", field: str = "text", encoding: str = "utf-8",
    errors: str = "strict", show: int = 0, overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Clean the text of these files into one file; returns the statistics of each step."""
    out = Path(out)
    check_output(out, overwrite)
    cleaner = Cleaner(rules or CleaningRules(), languages, also, show)
    threshold = cleaner.rules.near_duplicates
    passages = read_passages(paths, documents=documents, field=field, encoding=encoding, errors=errors)
    start_time = time.perf_counter()
    make_folder(out.parent)
    with atomic_file(out) as target, tempfile.TemporaryFile(dir=out.parent) as temporary:
        writer = DocumentWriter(temporary if threshold else target, out.suffix.lower(), documents)
        near_duplicates = NearDuplicates(threshold) if threshold else None
        lengths = array("q")
        for raw in whole_documents(passages):
            text = cleaner.clean(raw)
            if text is not None:
                writer.write(text)
                lengths.append(len(text))
                if near_duplicates:
                    near_duplicates.add(text)
            if progress:
                progress(cleaner.characters)
        if near_duplicates and lengths:
            _copy_without_duplicates(temporary, target, near_duplicates, cleaner, writer.ends, lengths)
        steps = cleaner.steps
        duplicates = steps["near_duplicates"] if near_duplicates else FilterStats(None)
        if len(lengths) == duplicates.documents:
            largest = max((name for name in steps if name != "normalise"), key=lambda name: steps[name].documents)
            raise UserError(f"nothing is left of {cleaner.documents:,} documents; most fell to {largest} "
                            f"({steps[largest].documents:,}): look at them with --show 5, and loosen it with --set.")
        seconds = time.perf_counter() - start_time
    return {
        "out": str(out), "documents_in": cleaner.documents, "documents_out": len(lengths) - duplicates.documents,
        "characters_in": cleaner.characters, "characters_out": sum(lengths) - duplicates.characters,
        "steps": [{"step": name, **vars(step)} for name, step in steps.items()], "seconds": seconds,
        "characters_per_second": cleaner.characters / seconds,
    }


def _copy_without_duplicates(source: IO[bytes], target: IO[bytes], near: NearDuplicates, cleaner: Cleaner,
                             ends: Sequence[int], lengths: Sequence[int]) -> None:
    """Copy the documents that have no earlier near-duplicate."""
    step = cleaner.steps["near_duplicates"]
    source.seek(0)
    start = 0
    for end, length, original in zip(ends, lengths, near.duplicate_of().tolist(), strict=True):
        content = source.read(end - start)
        if original < 0:
            target.write(content)
        else:
            step.documents += 1
            step.characters += length
            cleaner.example("near_duplicates", content.decode(), f"document {original + 1} of those left")
        start = end
