"""Read and write vector files: word2vec text and binary, GloVe text, fastText's .vec (see `fasttext_file.py` for .bin).

The format is found by the content. A text file has a word and its numbers on each line; word2vec and .vec begin with a
line `words width`, GloVe does not. A binary file has that line too, then each word, a space and its float32 numbers.
"""

from __future__ import annotations

import logging
import mmap
import warnings
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from stemma.atomic_files import atomic_file, explain_disk_errors
from stemma.errors import UserError, first_problems, join_names, pluralize
from stemma.progress import progress_stage
from stemma.vectors.fasttext_file import is_fasttext_file, read_fasttext
from stemma.vectors.word_vectors import WordVectors

logger = logging.getLogger(__name__)

LINES_AT_ONCE = 4096
SHOWN = 3  # duplicate words that a warning names
MAX_WIDTH = 100_000
MAX_WORD_BYTES = 10_000  # in a binary file; a longer "word" is no word


def read_vectors(path: str | Path, only: Collection[str] | None = None) -> WordVectors:
    """The vectors of a file in any of the formats. `only`: keep these words alone (and their lower-case forms), so that
    a large file takes little memory. Broken lines are an error; of a word that stands twice the first vector counts."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no vector file {path}; name a file of word2vec, GloVe or fastText.")
    if not path.stat().st_size:
        raise UserError(f"{path} is empty; a vector file has a word and its numbers on each line.")
    if is_fasttext_file(path):
        return read_fasttext(path)
    keep = None if only is None else {*only, *map(str.lower, only)}
    header = _header(path)
    if header is not None and _is_binary(path, *header):
        words, matrix, repeated = _read_binary(path, header[0], header[1], keep)
    else:
        words, matrix, repeated = _read_text(path, header, keep)
    if repeated:
        shown = join_names([f'"{word}"' for word in repeated[:SHOWN]])
        more = f" and {len(repeated) - SHOWN:,} more" if len(repeated) > SHOWN else ""
        logger.warning(f"{path} has {pluralize(len(repeated), 'word')} more than once ({shown}{more}); the first "
                       "vector of each counts.")
    return WordVectors(words, matrix, name=str(path))


def _header(path: Path) -> tuple[int, int, int] | None:
    """(words, width, bytes of the line) of a first line `words width`; None if the file has no such line."""
    with path.open("rb") as file:
        line = file.readline(100)
    fields = line.split()
    if not line.endswith(b"\n") or len(fields) != 2 or not all(field.isdigit() for field in fields):
        return None
    words, width = map(int, fields)
    if not words or not 0 < width <= MAX_WIDTH:
        raise UserError(f"{path} says that it has {words:,} words of width {width:,}; it is no vector file, or it is "
                        "damaged.")
    return words, width, len(line)


def _is_binary(path: Path, words: int, width: int, start: int) -> bool:
    """Whether the first vector is stored as bytes: as text it would be a line of `width` numbers."""
    with path.open("rb") as file:
        file.seek(start)
        line = file.readline(64 * (width + 1) + MAX_WORD_BYTES)
    try:
        numbers = line.decode().split()[-width:]
        return len([float(number) for number in numbers]) < width
    except ValueError:
        # bytes, or a broken line of text: only text has no control characters
        return bool(set(line.rstrip(b"\r\n")) & {*range(9), *range(14, 32), 127})


# ---- binary ----

def _read_binary(path: Path, count: int, width: int,
                 keep: Collection[str] | None) -> tuple[list[str], NDArray[np.float32], list[str]]:
    size, words, offsets, repeated = 4 * width, [], [], []
    seen: set[str] = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        position = data.find(b"\n") + 1
        for number in range(count):
            end = data.find(b" ", position, position + MAX_WORD_BYTES)
            if end < 0 or end + 1 + size > len(data):
                raise UserError(f"{path} is damaged at word {number + 1:,} of {count:,}, or cut short; copy it again.")
            word = data[position:end].lstrip(b"\n").decode("utf-8", "replace")
            if word in seen:
                repeated.append(word)
            else:
                seen.add(word)
                if keep is None or word in keep:
                    words.append(word)
                    offsets.append(end + 1)
            position = end + 1 + size
        matrix = np.empty((len(words), width), np.float32)
        for row, offset in enumerate(offsets):
            matrix[row] = np.frombuffer(data[offset:offset + size], "<f4")
    _check_finite(path, words, matrix)
    return words, matrix, repeated


# ---- text ----

def _read_text(path: Path, header: tuple[int, int, int] | None,
               keep: Collection[str] | None) -> tuple[list[str], NDArray[np.float32], list[str]]:
    words: list[str] = []
    blocks: list[NDArray[np.float32]] = []
    repeated: list[str] = []
    seen: set[str] = set()
    problems: list[tuple[str, str]] = []
    width = None if header is None else header[1]
    read = 0
    with path.open("rb") as file, progress_stage("reading vectors", path.stat().st_size, "bytes") as stage:
        if header is not None:
            file.readline()
        number = 1 if header is None else 2
        for lines in _blocks(file):
            stage.advance(sum(map(len, lines)))
            width = width or _width_of(path, lines[0])
            block_words, block = _parse(lines, width, number, problems)
            number += len(lines)
            read += len(block_words)
            chosen = []
            for row, word in enumerate(block_words):
                if word in seen:
                    repeated.append(word)
                    continue
                seen.add(word)
                if keep is None or word in keep:
                    chosen.append(row)
                    words.append(word)
            blocks.append(block if len(chosen) == len(block) else block[chosen])
    if problems:
        raise UserError(f"{path} has broken lines; each must have a word and {pluralize(width or 0, 'number')}. "
                        "Correct or remove them", first_problems(problems))
    if header is not None and read != header[0]:
        raise UserError(f"{path} says that it has {header[0]:,} words, and it has {read:,}; it is cut short, or its "
                        "first line is another file's.")
    matrix = np.concatenate(blocks) if blocks else np.zeros((0, width or 0), np.float32)
    _check_finite(path, words, matrix)
    return words, matrix, repeated


def _blocks(file: IO[bytes]) -> Iterator[list[bytes]]:
    lines: list[bytes] = []
    for line in file:
        if line.strip():
            lines.append(line.rstrip(b" \r\n"))
            if len(lines) == LINES_AT_ONCE:
                yield lines
                lines = []
    if lines:
        yield lines


def _width_of(path: Path, line: bytes) -> int:
    """The number of numbers at the end of the first line of a file without a header."""
    fields = line.split(b" ")
    width = 0
    for field in reversed(fields[1:]):
        try:
            float(field)
        except ValueError:
            break
        width += 1
    if not width:
        raise UserError(f"{path} is no vector file: its first line must be a word and its numbers, or `words width`.")
    return width


def _parse(lines: list[bytes], width: int, first: int,
           problems: list[tuple[str, str]]) -> tuple[list[str], NDArray[np.float32]]:
    """The words and vectors of these lines. All numbers are parsed at once; only if that fails, line by line."""
    parts = [line.partition(b" ") for line in lines]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            counts = [rest.count(b" ") for _, _, rest in parts]
            numbers = np.fromstring(b" ".join(rest for _, _, rest in parts), np.float32, sep=" ")
            if len(numbers) == width * len(lines) and set(counts) == {width - 1}:
                return [word.decode("utf-8", "replace") for word, _, _ in parts], numbers.reshape(-1, width)
        except (ValueError, DeprecationWarning):
            pass
    words, rows = [], []
    for offset, line in enumerate(lines):
        fields = line.split()
        try:
            values = [float(field) for field in fields[-width:]] if len(fields) > width else []
        except ValueError:
            values = []
        if values:
            words.append(b" ".join(fields[:-width]).decode("utf-8", "replace"))  # a few words of GloVe have spaces
            rows.append(values)
        else:
            problems.append((f"line {first + offset:,}", _describe(fields, width)))
    return words, np.array(rows, np.float32).reshape(-1, width)


def _describe(fields: list[bytes], width: int) -> str:
    shown = (fields[0] if fields else b"").decode("utf-8", "replace")[:40]
    bad = next((field for field in fields[1:] if not _is_number(field)), None)
    if bad is not None:
        return f'"{shown}": "{bad.decode("utf-8", "replace")[:40]}" is no number'
    return f'"{shown}" has {pluralize(max(0, len(fields) - 1), "number")} and not {width:,}'


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _check_finite(path: Path, words: list[str], matrix: NDArray[np.float32]) -> None:
    bad = np.flatnonzero(~np.isfinite(matrix).all(1))
    if len(bad):
        raise UserError(f'{path} has a vector that is not finite: "{words[bad[0]]}"'
                        + (f" and {len(bad) - 1:,} more" if len(bad) > 1 else "") + "; remove it.")


# ---- writing ----

def write_text(vectors: WordVectors, path: Path, header: bool = True) -> None:
    """word2vec's text format and fastText's .vec; without header GloVe's."""
    with explain_disk_errors(path), atomic_file(path) as file:
        if header:
            file.write(f"{len(vectors)} {vectors.width}\n".encode())
        for word, vector in _spelled(vectors):
            file.write(word)
            file.write((" " + " ".join(f"{value:.9g}" for value in vector.tolist()) + "\n").encode())  # exact


def write_binary(vectors: WordVectors, path: Path) -> None:
    """word2vec's binary format."""
    with explain_disk_errors(path), atomic_file(path) as file:
        file.write(f"{len(vectors)} {vectors.width}\n".encode())
        for word, vector in _spelled(vectors):
            file.write(word + b" " + np.asarray(vector, "<f4").tobytes() + b"\n")


def _spelled(vectors: WordVectors) -> Iterable[tuple[bytes, NDArray[np.float32]]]:
    """Words as bytes; white space inside a word would end it."""
    for word, vector in zip(vectors.words, vectors.matrix, strict=True):
        yield "_".join(word.split()).encode("utf-8", "replace") or b"_", vector
