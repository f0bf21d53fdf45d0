"""Float fields of a corpus: any number of numbers beside each token or each document, such as vectors, scores or boxes.

A field lies beside the token arrays as little-endian float32: `field.NAME.bin` in each shard, a row for each token; or
once for the corpus, a row for each document. The manifest says how many numbers a row has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stemma.atomic_files import sha256
from stemma.errors import UserError

Per = Literal["token", "document"]
DTYPE = "<f4"
MAX_SIZE = 65_536  # numbers a row: more is a mistake in the axes
BLOCK_NUMBERS = 1 << 22  # numbers checked and written at a time, so that memory stays bounded
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class FloatField:
    """What a corpus knows of each token or document, read in place."""

    name: str
    per: Per
    size: int  # numbers a row
    arrays: Sequence[np.ndarray]  # (tokens of the shard, size) each; of documents one array
    bounds: np.ndarray  # first row of each array, and the end: tokens, or of documents their first tokens

    def at(self, index: np.ndarray) -> np.ndarray:
        """(..., size) float32 at these global token indices; of a document's field, those of the token's document."""
        index = np.asarray(index, np.int64)
        if self.per == "document":
            return np.asarray(self.arrays[0][np.searchsorted(self.bounds, index, side="right") - 1], np.float32)
        shard = np.searchsorted(self.bounds, index, side="right") - 1
        values = np.empty((*index.shape, self.size), np.float32)
        for number in np.unique(shard):
            here = shard == number
            values[here] = self.arrays[number][index[here] - self.bounds[number]]
        return values


def field_files(name: str, per: Per, shards: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the numbers of a field lie, from the corpus's folder."""
    file = f"field.{name}.bin"
    return [file] if per == "document" else [f"{shard['folder']}/{file}" for shard in shards]


@dataclass(frozen=True)
class NewField:
    """Numbers that are to become a field."""

    name: str
    per: Per
    values: np.ndarray  # (rows, size)
    file: Path | None  # where they are from; None: they were given as an array

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Row numbers, and the rows from there on as float32."""
        step = max(1, BLOCK_NUMBERS // self.values.shape[1])
        for first in range(0, len(self.values), step):
            with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
                yield first, np.asarray(self.values[first:first + step]).astype(DTYPE)

    def first_non_finite_row(self) -> int | None:
        """The first row with something that is no finite number."""
        return next((first + int(bad[0]) for first, block in self.blocks()
                     if len(bad := np.flatnonzero(~np.isfinite(block).all(1)))), None)

    def write(self, folder: Path, shards: Sequence[Mapping[str, Any]]) -> None:
        counts = [len(self.values)] if self.per == "document" else [shard["tokens"] for shard in shards]
        bounds = np.cumsum([0, *counts])
        for name, first, stop in zip(field_files(self.name, self.per, shards), bounds[:-1], bounds[1:], strict=True):
            with (folder / name).open("wb") as file:
                for _, block in NewField(self.name, self.per, self.values[first:stop], None).blocks():
                    file.write(np.ascontiguousarray(block).data)

    def record(self) -> dict[str, Any]:
        """What the manifest says of it."""
        source = {} if self.file is None else {"file": self.file.name, "sha256": sha256(self.file)}
        return {"per": self.per, "size": self.values.shape[1], "type": DTYPE, **source}


ArraySource = str | Path | np.ndarray


def read_fields(tokens: Mapping[str, ArraySource], documents: Mapping[str, ArraySource], counts: Mapping[str, int],
                 taken: Sequence[str]) -> list[NewField]:
    """Arrays and .npy files, checked: as many rows as there are tokens or documents, and finite numbers. `taken`: names
    that the corpus uses already for something else."""
    problems: list[tuple[str, str]] = []
    made: list[NewField] = []
    asked: list[tuple[Per, str, ArraySource]] = [("token", *item) for item in tokens.items()]
    asked += [("document", *item) for item in documents.items()]
    for per, name, source in asked:
        told = _name_problem(name, taken) or ("is given twice" if tokens.keys() & documents.keys() & {name} else None)
        found = told or _read(per, name, source, counts[per])
        if isinstance(found, NewField) and (row := found.first_non_finite_row()) is not None:
            found = f"row {row} is not finite (or beyond float32)"
        if isinstance(found, NewField):
            made.append(found)
        else:
            problems.append((f"{name} = {source}" if isinstance(source, str | Path) else name, found))
    if problems:
        raise UserError("these cannot be fields of the corpus:", problems)
    return made


def _name_problem(name: str, taken: Sequence[str]) -> str | None:
    if not _NAME.fullmatch(name):
        return "a field is named by small letters, digits and _, from a letter on"
    return "is the name of another array of the corpus; choose another" if name in taken else None


def _read(per: Per, name: str, source: ArraySource, rows: int) -> NewField | str:
    """The numbers as a table, or what is wrong with them."""
    file = None if isinstance(source, np.ndarray) else Path(source)
    values = source
    if file is not None:
        try:
            values = np.load(file, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            return "there is no such file"
        except (OSError, ValueError, EOFError) as error:
            return f"is not a .npy file of numbers ({error})"
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub":
        return f"must hold numbers, not {getattr(values, 'dtype', type(values).__name__)}"
    if values.ndim == 0 or len(values) != rows:
        return f"has the shape {values.shape}, and the corpus has {rows:,} {per}s: its first axis must be as long"
    table = values.reshape(rows, -1)
    if not 1 <= table.shape[1] <= MAX_SIZE:
        return f"has {table.shape[1]:,} numbers a {per}; there must be between 1 and {MAX_SIZE:,}"
    return NewField(name, per, table, file)
