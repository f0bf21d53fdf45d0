"""Readers of tagged words (CoNLL-2003: one word per line, its tag in the last column), and tagging schemes.

Files: columns separated by tabs or spaces, an empty line between sentences, -DOCSTART- lines and comments skipped
(https://www.clips.uantwerpen.be/conll2003/ner/); a table with a sentence and its tags in two cells, separated by spaces
or by the character \\x02 (UER-py, ERNIE); JSON lines with `words` and `tags`.

Schemes: IOB1 (arXiv:cmp-lg/9505040) uses B- only for an entity that follows another of its type, IOB2 for every entity,
and BIOES also marks ends and single words. Tags without such prefixes (parts of speech) are plain.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from stemma.errors import UserError, pluralize
from stemma.tasks.data.examples import TaggedExample
from stemma.tasks.data.file_reader import ErrorCollector, FileReader
from stemma.tasks.data.text_tables import Names, resolve_columns
from stemma.text.tables import Table

logger = logging.getLogger(__name__)

SCHEMES = ("plain", "IOB1", "IOB2", "BIOES")
DOCUMENT_MARKER = "-DOCSTART-"
PREFIXED_TAG = re.compile(r"([BIES])-(.+)")
BLANKS = re.compile(r"[ \t]+")  # not \s: Chinese files tag the full-width space
CELL_SEPARATOR = re.compile("\x02| +")


def read_conll(path: str | Path, columns: Mapping[str, str] | None, reader: FileReader) -> list[TaggedExample]:
    """Read the sentences of a file in any of the three formats, and check the tags."""
    names = resolve_columns({"words": ("words", "tokens", "text_a", "text"),
                             "tags": ("tags", "ner_tags", "labels", "label")},
                            columns)
    if reader.is_json_lines(path):
        examples = _rows(reader.table(path), names)
    else:
        name, text = reader.text(path)
        first = [cell.strip() for cell in text.lstrip("\n").split("\n", 1)[0].split("\t")]
        if len(first) <= 2 and first[0] in names["words"] and first[-1] in names["words"] + names["tags"]:
            lines = [(line_number, line.split("\t")) for line_number, line in enumerate(text.split("\n"), 1)
                     if line.strip()][1:]
            examples = _rows(Table(name, first, [dict(zip(first, cells, strict=False)) for _, cells in lines],
                                   [line_number for line_number, _ in lines]), names)
        else:
            examples = _lines(name, text)
    if not examples:
        raise UserError(f"{path} has no sentence; put a word and its tag on each line.")
    check_tags(examples, str(path), reader)
    return examples


def _lines(name: str, text: str) -> list[TaggedExample]:
    lines = [(line_number, line.split("\t") if "\t" in line else BLANKS.split(line.strip(" ")))
             for line_number, line in enumerate(text.split("\n"), 1)]
    word_lines = [cells for _, cells in lines if any(cells) and cells[0] != DOCUMENT_MARKER]
    widths = Counter(len(cells) for cells in word_lines)
    width = max(widths, key=lambda count: widths[count], default=0)
    tags = {"O", *(cells[-1] for cells in word_lines if not cells[0].startswith("#"))}
    problems, examples = ErrorCollector(name), []
    first_line, words, word_tags = 0, list[str](), list[str]()

    def end_sentence() -> None:
        nonlocal words, word_tags
        if words:
            examples.append(TaggedExample(f"{name}, line {first_line}", tuple(words),
                                          tuple(word_tags) if width > 1 else None))
        words, word_tags = [], []

    for line_number, cells in lines:
        if not any(cells) or cells[0].split(" ", 1)[0] == DOCUMENT_MARKER:
            end_sentence()
        elif cells[0].startswith("#") and not words and (len(cells) != width or cells[-1] not in tags):
            continue  # a comment; a line like "# O" is the word "#"
        elif len(cells) != width:
            problems.add(f"{name}, line {line_number}",
                         f"{pluralize(len(cells), 'column')} where other lines have {width}")
        elif not cells[0] or not cells[-1]:
            problems.add(f"{name}, line {line_number}", f"no {'word' if not cells[0] else 'tag'}")
        else:
            first_line = first_line if words else line_number
            words.append(cells[0])
            word_tags.append(cells[-1])
    end_sentence()
    problems.raise_if_any()
    return examples


def _rows(table: Table, names: Mapping[str, Names]) -> list[TaggedExample]:
    columns = {role: next((name for name in aliases if name in table.columns), None) for role, aliases in names.items()}
    words_column, tags_column = columns["words"], columns["tags"]
    if words_column is None:
        raise UserError(f"{table.name} has no column {names['words'][0]}; it has {', '.join(table.columns)}.")
    problems, examples = ErrorCollector(table.name), []
    for index, row in enumerate(table.rows):
        where = table.location(index)
        words = _parse_list(row.get(words_column))
        tags = None if tags_column is None else _parse_list(row.get(tags_column))
        if not words:
            problems.add(where, "no words")
        elif tags is not None and len(words) != len(tags):
            problems.add(where, f"{len(words):,} words and {len(tags):,} tags")
        else:
            examples.append(TaggedExample(where, words, tags))
    problems.raise_if_any()
    return examples


def _parse_list(cell: object) -> tuple[str, ...]:
    """Words of a JSON list, or of a table cell."""
    if isinstance(cell, list):
        return tuple(str(word) for word in cell)
    return tuple(word for word in CELL_SEPARATOR.split(str(cell or "")) if word)


def check_tags(examples: Sequence[TaggedExample], name: str, reader: FileReader) -> str:
    """Detect the scheme; raise an error that lists all invalid tags and tag sequences."""
    scheme = detect_scheme(examples)
    problems = ErrorCollector(name)
    mixed = ""
    for example in examples:
        for index, problem in _scheme_violations(example.tags or (), scheme):
            where = f"{example.where}, word {index + 1} ({example.words[index]})"
            if scheme == "IOB1" and problem:
                mixed = mixed or where
            else:
                problems.add(where, problem)
    problems.raise_if_any()
    if mixed:
        logger.warning(f"{name}: some entities begin with B- and some with I-, as no scheme has it ({mixed}); both are "
                       "read as beginnings, as conlleval does.")
    return scheme


def detect_scheme(examples: Sequence[TaggedExample]) -> str:
    """One of SCHEMES, detected from the tags."""
    tags = {tag for example in examples for tag in example.tags or ()}
    prefixes = [match[1] for tag in tags if (match := PREFIXED_TAG.fullmatch(tag))]
    if not prefixes or ("O" not in tags and len(prefixes) < len(tags)):
        return "plain"
    if {"E", "S"} & set(prefixes):
        return "BIOES"
    starts_with_i = any(tag.startswith("I-") and (previous == "O" or previous[2:] != tag[2:])
                        for example in examples for previous, tag in _adjacent_tags(example.tags or ()))
    return "IOB1" if starts_with_i else "IOB2"


def _scheme_violations(tags: Sequence[str], scheme: str) -> Iterator[tuple[int, str]]:
    """(word index, problem)."""
    if scheme == "plain":
        return
    for index, (previous, tag) in enumerate(_adjacent_tags(tags)):
        if tag != "O" and (not PREFIXED_TAG.fullmatch(tag) or (scheme != "BIOES" and tag[0] in "ES")):
            yield index, f'"{tag}" is not a tag of {scheme}'
        elif scheme == "IOB1" and tag[0] == "B" and previous[2:] != tag[2:]:
            yield index, f"{tag} after {previous}"
        elif scheme == "BIOES":
            open_type = previous[2:] if previous[0] in "BI" and previous != "O" else None
            continued_type = tag[2:] if tag[0] in "IE" and tag != "O" else None
            if open_type != continued_type:
                yield index, f"{tag} after {previous if index else 'the beginning'}"
    if scheme == "BIOES" and tags and tags[-1] != "O" and tags[-1][0] in "BI":
        yield len(tags) - 1, f"{tags[-1]} at the end"


def _adjacent_tags(tags: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(("O", *tags), tags, strict=False)


def to_iob2(tags: Sequence[str], scheme: str) -> tuple[str, ...]:
    """Convert tags to IOB2: the same entities, each starting with B-."""
    if scheme == "plain":
        return tuple(tags)
    converted = []
    for previous, tag in _adjacent_tags(tags):
        begins = tag[0] in "BS" or previous == "O" or previous[0] in "ES" or previous[2:] != tag[2:]
        converted.append(tag if tag == "O" else f"{'B' if begins else 'I'}-{tag[2:]}")
    return tuple(converted)
