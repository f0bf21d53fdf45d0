"""A tokenised corpus: flat little-endian arrays on disk, memory-mapped, so opening one costs no memory.

    manifest.json               version, tokenizer, options, counts, and the dtype of each per-token array
    tokenizer/                  a copy of the tokenizer
    counts.bin                  int64: frequency of each token of the vocabulary
    documents.bin sentences.bin int64: first token of each, and the end
    texts.bin                   int64 pairs: start and end of each document's text, in UTF-8 bytes
    shard-00000/                tokens, word_starts, starts, lengths, capitals (one value per token), text (UTF-8)
    field.NAME.bin              float32: a vector per document, or in each shard a vector per token (`fields.py`)
    checksums.json              SHA-256 of all of these

Token and byte offsets are global, over all shards. A document never crosses a shard boundary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stemma.atomic_files import CHECKSUMS, verify_checksums
from stemma.corpus.fields import FloatField, field_files
from stemma.errors import CorruptFileError, UserError, did_you_mean
from stemma.json_files import explain_damage, parse, parse_object
from stemma.text.tokenizer import Tokenizer

FORMAT = "stemma-corpus"
VERSION = 1
MANIFEST = "manifest.json"
TEXT = "text"
RECENT_DOCUMENTS = 64  # whose texts are kept
# The arrays of every corpus, and the dtype that readers get (on disk the dtype is as narrow as possible).
CORE_ARRAYS: dict[str, type] = {"tokens": np.int32, "word_starts": np.bool_, "starts": np.int64, "lengths": np.int32}
ADVICE = "build it again with `stemma corpus build`."


class Corpus:
    """Memory-mapped tokens with document and sentence boundaries; every index is a global token index."""

    def __init__(self, path: Path, manifest: dict[str, Any], sums: dict[str, str]):
        self.path = path
        self.manifest = manifest
        self._checksums = sums
        self.num_tokens: int = manifest["tokens"]
        self._bounds = _bounds(manifest, "tokens")  # first token of each shard, and the end
        self._text_bounds = _bounds(manifest, "text_bytes")
        self.document_starts = self._map("documents.bin", "<i8", manifest["documents"] + 1)
        self.sentence_starts = self._map("sentences.bin", "<i8", manifest["sentences"] + 1)
        self.token_counts = self._map("counts.bin", "<i8", manifest["tokenizer"]["vocab_size"])
        self._texts = self._map("texts.bin", "<i8", 2 * manifest["documents"]).reshape(-1, 2)
        self._shards = {name: [self._map(f"{shard['folder']}/{name}.bin", kind, shard["tokens"])
                               for shard in manifest["shards"]] for name, kind in manifest["arrays"].items()}
        self._text = [self._map(f"{shard['folder']}/{TEXT}.bin", "|u1", shard["text_bytes"])
                      for shard in manifest["shards"]]

        self.fields = {name: self._field(name, record) for name, record in manifest.get("fields", {}).items()}

    @classmethod
    def open(cls, path: str | Path, verify: bool = True) -> Corpus:
        """Open the corpus in this folder. With `verify`, check the checksum of every file first."""
        path = Path(path)
        if not _is_corpus(path):
            raise UserError(_describe_folder(path))
        if verify:
            verify_checksums(path, "corpus", ADVICE, (MANIFEST,))
        try:
            manifest = parse_object((path / MANIFEST).read_bytes())
            sums = parse_object((path / CHECKSUMS).read_bytes())
            version = manifest["version"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(f"corpus {path} has no readable {MANIFEST} or {CHECKSUMS}; {ADVICE}") from error
        if version != VERSION:
            raise UserError(f"corpus {path} has format version {version} and this Stemma reads {VERSION}; "
                            f"update Stemma, or {ADVICE}")
        with explain_damage(path / MANIFEST, ADVICE):
            return cls(path, manifest, sums)

    def __reduce__(self) -> tuple[object, ...]:  # another process maps the same files; no copy is sent
        return (Corpus.open, (self.path, False))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.path / "tokenizer")

    @cached_property
    def fingerprint(self) -> str:
        """Hash of text, tokens and boundaries; independent of annotations, fields and the corpus's path."""
        arrays = [f"{shard['folder']}/{name}.bin" for shard in self.manifest["shards"] for name in (*CORE_ARRAYS, TEXT)]
        content = [self._checksums[name] for name in ("documents.bin", "sentences.bin", "texts.bin", *arrays)]
        return hashlib.sha256("\n".join([self.manifest["tokenizer"]["fingerprint"], *content]).encode()).hexdigest()

    def annotation_digest(self, name: str) -> str | None:
        """Hash of one annotation array or field; None if the corpus does not have it."""
        shards = self.manifest["shards"]
        if name in self.fields:
            files = field_files(name, self.fields[name].per, shards)
        elif name in self._shards:
            files = [f"{shard['folder']}/{name}.bin" for shard in shards]
        else:
            return None
        sums = [self._checksums[file] for file in files]
        return hashlib.sha256("\n".join(sums).encode()).hexdigest()

    def annotations(self) -> list[str]:
        """Names of the optional per-token arrays."""
        return [name for name in self._shards if name not in CORE_ARRAYS]

    def field(self, name: str) -> FloatField:
        """The float field of this name."""
        if name not in self.fields:
            raise UserError(f'corpus {self.path} has no field "{name}".{did_you_mean(name, self.fields)} '
                            f"`stemma corpus annotate {self.path} --token-field {name}=FILE.npy` adds one.")
        return self.fields[name]

    def _field(self, name: str, record: dict[str, Any]) -> FloatField:
        per, size, shards = record["per"], record["size"], self.manifest["shards"]
        counts = [shard["tokens"] for shard in shards] if per == "token" else [self.manifest["documents"]]
        arrays = [self._map(file, record["type"], count * size).reshape(-1, size)
                  for file, count in zip(field_files(name, per, shards), counts, strict=True)]
        return FloatField(name, per, size, arrays, self._bounds if per == "token" else np.asarray(self.document_starts))

    def values_at(self, name: str, index: np.ndarray) -> np.ndarray:
        """Values at these global token indices, in the shape of `index`."""
        arrays = self._arrays(name)
        index = np.asarray(index, np.int64)
        if index.size and (index.min() < 0 or index.max() >= self.num_tokens):
            raise IndexError(f"token index outside 0..{self.num_tokens - 1}")
        if len(arrays) == 1:
            return self._widen(name, arrays[0][index])
        shard = np.searchsorted(self._bounds, index, side="right") - 1
        values = np.empty(index.shape, arrays[0].dtype)
        for shard_index in np.unique(shard):
            in_shard = shard == shard_index
            values[in_shard] = arrays[shard_index][index[in_shard] - self._bounds[shard_index]]
        return self._widen(name, values)

    def values_between(self, name: str, start: int, stop: int) -> np.ndarray:
        """Values of the tokens from `start` to `stop`."""
        arrays = self._arrays(name)
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start}..{stop} outside 0..{self.num_tokens}")
        last = int(np.searchsorted(self._bounds[1:-1], stop))
        first = int(np.searchsorted(self._bounds[1:-1], start, side="right")) if start < stop else last
        parts = [arrays[shard][max(0, start - low) : stop - low]
                 for shard, low in enumerate(self._bounds[first : last + 1].tolist(), first)]
        return self._widen(name, np.concatenate(parts) if len(parts) > 1 else parts[0])

    def document_text(self, document: int) -> str:
        """Text of one document; `starts` and `lengths` count its characters."""
        start, stop = self._texts[document]
        shard = int(np.searchsorted(self._text_bounds, start, side="right")) - 1
        low = self._text_bounds[shard]
        return self._text[shard][start - low : stop - low].tobytes().decode("utf-8")

    def token_texts(self, index: np.ndarray) -> list[str]:
        """The part of the text that each of these tokens was made from. The last documents that were read stay in
        memory."""
        document = np.searchsorted(self.document_starts, index, side="right") - 1
        starts = self.values_at("starts", index)
        stops = starts + self.values_at("lengths", index)
        texts = {number: self._recent_text(number) for number in np.unique(document).tolist()}
        return [texts[number][start:stop] for number, start, stop in
                zip(document.tolist(), starts.tolist(), stops.tolist(), strict=True)]

    @cached_property
    def _recent_text(self) -> Callable[[int], str]:
        return lru_cache(RECENT_DOCUMENTS)(self.document_text)

    def _arrays(self, name: str) -> list[np.ndarray]:
        if name not in self._shards:
            raise KeyError(f'corpus {self.path} has no array "{name}", only {", ".join(self._shards)}')
        return self._shards[name]

    def _widen(self, name: str, values: np.ndarray) -> np.ndarray:
        # Always a copy, so that callers cannot write to the memory-mapped file.
        return np.asarray(values).astype(CORE_ARRAYS.get(name, values.dtype))

    def _map(self, name: str, kind: str, count: int) -> np.ndarray:
        file = self.path / name
        expected = count * np.dtype(kind).itemsize
        size = file.stat().st_size if file.is_file() else None
        if size != expected or name not in self._checksums:
            state = "is missing" if size is None else f"has {size:,} bytes instead of {expected:,}"
            raise CorruptFileError(f"{file} {state if size != expected else 'has no checksum'}; {ADVICE}")
        # The operating system refuses to map an empty file.
        return np.memmap(file, np.dtype(kind), mode="r") if count else np.zeros(0, np.dtype(kind))


def _bounds(manifest: dict[str, Any], count: str) -> np.ndarray:
    return np.cumsum([0, *(shard[count] for shard in manifest["shards"])], dtype=np.int64)


def _is_corpus(path: Path) -> bool:
    if any(path.glob("shard-*")):
        return True  # possibly damaged
    try:
        return bool(parse((path / MANIFEST).read_bytes())["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _describe_folder(path: Path) -> str:
    build = f"`stemma corpus build {path} --tokenizer TOKENIZER --out CORPUS`"
    if not path.exists():
        return f"there is no corpus {path}; `stemma corpus build TEXT --tokenizer TOKENIZER --out {path}` makes one."
    if path.is_file():
        return f"{path} is a file, not a corpus folder; if it is text, {build} makes a corpus of it."
    folder_kinds = {"recipe.toml": "a run", "model.safetensors": "a model", "tokenizer.json": "a tokenizer",
                    "vocab.txt": "a tokenizer"}
    for name, kind in folder_kinds.items():
        if (path / name).exists():
            return f"{path} is {kind}, not a corpus; `stemma corpus build` makes a corpus of text."
    return f"{path} is a folder, but not a corpus; if it holds text, {build} makes a corpus of it."
