"""Float fields of a corpus: a vector per token or per document, such as embeddings, scores or bounding boxes.

A field is stored as little-endian float32: `field.NAME.bin` in each shard with a row per token, or once per corpus with
a row per document. The manifest has the size of a row.
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
MAX_SIZE = 65_536  # values per row: more is a mistake in the axes
BLOCK_VALUES = 1 << 22  # values checked and written at a time, so that memory stays bounded
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class FloatField:
    """Memory-mapped vectors of each token or document of a corpus."""

    name: str
    per: Per
    size: int  # values per row
    arrays: Sequence[np.ndarray]  # per token: (tokens of the shard, size) each; per document: one array
    bounds: np.ndarray  # per token: first row of each array, and the end; per document: the documents' first tokens

    def at(self, index: np.ndarray) -> np.ndarray:
        """(..., size) float32 at these global token indices; a document field gives the values of the token's document.
        """
        index = np.asarray(index, np.int64)
        if self.per == "document":
            return np.asarray(self.arrays[0][np.searchsorted(self.bounds, index, side="right") - 1], np.float32)
        shard = np.searchsorted(self.bounds, index, side="right") - 1
        values = np.empty((*index.shape, self.size), np.float32)
        for shard_index in np.unique(shard):
            in_shard = shard == shard_index
            values[in_shard] = self.arrays[shard_index][index[in_shard] - self.bounds[shard_index]]
        return values


def field_files(name: str, per: Per, shards: Sequence[Mapping[str, Any]]) -> list[str]:
    """Paths of a field's files, relative to the corpus folder."""
    file = f"field.{name}.bin"
    return [file] if per == "document" else [f"{shard['folder']}/{file}" for shard in shards]


@dataclass(frozen=True)
class NewField:
    """An array to store as a field."""

    name: str
    per: Per
    values: np.ndarray  # (rows, size)
    file: Path | None  # the source file; None: the caller gave an array

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(index of the first row, rows as float32) of each block."""
        step = max(1, BLOCK_VALUES // self.values.shape[1])
        for first in range(0, len(self.values), step):
            with np.errstate(over="ignore"):  # values that are too large become infinite; `read_fields` refuses them
                yield first, np.asarray(self.values[first:first + step]).astype(DTYPE)

    def first_non_finite_row(self) -> int | None:
        """Index of the first row that has a non-finite value."""
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
        """The manifest's entry of this field."""
        source = {} if self.file is None else {"file": self.file.name, "sha256": sha256(self.file)}
        return {"per": self.per, "size": self.values.shape[1], "type": DTYPE, **source}


ArraySource = str | Path | np.ndarray


def read_fields(tokens: Mapping[str, ArraySource], documents: Mapping[str, ArraySource], counts: Mapping[str, int],
                taken: Sequence[str]) -> list[NewField]:
    """Read and check arrays and .npy files: one row per token or document, finite values. `taken`: names that the
    corpus already uses for other arrays."""
    problems: list[tuple[str, str]] = []
    fields: list[NewField] = []
    sources: list[tuple[Per, str, ArraySource]] = [("token", *item) for item in tokens.items()]
    sources += [("document", *item) for item in documents.items()]
    for per, name, source in sources:
        problem = _name_problem(name, taken)
        if problem is None and name in tokens and name in documents:
            problem = "is given twice"
        result = problem or _read(per, name, source, counts[per])
        if isinstance(result, NewField) and (row := result.first_non_finite_row()) is not None:
            result = f"row {row} is not finite (or beyond float32)"
        if isinstance(result, NewField):
            fields.append(result)
        else:
            problems.append((f"{name} = {source}" if isinstance(source, str | Path) else name, result))
    if problems:
        raise UserError("these cannot be fields of the corpus:", problems)
    return fields


def _name_problem(name: str, taken: Sequence[str]) -> str | None:
    if not _NAME.fullmatch(name):
        return "a field name has lower-case letters, digits and _, and begins with a letter"
    return "is the name of another array of the corpus; choose another" if name in taken else None


def _read(per: Per, name: str, source: ArraySource, rows: int) -> NewField | str:
    """The values as a two-dimensional array, or a description of the problem."""
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
