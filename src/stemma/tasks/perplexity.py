"""How well a language model predicts a text, in units that do not depend on its vocabulary.

Perplexity per token compares models that cut text alike. The same nats over the words, bytes or characters of the raw
text compare any two models: a word is what stands between white space, and a Chinese character is a word of its own.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from stemma.errors import UserError
from stemma.exchange.model import Model
from stemma.generation.score import score_tokens
from stemma.generation.windows import TextReader
from stemma.text.readers import Passage
from stemma.text.words import CJK_RUN

logger = logging.getLogger(__name__)

GROUP_CHARACTERS = 1 << 21  # scored at a time, so that memory does not grow with the text


@dataclass
class Tally:
    """What was counted in a text, and what it cost the model."""

    nats: float = 0.0
    tokens: int = 0  # scored ones
    unscored: int = 0  # first ones, with nothing to guess them from
    unknown: int = 0
    words: int = 0
    bytes: int = 0
    characters: int = 0

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def count(self, text: str) -> None:
        self.words += count_words(text)
        self.bytes += len(text.encode())
        self.characters += len(text)

    def measures(self) -> dict[str, float]:
        bits = self.nats / math.log(2)
        return {"perplexity": power(self.nats, self.tokens), "word_perplexity": power(self.nats, self.words),
                "bits_per_byte": bits / self.bytes if self.bytes else math.nan,
                "bits_per_character": bits / self.characters if self.characters else math.nan}


def count_words(text: str) -> int:
    """Between white space, and each Chinese character by itself."""
    return sum(len(run[0]) for run in CJK_RUN.finditer(text)) + len(CJK_RUN.sub(" ", text).split())


def power(nats: float, count: int) -> float:
    """e to the mean; infinite where no number is large enough."""
    if not count:
        return math.nan
    return math.exp(nats / count) if nats / count < 700 else math.inf


def perplexity(model: Model, passages: Iterable[Passage], length: int | None = None, stride: int | None = None,
               memory: int | None = None, by_document: bool = False,
               watch: Callable[[int], None] = lambda tokens: None) -> dict[str, Any]:
    """Each document is read on its own, behind the token that parts documents. `watch` hears of scored tokens."""
    tokenizer = model.needs_tokenizer()
    reader = TextReader(model, length, stride, memory)
    total, listed, documents, lossless = Tally(), [], 0, True
    began = time.perf_counter()
    for group in _groups(passages):
        texts, tallies, faithful = _prepare(reader, group)
        lossless = lossless and faithful
        for document, tally, values in zip(group, tallies, score_tokens(reader, texts, watch), strict=True):
            scored = values[~np.isnan(values)]
            tally.add(Tally(-float(scored.sum()), len(scored), len(values) - len(scored)))
            total.add(tally)
            documents += 1
            if by_document:
                listed.append({"source": document[0].source, "begins": document[0].text[:60], "tokens": tally.tokens,
                               "words": tally.words, **tally.measures()})
    seconds = time.perf_counter() - began
    if not total.tokens:
        raise UserError("no document has more than one token, and the vocabulary has none that could stand before it, "
                        "so there is nothing to predict; give a longer text.")
    if total.words == 1:
        logger.warning("the text is a single word; what a model makes of it says little about the model.")
    unknown = total.unknown / (total.tokens + total.unscored)
    if warning := _warning(unknown, tokenizer.lowercase, lossless):
        logger.warning(warning)
    how = {"length": reader.length, **({"memory": reader.memory} if reader.remembers else {"stride": reader.stride})}
    result = {**total.measures(), "tokens": total.tokens, "unscored": total.unscored, "words": total.words,
              "bytes": total.bytes, "characters": total.characters, "documents": documents, "unknown_rate": unknown,
              "lossless": lossless, **how, "seconds": seconds, "tokens_per_second": total.tokens / max(seconds, 1e-9)}
    return {**result, "by_document": listed} if by_document else result


def _groups(passages: Iterable[Passage]) -> Iterator[list[list[Passage]]]:
    """Whole documents, several at a time."""
    group: list[list[Passage]] = []
    size = 0
    for passage in passages:
        if passage.begins and size > GROUP_CHARACTERS:
            yield group
            group, size = [], 0
        if passage.begins:
            group.append([])
        group[-1].append(passage)
        size += len(passage.text)
    if group:
        yield group


def _prepare(reader: TextReader, group: Sequence[Sequence[Passage]]) -> tuple[list[np.ndarray], list[Tally], bool]:
    """The tokens of each document, what is to be counted of it, and whether the tokens spell the very text."""
    tokenizer = reader.model.needs_tokenizer()
    unknown = tokenizer.roles.get("unknown", -1)
    encodings = iter(tokenizer.encode_batch([passage.text for passage in chain(*group)], special=False))
    texts, tallies, faithful = [], [], True
    for document in group:
        ids: list[int] = []
        tally = Tally()
        for number, passage in enumerate(document):
            encoding, text = next(encodings), passage.text
            faithful = faithful and tokenizer.decode(encoding.ids, skip_special=False) == text
            tally.unknown += encoding.ids.count(unknown)
            ids += encoding.ids
            # what stands at a token that is not scored must not be counted either
            if reader.start is None and encoding.ids and number == (len(document) - 1 if reader.backward else 0):
                text = text[:encoding.offsets[-1][0]] if reader.backward else text[encoding.offsets[0][1]:]
            tally.count(text)
        texts.append(np.array(ids, np.int64))
        tallies.append(tally)
    return texts, tallies, faithful


def _warning(unknown: float, lowercase: bool, lossless: bool) -> str | None:
    """Why the numbers per word, byte and character may not be comparable: what was scored is not what was counted."""
    if unknown:
        return (f"{unknown:.2%} of the tokens are unknown to this vocabulary, all scored as one and the same token: "
                "its bits per byte cannot be compared with those of a model that can spell every word.")
    if lowercase:
        return ("this vocabulary knows no capitals, so what was scored is the lower-cased text: compare its bits per "
                "byte only with models that read it so.")
    if not lossless:
        return ("this vocabulary does not keep all white space or spellings, so what was scored is a simpler text: "
                "compare its bits per byte only with models that read it so.")
    return None
