"""How well a language model predicts a text, in units that do not depend on its vocabulary.

Perplexity per token compares models that cut text alike. The same nats over the words, bytes or characters of the raw
text compare any two models: a word is what stands between white space, and a Chinese character is a word of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stemma.errors import UserError
from stemma.exchange.model import Model
from stemma.generation.score import score_tokens
from stemma.generation.windows import TextReader
from stemma.text.readers import Passage
from stemma.text.words import CJK_RUN

GROUP_TOKENS = 1 << 20  # scored at a time, so that memory does not grow with the text
Notice = Callable[[str], None]


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


@dataclass
class Document:
    source: str
    tokens: list[np.ndarray] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    edge: str = ""  # the text of the token that is read first: counted only if it is scored


def count_words(text: str) -> int:
    """Between white space, and each Chinese character by itself."""
    return sum(len(run[0]) for run in CJK_RUN.finditer(text)) + len(CJK_RUN.sub(" ", text).split())


def power(nats: float, count: int) -> float:
    """e to the mean; infinite where no number is large enough."""
    if not count:
        return math.nan
    return math.exp(nats / count) if nats / count < 700 else math.inf


def perplexity(model: Model, passages: Iterable[Passage], length: int | None = None, stride: int | None = None,
               memory: int | None = None, by_document: bool = False, notice: Notice = lambda text: None,
               watch: Callable[[int], None] = lambda tokens: None) -> dict[str, Any]:
    """Each document is read on its own, behind the token that parts documents. `watch` hears of scored tokens."""
    tokenizer = model.needs_tokenizer()
    reader = TextReader(model, length, stride, memory)
    total, listed, documents, lossless = Tally(), [], 0, True
    began = time.perf_counter()
    for group in _groups(_documents(reader, passages)):
        texts = [np.concatenate(document.tokens) for document in group]
        if lossless:
            lossless = all(document.faithful for document in group)
        for document, values in zip(group, score_tokens(reader, texts, watch), strict=True):
            scored = values[~np.isnan(values)]
            document.tally.nats -= float(scored.sum())
            document.tally.tokens += len(scored)
            document.tally.unscored += len(values) - len(scored)
            total.add(document.tally)
            documents += 1
            if by_document:
                listed.append({"source": document.source, "tokens": document.tally.tokens, "words":
                               document.tally.words, **document.tally.measures()})
    seconds = time.perf_counter() - began
    if not total.tokens:
        raise UserError("the text is one token in each document, and the vocabulary has no token that could stand "
                        "before it, so there is nothing to predict; give a longer text.")
    if total.words == 1:
        notice("the text is a single word; what a model makes of it says little about the model.")
    unknown = total.unknown / (total.tokens + total.unscored)
    for warning in _warnings(tokenizer.lowercase, unknown, lossless):
        notice(warning)
    how = {"length": reader.length, **({"memory": reader.memory} if reader.remembers else {"stride": reader.stride})}
    result = {**total.measures(), "tokens": total.tokens, "unscored": total.unscored, "words": total.words,
              "bytes": total.bytes, "characters": total.characters, "documents": documents, "unknown_rate": unknown,
              "lossless": lossless, **how, "seconds": seconds, "tokens_per_second": total.tokens / max(seconds, 1e-9)}
    return {**result, "by_document": listed} if by_document else result
