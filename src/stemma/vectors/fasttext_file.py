"""fastText's .bin: dictionary, vectors of words and of n-gram buckets, and the output matrix.

The layout is that of facebookresearch/fastText (args.cc, dictionary.cc, densematrix.cc), version 12; version 11 is read
too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from stemma.atomic_files import atomic_file, explain_disk_errors
from stemma.errors import UserError
from stemma.vectors.subwords import Subwords
from stemma.vectors.word_vectors import WordVectors

MAGIC, VERSION = 793_712_314, 12
ARGS = ("width", "window", "epochs", "min_count", "negatives", "word_ngrams", "loss", "model", "buckets", "min_n",
        "max_n", "rate_updates")
LOSSES = {"hierarchical_softmax": 1, "negative_sampling": 2, "softmax": 3}
MODELS = {"cbow": 1, "skip_gram": 2, "supervised": 3}
WORD, LABEL = 0, 1


@dataclass(frozen=True)
class FastTextFile:
    """The content of a .bin. `rows`: the vectors of the words, then of the buckets. `output`: the output vectors, in
    the order of the words."""

    args: dict[str, int]  # of ARGS
    words: list[str]
    counts: NDArray[np.int64]
    rows: NDArray[np.float32]
    output: NDArray[np.float32]
    subsample: float = 1e-4
    labels: list[str] = field(default_factory=list)

    @property
    def subwords(self) -> Subwords | None:
        """The n-gram buckets; None if words have none."""
        matrix = self.rows[len(self.words):]
        return Subwords(matrix, self.args["min_n"], self.args["max_n"]) if len(matrix) and self.args["max_n"] else None

    def word_vectors(self, name: str) -> WordVectors:
        """The vector of each word: the mean of its own row and those of its n-grams."""
        own, subwords = self.rows[:len(self.words)], self.subwords
        return WordVectors(self.words, own if subwords is None else subwords.compose(self.words, own), subwords, name)


def is_fasttext_file(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(4)
    return len(start) == 4 and struct.unpack("<i", start)[0] == MAGIC


def read_fasttext(path: Path) -> WordVectors:
    return read_fasttext_file(path).word_vectors(str(path))


def read_fasttext_file(path: Path) -> FastTextFile:
    try:
        with path.open("rb") as file:
            return _read(file, path)
    except (struct.error, ValueError, OverflowError, MemoryError) as error:
        raise UserError(f"{path} is a damaged fastText file, or cut short ({error}); copy it again.") from error


def _read(file: IO[bytes], path: Path) -> FastTextFile:
    def numbers(layout: str) -> tuple[Any, ...]:
        return struct.unpack("<" + layout, file.read(struct.calcsize("<" + layout)))

    _, version = numbers("ii")
    if version not in (11, VERSION):
        raise UserError(f"{path} is a fastText file of version {version}; versions 11 and 12 are supported.")
    args = dict(zip(ARGS, numbers("12i"), strict=True))
    subsample, = numbers("d")
    if version == 11 and args["model"] == MODELS["supervised"]:
        args["max_n"] = 0  # as fastText does: old classifiers have no character n-grams
    size, num_words, num_labels, _, pruned = numbers("iiiqq")
    names, counts = [], []
    rest = file.read()
    position = 0
    for _ in range(size):
        end = rest.index(b"\0", position)
        names.append(rest[position:end].decode("utf-8", "replace"))
        count, _kind = struct.unpack_from("<qb", rest, end + 1)
        counts.append(count)
        position = end + 10
    if pruned >= 0 or rest[position]:
        raise UserError(f"{path} is quantized (.ftz); only full fastText files are supported: use the .bin.")

    def matrix() -> NDArray[np.float32]:
        nonlocal position
        if rest[position]:
            raise UserError(f"{path} is quantized (.ftz); only full fastText files are supported: use the .bin.")
        height, width = struct.unpack_from("<qq", rest, position + 1)
        values = np.frombuffer(rest, "<f4", height * width, position + 17).reshape(height, width)
        position += 17 + 4 * height * width
        return values

    rows, output = matrix(), matrix()
    if num_words + num_labels != size or len(rows) < num_words:
        raise ValueError("its sizes do not fit each other")
    return FastTextFile(args, names[:num_words], np.array(counts[:num_words], np.int64), rows, output, subsample,
                        names[num_words:])


def write_fasttext(content: FastTextFile, path: Path) -> None:
    """Words must be in falling order of their counts: fastText cuts its dictionary by them."""
    with explain_disk_errors(path), atomic_file(path) as file:
        file.write(struct.pack("<ii", MAGIC, VERSION))
        file.write(struct.pack("<12i", *(content.args[name] for name in ARGS)))
        file.write(struct.pack("<d", content.subsample))
        file.write(struct.pack("<iiiqq", len(content.words), len(content.words), 0, int(content.counts.sum()), -1))
        for word, count in zip(content.words, content.counts, strict=True):
            file.write(word.encode("utf-8", "replace") + b"\0" + struct.pack("<qb", int(count), WORD))
        for matrix in (content.rows, content.output):
            file.write(b"\0" + struct.pack("<qq", *matrix.shape))
            file.write(np.ascontiguousarray(matrix, "<f4").tobytes())
