"""The characters of each token, embedded by a convolution over its bytes (ELMo, arXiv:1802.05365; CharacterBERT,
arXiv:2010.10392).

Tokens of similar spelling have similar vectors from the start, rare ones too. The network stores the bytes of each
token of the vocabulary, so token ids suffice as input. A masked token has the spelling of the mask token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Count, Natural, Width, constraint
from stemma.schema.parts import InputSettings

if TYPE_CHECKING:  # recipes are checked without importing torch
    from torch import nn

    from stemma.schema.network import NetworkSettings

NOTHING, BEGINS, ENDS = 0, 257, 258  # symbols besides bytes; byte b is symbol b + 1
SYMBOLS = 259
Bytes = Annotated[int, constraint(lambda n: n >= 3, "must be 3 or more: a byte between the beginning and the end"),
                  constraint(lambda n: n <= 1000, "must be at most 1,000")]


class CharacterSettings(InputSettings):
    """A character CNN over the bytes of each token."""

    kind: Literal["characters"]
    longest: Bytes = 20  # maximum symbols of a token, including those for its beginning and its end
    size: Width = 16  # byte embedding size
    widths: list[Count] = [1, 2, 3, 4, 5]  # kernel sizes in bytes
    filters: list[Width] = [32, 32, 64, 64, 64]  # number of filters of each kernel size
    highway: Natural = 1  # number of highway layers (arXiv:1505.00387)

    structural_keys = ("kind", "longest", "size", "widths", "filters", "highway")
    from_ids = True

    def conflicts(self) -> Iterator[Conflict]:
        if len(self.widths) != len(self.filters) or not self.widths:
            problem = f"there are {len(self.widths)} widths and {len(self.filters)} numbers of filters: each width " \
                   "needs one"
            yield (ConflictKey("filters", problem), ConflictKey("widths", problem))
        if max(self.widths, default=0) > self.longest:
            problem = f"a filter of {max(self.widths)} bytes does not fit into the {self.longest} that are read"
            yield (ConflictKey("widths", problem), ConflictKey("longest", problem))

    def start(self, name: str, module: Any, tokenizer: Any) -> None:
        module.spell(token_bytes(tokenizer, self.longest))

    def num_parameters(self, width: int, vocab_size: int) -> int:
        return sum(self.filters) * width


@register("input", "characters", CharacterSettings)
def characters(settings: CharacterSettings, network: NetworkSettings, width: int, vocab_size: int) -> nn.Module:
    from stemma.network.inputs.character_cnn import CharacterCNN

    return CharacterCNN(settings, network, width, vocab_size)


def token_bytes(tokenizer: Any, longest: int) -> np.ndarray:
    """(vocabulary, longest) int16: the bytes of each token of the vocabulary, special tokens included."""
    symbols = np.full((tokenizer.vocab_size, longest), NOTHING, np.int16)
    to_bytes = _decode_byte_level if tokenizer.kind == "byte_bpe" else str.encode
    for token, token_id in tokenizer.backend.get_vocab().items():
        row = [BEGINS, *(byte + 1 for byte in to_bytes(token)[:longest - 2]), ENDS]
        symbols[token_id, :len(row)] = row
    return symbols


def _decode_byte_level(token: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary, which writes each byte as one printable character (GPT-2)."""
    return b"".join(bytes([_BYTES[letter]]) if letter in _BYTES else letter.encode() for letter in token)


_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTES = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + index): byte for index, byte in enumerate(byte for byte in range(256) if byte not in _PRINTED)}
