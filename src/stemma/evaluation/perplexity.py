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
from stemma.evaluation.likelihood import score_tokens
from stemma.evaluation.lm_scorer import LMScorer
from stemma.model import Model
from stemma.text.chinese_words import CJK_RUN
from stemma.text.readers import Passage

logger = logging.getLogger(__name__)

GROUP_CHARACTERS = 1 << 21  # scored at a time, so that memory does not grow with the text


@dataclass
class LossTotals:
    """What was counted in a text, and what it cost the model."""

    total_nats: float = 0.0
    num_tokens: int = 0  # scored ones
    num_unscored: int = 0  # first ones, with nothing to guess them from
    num_unknown: int = 0
    num_words: int = 0
    num_bytes: int = 0
    num_characters: int = 0

    def add(self, other: LossTotals) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def count_text(self, text: str) -> None:
        self.num_words += count_words(text)
        self.num_bytes += len(text.encode())
        self.num_characters += len(text)

    def metrics(self) -> dict[str, float]:
        bits = self.total_nats / math.log(2)
        return {"perplexity": exp_mean(self.total_nats, self.num_tokens),
                "word_perplexity": exp_mean(self.total_nats, self.num_words),
                "bits_per_byte": bits / self.num_bytes if self.num_bytes else math.nan,
                "bits_per_character": bits / self.num_characters if self.num_characters else math.nan}


def count_words(text: str) -> int:
    """Between white space, and each Chinese character by itself."""
    return sum(len(run[0]) for run in CJK_RUN.finditer(text)) + len(CJK_RUN.sub(" ", text).split())


def exp_mean(nats: float, count: int) -> float:
    """e to the mean; infinite where no number is large enough."""
    if not count:
        return math.nan
    return math.exp(nats / count) if nats / count < 700 else math.inf


def perplexity(model: Model, passages: Iterable[Passage], length: int | None = None, stride: int | None = None,
               memory: int | None = None, by_document: bool = False,
               on_progress: Callable[[int], None] = lambda tokens: None) -> dict[str, Any]:
    """Each document is read on its own, behind the token that parts documents. `watch` hears of scored tokens."""
    tokenizer = model.require_tokenizer()
    reader = LMScorer(model, length, stride, memory)
    total, listed, documents, lossless = LossTotals(), [], 0, True
    began = time.perf_counter()
    for group in _document_groups(passages):
        texts, tallies, faithful = _encode_group(reader, group)
        lossless = lossless and faithful
        for document, tally, values in zip(group, tallies, score_tokens(reader, texts, on_progress), strict=True):
            scored = values[~np.isnan(values)]
            tally.add(LossTotals(-float(scored.sum()), len(scored), len(values) - len(scored)))
            total.add(tally)
            documents += 1
            if by_document:
                listed.append({"source": document[0].source, "begins": document[0].text[:60],
                               "tokens": tally.num_tokens,
                               "words": tally.num_words, **tally.metrics()})
    seconds = time.perf_counter() - began
    if not total.num_tokens:
        raise UserError("no document has more than one token, and the vocabulary has none that could stand before it, "
                        "so there is nothing to predict; give a longer text.")
    if total.num_words == 1:
        logger.warning("the text is a single word; what a model makes of it says little about the model.")
    unknown = total.num_unknown / (total.num_tokens + total.num_unscored)
    if warning := _comparability_warning(unknown, tokenizer.lowercase, lossless):
        logger.warning(warning)
    how = {"length": reader.length, **({"memory": reader.memory} if reader.has_memory else {"stride": reader.stride})}
    result = {**total.metrics(), "tokens": total.num_tokens, "unscored": total.num_unscored, "words": total.num_words,
              "bytes": total.num_bytes, "characters": total.num_characters, "documents": documents,
              "unknown_rate": unknown,
              "lossless": lossless, **how, "seconds": seconds, "tokens_per_second": total.num_tokens / max(seconds,
                                                                                                           1e-9)}
    return {**result, "by_document": listed} if by_document else result


def _document_groups(passages: Iterable[Passage]) -> Iterator[list[list[Passage]]]:
    """Whole documents, several at a time."""
    group: list[list[Passage]] = []
    size = 0
    for passage in passages:
        if passage.starts_document and size > GROUP_CHARACTERS:
            yield group
            group, size = [], 0
        if passage.starts_document:
            group.append([])
        group[-1].append(passage)
        size += len(passage.text)
    if group:
        yield group


def _encode_group(scorer: LMScorer, group: Sequence[Sequence[Passage]]) -> tuple[list[np.ndarray], list[LossTotals],
                                                                                 bool]:
    """The tokens of each document, what is to be counted of it, and whether the tokens spell the very text."""
    tokenizer = scorer.model.require_tokenizer()
    unknown = tokenizer.special_token_ids.get("unknown", -1)
    encodings = iter(tokenizer.encode_batch([passage.text for passage in chain(*group)], special=False))
    texts, tallies, faithful = [], [], True
    for document in group:
        ids: list[int] = []
        tally = LossTotals()
        for number, passage in enumerate(document):
            encoding, text = next(encodings), passage.text
            faithful = faithful and tokenizer.decode(encoding.ids, skip_special=False) == text
            tally.num_unknown += encoding.ids.count(unknown)
            ids += encoding.ids
            # what stands at a token that is not scored must not be counted either
            if scorer.bos_id is None and encoding.ids and number == (len(document) - 1 if scorer.right_to_left else 0):
                text = text[:encoding.offsets[-1][0]] if scorer.right_to_left else text[encoding.offsets[0][1]:]
            tally.count_text(text)
        texts.append(np.array(ids, np.int64))
        tallies.append(tally)
    return texts, tallies, faithful


def _comparability_warning(unknown: float, lowercase: bool, lossless: bool) -> str | None:
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
