"""The characters of each token, read by a convolution over its bytes (ELMo, arXiv:1802.05365; CharacterBERT,
arXiv:2010.10392).

Tokens that are spelled alike are near each other from the start, rare ones too. A lookup array of the network holds the
bytes of each token of the vocabulary, so that characters are known wherever token ids are, and what is shown is always
the spelling of the token that stands there: a hidden one shows the mask's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Count, Natural, Width, constraint
from stemma.schema.parts import InputSettings

if TYPE_CHECKING:  # settings are read before torch is imported
    from torch import nn

    from stemma.schema.network import NetworkSettings

NOTHING, BEGINS, ENDS = 0, 257, 258  # what a spelling is made of besides bytes, each of which is one higher
SYMBOLS = 259
Bytes = Annotated[int, constraint(lambda n: n >= 3, "must be 3 or more: a byte between the beginning and the end"),
                  constraint(lambda n: n <= 1000, "must be at most 1,000")]


class CharacterSettings(InputSettings):
    kind: Literal["characters"]
    longest: Bytes = 20  # bytes of a token that are read, with the two symbols for its beginning and its end
    size: Width = 16  # of a byte's embedding
    widths: list[Count] = [1, 2, 3, 4, 5]  # bytes that a filter looks at
    filters: list[Width] = [32, 32, 64, 64, 64]  # how many there are of each width
    highway: Natural = 1  # layers behind them, each of which passes a share of its input on (arXiv:1505.00387)

    structural_keys = ("kind", "longest", "size", "widths", "filters", "highway")
    from_ids = True

    def conflicts(self) -> Iterator[Conflict]:
        if len(self.widths) != len(self.filters) or not self.widths:
            what = f"there are {len(self.widths)} widths and {len(self.filters)} numbers of filters: each width " \
                   "needs one"
            yield (ConflictKey("filters", what), ConflictKey("widths", what))
        if max(self.widths, default=0) > self.longest:
            what = f"a filter of {max(self.widths)} bytes does not fit into the {self.longest} that are read"
            yield (ConflictKey("widths", what), ConflictKey("longest", what))

    def start(self, name: str, module: Any, tokenizer: Any) -> None:
        module.spell(spelled(tokenizer, self.longest))

    def parameters(self, width: int, vocabulary: int) -> int:
        return sum(self.filters) * width


@register("input", "characters", CharacterSettings)
def characters(chosen: CharacterSettings, network: NetworkSettings, width: int, vocabulary: int) -> nn.Module:
    from stemma.network.inputs.character_cnn import CharacterCNN

    return CharacterCNN(chosen, network, width, vocabulary)


def spelled(tokenizer: Any, longest: int) -> np.ndarray:
    """(vocabulary, longest) int16: the bytes of each token as its vocabulary spells it, a special token's too."""
    made = np.full((tokenizer.vocab_size, longest), NOTHING, np.int16)
    bytes_of = _unmapped if tokenizer.kind == "byte_bpe" else str.encode
    for token, number in tokenizer.backend.get_vocab().items():
        symbols = [BEGINS, *(byte + 1 for byte in bytes_of(token)[:longest - 2]), ENDS]
        made[number, :len(symbols)] = symbols
    return made


def _unmapped(token: str) -> bytes:
    """A byte-level vocabulary writes each byte as one printable character (GPT-2); others stand for themselves."""
    return b"".join(bytes([_BYTES[letter]]) if letter in _BYTES else letter.encode() for letter in token)


_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTES = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + number): byte for number, byte in enumerate(byte for byte in range(256) if byte not in _PRINTED)}
