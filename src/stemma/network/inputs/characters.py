"""The characters of each token, embedded by a convolution over its bytes (ELMo, arXiv:1802.05365; CharacterBERT,
arXiv:2010.10392).

Tokens of similar spelling have similar vectors from the start, rare ones too. The network stores the bytes of each
token of the vocabulary, so token ids suffice as input. A masked token has the spelling of the mask token. With
`unknown = "spelled"` a word outside of the vocabulary is read as it is spelled in the text, so that no word is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Count, Natural, Width, constraint
from stemma.schema.parts import InputSettings

if TYPE_CHECKING:  # recipes are checked without importing torch
    from torch import nn

    from stemma.schema.network import NetworkSettings

logger = logging.getLogger(__name__)

NOTHING, BEGINS, ENDS = 0, 257, 258  # symbols besides bytes; byte b is symbol b + 1
SYMBOLS = 259
# Symbols of ELMo's released weights: byte b is symbol b. The tokens for the beginning and the end of a text have one
# symbol each in place of bytes, and what follows the end of a word is a symbol with an embedding of its own.
ELMO_TEXT_BEGINS, ELMO_TEXT_ENDS, ELMO_BEGINS, ELMO_ENDS, ELMO_NOTHING = 256, 257, 258, 259, 260
ELMO_SYMBOLS = 261
SHOWN = 40  # characters of a word in a message
KNOWN = -1  # in place of the first symbol of a token that the vocabulary spells
UNKNOWN_TOKEN = "unknown"  # role of the token of words outside of the vocabulary
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
    carry: float = 1.0  # initial bias of a highway layer's gate: the higher, the more of its input it passes on
    symbols: Literal["bytes", "elmo"] = "bytes"  # elmo: those of its released weights, with learned padding
    unknown: Literal["token", "spelled"] = "token"  # a word outside of the vocabulary has the spelling of the token for
    #                                                 unknown words, or its own

    size_keys: ClassVar[tuple[str, ...]] = ("longest", "size", "widths", "filters", "highway")
    structural_keys = ("kind", "longest", "size", "widths", "filters", "highway", "symbols")
    from_ids = True

    @property
    def reads_text(self) -> bool:
        return self.unknown == "spelled"

    @property
    def num_symbols(self) -> int:
        return SYMBOLS if self.symbols == "bytes" else ELMO_SYMBOLS

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.longest,)

    def conflicts(self) -> Iterator[Conflict]:
        if len(self.widths) != len(self.filters) or not self.widths:
            problem = f"there are {len(self.widths)} widths and {len(self.filters)} numbers of filters: each width " \
                   "needs one"
            yield (ConflictKey("filters", problem), ConflictKey("widths", problem))
        if max(self.widths, default=0) > self.longest:
            problem = f"a filter of {max(self.widths)} bytes does not fit into the {self.longest} that are read"
            yield (ConflictKey("widths", problem), ConflictKey("longest", problem))

    def start(self, name: str, module: Any, tokenizer: Any) -> None:
        module.spell(token_symbols(tokenizer, self))

    def spell_unknown(self, ids: np.ndarray, words: Callable[[np.ndarray], Sequence[str]],
                      tokenizer: Any) -> np.ndarray:
        """(..., longest) int16 for token ids of any shape: the symbols of unknown words, and KNOWN first elsewhere.
        `words` gives the texts of the tokens at some flat indices."""
        symbols = np.full((ids.size, self.longest), NOTHING, np.int16)
        symbols[:, 0] = KNOWN
        unknown = np.flatnonzero(ids.reshape(-1) == tokenizer.special_token_ids.get(UNKNOWN_TOKEN, KNOWN - 1))
        if len(unknown):
            texts, text_index = np.unique(np.array(words(unknown), dtype=str), return_inverse=True)
            spelled = [(text.lower() if tokenizer.lowercase else text).encode() for text in texts.tolist()]
            if longer := [word for word in spelled if len(word) > self.longest - 2]:
                _warn_once(longer[0].decode(), len(longer[0]), self.longest - 2)
            symbols[unknown] = np.stack([self.spelling(word) for word in spelled])[text_index]
        return symbols.reshape(*ids.shape, self.longest)

    def from_draft(self, name: str, draft: Any) -> np.ndarray:
        """The spelling of unknown words in the text; at masked tokens that of the mask token."""
        tokenizer, offsets = draft.corpus.tokenizer, draft.corpus_offsets
        ids = np.where(offsets >= 0, draft.input_ids, KNOWN)  # special tokens have no text
        return self.spell_unknown(ids, lambda index: draft.corpus.token_texts(offsets.reshape(-1)[index]), tokenizer)

    def from_texts(self, tokenizer: Any, ids: np.ndarray, words: Sequence[str]) -> np.ndarray:
        """(n, longest) for the token ids of one text and the part of the text that each was made from."""
        return self.spell_unknown(ids, lambda index: [words[position] for position in index], tokenizer)

    def spelling(self, word: bytes, symbol: int | None = None) -> np.ndarray:
        """(longest,) int16: beginning, bytes (or one `symbol`), end. A word that is too long loses its end."""
        elmo = self.symbols == "elmo"
        begins, ends, nothing = (ELMO_BEGINS, ELMO_ENDS, ELMO_NOTHING) if elmo else (BEGINS, ENDS, NOTHING)
        row = np.full(self.longest, nothing, np.int16)
        middle = [byte + (not elmo) for byte in word[:self.longest - 2]] if symbol is None else [symbol]
        row[:len(middle) + 2] = [begins, *middle, ends]
        return row

    def num_parameters(self, width: int, vocab_size: int) -> int:
        return sum(self.filters) * width


@register("input", "characters", CharacterSettings)
def characters(settings: CharacterSettings, network: NetworkSettings, width: int, vocab_size: int) -> nn.Module:
    from stemma.network.inputs.character_cnn import CharacterCNN

    return CharacterCNN(settings, network, width, vocab_size)


_warned: set[int] = set()  # lengths of words that a warning has named


def _warn_once(word: str, length: int, read: int) -> None:
    """Say once that longer words are cut."""
    if read not in _warned:
        _warned.add(read)
        shown = word if len(word) <= SHOWN else f"{word[:SHOWN]}..."
        logger.warning(f'the word "{shown}" has {length} bytes, and the network reads the first {read} of a word: such '
                       "words are cut.")


def token_symbols(tokenizer: Any, settings: CharacterSettings) -> np.ndarray:
    """(vocabulary, longest) int16: the symbols of each token of the vocabulary, special tokens included."""
    symbols = np.full((tokenizer.vocab_size, settings.longest), NOTHING, np.int16)
    to_bytes = _decode_byte_level if tokenizer.kind == "byte_bpe" else str.encode
    roles = {tokenizer.special_token_ids.get("end"): ELMO_TEXT_ENDS,
             tokenizer.special_token_ids.get("begin"): ELMO_TEXT_BEGINS} if settings.symbols == "elmo" else {}
    for token, token_id in tokenizer.backend.get_vocab().items():
        symbols[token_id] = settings.spelling(to_bytes(token), roles.get(token_id))
    return symbols


def _decode_byte_level(token: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary, which writes each byte as one printable character (GPT-2)."""
    return b"".join(bytes([_BYTES[letter]]) if letter in _BYTES else letter.encode() for letter in token)


_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTES = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + index): byte for index, byte in enumerate(byte for byte in range(256) if byte not in _PRINTED)}
