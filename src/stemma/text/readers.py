"""Reads text files as one stream of passages: documents in parts of bounded size.

Plain text, JSON lines and Parquet, compressed or not, from files, folders, globs or stdin. Passages contain their
document's text unchanged; only parts that are all white space are left out.
"""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar

from stemma import registry
from stemma.errors import UserError, closest_match, did_you_mean, pluralize
from stemma.json_files import parse
from stemma.registry import register
from stemma.schema.corpus import ReaderKind
from stemma.text.text_io import COMPRESSED, STDIN, check_encoding, display_name, format_suffix, read_text

logger = logging.getLogger(__name__)

PASSAGE_LIMIT = 200_000
JSON_LINE_LIMIT = 1 << 28  # JSON cannot be read in parts, so a line must fit in memory
PLAIN = (".txt", ".text", ".md")
JSON_LINES = (".jsonl", ".ndjson")
WHITE_SPACE = re.compile(r"\s")
# Separators of documents in plain text. With "file" there is none.
SEPARATORS = {"blank": re.compile(r"\n(?:[^\S\n]*\n)+"), "line": re.compile(r"\n"), "file": re.compile(r"(?!)")}


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of one document, of at most about PASSAGE_LIMIT characters."""

    text: str
    starts_document: bool
    source: str


@dataclass(frozen=True)
class ReaderOptions:
    """Options of reading a file; a reader uses those that concern its format."""

    documents: str = "blank"  # what separates documents in plain text: blank (lines), line or file
    field: str = "text"  # the field of a record that has the text
    encoding: str = "utf-8"
    errors: str = "strict"  # or replace: how to treat bytes that cannot be decoded


def known_suffixes() -> tuple[str, ...]:
    """Suffixes of files that a registered reader can read, compressed or not."""
    return tuple(entry.kind + packed for entry in registry.entries("reader")
                 for packed in (("", *COMPRESSED) if entry.settings.compressible else ("",)))


def plugin_readers(paths: Iterable[str | Path]) -> list[registry.RegistryEntry]:
    """The readers from plug-ins that these paths need."""
    readers = {entry.kind: entry for entry in registry.entries("reader")
               if entry.kind not in registry.BUILT_IN["reader"]}
    if not readers:
        return []
    kinds = {format_suffix(file) for path in paths for file in _expand(str(path), known_suffixes())}
    return [entry for kind, entry in readers.items() if kind in kinds]


def list_files(paths: Iterable[str | Path], suffixes: tuple[str, ...] | None = None) -> list[Path]:
    """Files, folders (all files below with a known suffix) and globs as one list in a fixed order; each file once."""
    suffixes = known_suffixes() if suffixes is None else suffixes
    files: dict[Path, None] = {}
    problems = []
    for path in paths:
        matches = _expand(str(path), suffixes)
        files.update(dict.fromkeys(matches))
        if not matches:
            problems.append((str(path), _no_files_message(Path(path), suffixes)))
    if len(problems) == 1:
        raise UserError(f"cannot read {problems[0][0]}: {problems[0][1]}.".replace("?.", "?"))
    if problems:
        raise UserError("some of the text is not there", problems)
    if not files:
        raise UserError("no text to read: name a file, a folder, a glob, or - for stdin.")
    return list(files)


def read_passages(
    paths: Sequence[str | Path], *, documents: str = "blank", field: str = "text", encoding: str = "utf-8",
    errors: str = "strict",
) -> Iterator[Passage]:  # fmt: skip
    """All passages of all files, in order. Options are checked immediately, files when they are read."""
    if documents not in SEPARATORS:
        hint = did_you_mean(documents, SEPARATORS)
        raise UserError(f'--documents is "{documents}"; choose {", ".join(SEPARATORS)}.{hint}')
    encoding = check_encoding(encoding, errors)
    files = list_files(paths)
    return _read_all(files, ReaderOptions(documents, field, encoding, errors))


def _read_all(files: list[Path], options: ReaderOptions) -> Iterator[Passage]:
    has_text = False
    for file in files:
        reader = registry.find("reader", format_suffix(file)) or registry.get("reader", PLAIN[0])
        empty = True
        for passage in reader.build(file, options):
            empty = False
            yield passage
        has_text = has_text or not empty
        if empty and len(files) > 1:
            logger.warning(f"{display_name(file)} has no text and is skipped.")
    if not has_text:
        where = display_name(files[0]) if len(files) == 1 else f"any of the {len(files)} files"
        raise UserError(f"there is no text in {where}, only white space or nothing at all.")


def _expand(name: str, suffixes: tuple[str, ...]) -> list[Path]:
    if name == "-":
        return [STDIN]
    path = Path(name)
    if path.is_dir():
        inside = (f for f in path.rglob("*") if f.name.lower().endswith(suffixes) and f.is_file())
        return sorted(f for f in inside if not any(part.startswith(".") for part in f.relative_to(path).parts))
    if path.exists():  # also a pipe or a device, which is read like a file
        return [path]
    if not glob.has_magic(name):
        return []
    matches = (Path(match) for match in sorted(glob.glob(name, recursive=True)))  # noqa: PTH207, absolute ones too
    return [file for match in matches for file in (_expand(str(match), suffixes) if match.is_dir() else [match])]


def _no_files_message(path: Path, suffixes: tuple[str, ...]) -> str:
    if path.is_dir():
        unpacked = (suffix for suffix in suffixes if not suffix.endswith(tuple(COMPRESSED)))
        return f"the folder has no text files ({', '.join(unpacked)}, packed or not)"
    if glob.has_magic(str(path)):
        return "no file matches"
    siblings = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    best = closest_match(path.name, siblings)
    return "no such file or folder" + (f'; did you mean "{path.with_name(best)}"?' if best else "")


@register("reader", ".txt", ReaderKind)
@register("reader", ".text", ReaderKind)
@register("reader", ".md", ReaderKind)
def _plain(file: Path, options: ReaderOptions) -> Iterator[Passage]:
    source, separator = display_name(file), SEPARATORS[options.documents]
    unfinished = ""  # the rest of the current document
    starts_document = True
    reported = False
    for block in chain(read_text(file, options.encoding, options.errors), [None]):
        *finished, unfinished = separator.split(unfinished + block) if block is not None else (unfinished, "")
        # White space at the end may be the first half of a separator, so only the text before it is cut now.
        body = unfinished.rstrip()
        space = unfinished[len(body) :]
        *cut_off, remainder = _split_long_text(body)
        for pieces, is_complete in [*((_split_long_text(document), True) for document in finished), (cut_off, False)]:
            for piece in pieces:
                if piece and not piece.isspace():
                    yield Passage(piece, starts_document, source)
                    starts_document = False
            cut_at_limit = pieces[:-1] if is_complete else pieces
            if not reported and any("\n" not in piece for piece in cut_at_limit):
                reported = True
                logger.info(f"{source}: a line of more than {PASSAGE_LIMIT:,} characters is read in pieces.")
            starts_document = starts_document or is_complete
        if len(space) > PASSAGE_LIMIT:
            space = "\n" if "\n" in space else " "
        unfinished = remainder + space


def _split_long_text(text: str) -> list[str]:
    """Parts of at most PASSAGE_LIMIT characters: cut after a line end, else after white space, else at the limit."""
    pieces = []
    start = 0
    while (limit := start + PASSAGE_LIMIT) < len(text):
        end = text.rfind("\n", start, limit) + 1
        if end == 0:
            nearby = WHITE_SPACE.finditer(text, max(start, limit - 10_000), limit)
            end = max((match.end() for match in nearby), default=0)
        pieces.append(text[start : end or limit])
        start = end or limit
    return [*pieces, text[start:]]


def read_lines(file: Path, encoding: str = "utf-8", errors: str = "strict",
               choice: bool = True) -> Iterator[tuple[int, str]]:
    """(number, text) of each line, from 1. The arguments are those of `read_text`."""
    parts: list[str] = []
    line_number, length = 0, 0
    for block in read_text(file, encoding, errors, choice):
        *finished, unfinished = block.split("\n")
        for line in finished:
            line_number += 1
            yield line_number, "".join([*parts, line])
            parts, length = [], 0
        parts.append(unfinished)
        length += len(unfinished)
        if length > JSON_LINE_LIMIT:
            raise UserError(f"{display_name(file)}, line {line_number + 1} is longer than {JSON_LINE_LIMIT:,} "
                            "characters; put every document on a line of its own.")
    yield line_number + 1, "".join(parts)


@register("reader", ".jsonl", ReaderKind)
@register("reader", ".ndjson", ReaderKind)
def _json_lines(file: Path, options: ReaderOptions) -> Iterator[Passage]:
    source, field, errors = display_name(file), options.field, options.errors
    empty = 0
    for line_number, line in read_lines(file, options.encoding, errors):
        if not line or line.isspace():
            continue
        where = f"{source}, line {line_number}"
        try:
            record = parse(line)
        except ValueError as error:
            reason = getattr(error, "msg", str(error))
            raise UserError(f"{where} is not JSON ({reason}); every line must be one JSON object.") from error
        if not isinstance(record, dict):
            raise UserError(f'{where} is not a JSON object; every line must look like {{"{field}": "..."}}.')
        if field not in record:
            raise UserError(_no_field(where, field, list(record)))
        text = record[field]
        if text is None:
            empty += 1
            continue
        if not isinstance(text, str):
            raise UserError(f'{where}: field "{field}" holds a {type(text).__name__}, not text; '
                            "choose another with --field.")
        yield from whole_document(text, where, source, errors)
    if empty:
        logger.warning(f'{source}: field "{field}" is null in ' + pluralize(empty, "line") + "; skipped.")


class ParquetKind(ReaderKind):
    compressible: ClassVar[bool] = False  # it is compressed inside


@register("reader", ".parquet", ParquetKind)
def _parquet(file: Path, options: ReaderOptions) -> Iterator[Passage]:
    field, errors = options.field, options.errors
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UserError(f'reading {file} needs pyarrow: pip install "stemma-lm[parquet]".') from error
    source = str(file)
    empty = row = 0
    try:
        with parquet.ParquetFile(file) as table:
            names = table.schema_arrow.names
            if field not in names:
                raise UserError(_no_field(source, field, names))
            kind = table.schema_arrow.field(field).type
            if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
                raise UserError(f'{source}: column "{field}" holds {kind}, not text; choose another with --field.')
            for batch in table.iter_batches(batch_size=256, columns=[field]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    empty += text is None
                    yield from whole_document(text or "", f"{source}, row {row}", source, errors)
    except (arrow.ArrowException, UnicodeDecodeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{source} is no intact Parquet file ({reason}); fetch it again.") from error
    if empty:
        logger.warning(f'{source}: column "{field}" is null in ' + pluralize(empty, "row") + "; skipped.")


def whole_document(text: str, where: str, source: str, errors: str = "strict") -> Iterator[Passage]:
    """Passages of one document; `where` is its location for error messages, such as "notes.xml, entry 3"."""
    starts_document = True
    for piece in _split_long_text(clean_text(text, where, errors)):
        if piece and not piece.isspace():
            yield Passage(piece, starts_document, source)
            starts_document = False


def clean_text(text: str, where: str, errors: str) -> str:
    """A string from JSON or a table, normalized like plain text: LF line ends, no NUL, no lone surrogates."""
    if "\0" in text:
        if errors == "strict":
            raise UserError(f"{where} has a NUL character; --errors replace drops such characters.")
        text = text.replace("\0", "")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can contain lone surrogates, which no tokenizer accepts
        if errors == "strict":
            raise UserError(f"{where} has half a character (a lone surrogate); --errors replace skips it.") from error
        text = text.encode("utf-8", "replace").decode()
    return text


def _no_field(where: str, field: str, names: list[str]) -> str:
    listing = ", ".join(names) or "none"
    return f'{where} has no field "{field}" (it has: {listing}); choose one with --field.{did_you_mean(field, names)}'
