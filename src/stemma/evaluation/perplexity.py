"""Perplexity of a language model on text, also in units that do not depend on its vocabulary.

Perplexity per token compares models with the same tokenizer. The same nats per word, byte or character of the raw text
compare any two models. Words are separated by white space, and every Chinese character is a word.

For a masked diffusion model all values are upper bounds (`diffusion_bound.py`).
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
from stemma.evaluation.diffusion_bound import DiffusionScorer, bound_tokens
from stemma.evaluation.likelihood import score_tokens
from stemma.evaluation.lm_scorer import LMScorer
from stemma.generation.decoding_mode import decoding_mode
from stemma.model import Model
from stemma.text.chinese_words import CJK_RUN
from stemma.text.readers import Passage

logger = logging.getLogger(__name__)

GROUP_CHARACTERS = 1 << 21  # scored at a time: memory does not grow with the text


@dataclass
class LossTotals:
    """The total loss of a text, and its tokens, words, bytes and characters."""

    total_nats: float = 0.0
    num_tokens: int = 0  # scored tokens
    num_unscored: int = 0  # first tokens, which have no context
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
    """Words between white space; every Chinese character is one."""
    return sum(len(run[0]) for run in CJK_RUN.finditer(text)) + len(CJK_RUN.sub(" ", text).split())


def exp_mean(nats: float, count: int) -> float:
    """exp(nats / count); infinite on overflow."""
    if not count:
        return math.nan
    return math.exp(nats / count) if nats / count < 700 else math.inf


def perplexity(model: Model, passages: Iterable[Passage], length: int | None = None, stride: int | None = None,
               memory: int | None = None, by_document: bool = False, samples: int | None = None,
               on_progress: Callable[[int], None] = lambda tokens: None) -> dict[str, Any]:
    """Score each document separately, after a document separator. `samples`: masks per window for the bound of a
    diffusion model. `on_progress` gets the number of scored tokens."""
    tokenizer = model.require_tokenizer()
    scorer = _build_scorer(model, length, stride, memory, samples)
    variance = 0.0
    total, rows, documents, lossless = LossTotals(), [], 0, True
    start_time = time.perf_counter()
    for group in _document_groups(passages):
        texts, all_totals, group_lossless = _encode_group(scorer, group)
        lossless = lossless and group_lossless
        if isinstance(scorer, DiffusionScorer):
            bounds = bound_tokens(scorer, texts, on_progress)
            scores = [bound.log_probabilities for bound in bounds]
            variance += sum(bound.variance for bound in bounds)
        else:
            scores = score_tokens(scorer, texts, on_progress)
        for document, totals, values in zip(group, all_totals, scores, strict=True):
            scored = values[~np.isnan(values)]
            totals.add(LossTotals(-float(scored.sum()), len(scored), len(values) - len(scored)))
            total.add(totals)
            documents += 1
            if by_document:
                rows.append({"source": document[0].source, "begins": document[0].text[:60],
                             "tokens": totals.num_tokens, "words": totals.num_words, **totals.metrics()})
    seconds = time.perf_counter() - start_time
    if not total.num_tokens:
        raise UserError("no document has more than one token, and the vocabulary has no separator to put before "
                        "it, so there is nothing to predict; give a longer text.")
    if total.num_words == 1:
        logger.warning("the text is a single word; its perplexity says little about the model.")
    unknown = total.num_unknown / (total.num_tokens + total.num_unscored)
    if warning := _comparability_warning(unknown, tokenizer.lowercase, lossless):
        logger.warning(warning)
    context: dict[str, Any] = {"stride": scorer.stride} if not scorer.has_memory else {} if scorer.memory is None else \
        {"memory": scorer.memory}  # a recurrent state has no length
    result = {**total.metrics(), "tokens": total.num_tokens, "unscored": total.num_unscored, "words": total.num_words,
              "bytes": total.num_bytes, "characters": total.num_characters, "documents": documents,
              "unknown_rate": unknown, "lossless": lossless, "length": scorer.length, **context, "seconds": seconds,
              "tokens_per_second": total.num_tokens / max(seconds, 1e-9)}
    if isinstance(scorer, DiffusionScorer):
        result |= {"bound": True, "samples": scorer.samples, "nats_per_token": total.total_nats / total.num_tokens,
                   "standard_error": math.sqrt(variance) / total.num_tokens if scorer.samples > 1 else None}
    return {**result, "by_document": rows} if by_document else result


def _build_scorer(model: Model, length: int | None, stride: int | None, memory: int | None,
                  samples: int | None) -> LMScorer | DiffusionScorer:
    if decoding_mode(model.recipe) != "diffusion":
        if samples is not None:
            raise UserError(f"--samples is for diffusion models, such as mdlm; {model.recipe.label} gives the exact "
                            "likelihood of a text: leave it out.")
        return LMScorer(model, length, stride, memory)
    if memory is not None:
        raise UserError(f"{model.recipe.label} has no memory; leave out --memory.")
    return DiffusionScorer(model, length, stride, samples)


def _document_groups(passages: Iterable[Passage]) -> Iterator[list[list[Passage]]]:
    """Groups of whole documents."""
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


def _encode_group(scorer: LMScorer | DiffusionScorer,
                  group: Sequence[Sequence[Passage]]) -> tuple[list[np.ndarray], list[LossTotals], bool]:
    """The tokens of each document, its counts, and whether decoding the tokens gives back the text."""
    tokenizer = scorer.model.require_tokenizer()
    unknown = tokenizer.special_token_ids.get("unknown", -1)
    encodings = iter(tokenizer.encode_batch([passage.text for passage in chain(*group)], special=False))
    texts, all_totals, lossless = [], [], True
    for document in group:
        ids: list[int] = []
        totals = LossTotals()
        for index, passage in enumerate(document):
            encoding, text = next(encodings), passage.text
            lossless = lossless and tokenizer.decode(encoding.ids, skip_special=False) == text
            totals.num_unknown += encoding.ids.count(unknown)
            ids += encoding.ids
            # the text of a token that is not scored does not count either
            if scorer.bos_id is None and encoding.ids and index == (len(document) - 1 if scorer.right_to_left else 0):
                text = text[:encoding.offsets[-1][0]] if scorer.right_to_left else text[encoding.offsets[0][1]:]
            totals.count_text(text)
        texts.append(np.array(ids, np.int64))
        all_totals.append(totals)
    return texts, all_totals, lossless


def _comparability_warning(unknown: float, lowercase: bool, lossless: bool) -> str | None:
    """Why the metrics per word, byte and character may not be comparable: the scored text is not the raw text."""
    if unknown:
        return (f"{unknown:.2%} of the tokens are unknown to this vocabulary, all scored as the same token: "
                "its bits per byte cannot be compared with those of a model that can spell every word.")
    if lowercase:
        return ("this vocabulary knows no capitals, so the lower-cased text was scored: compare its bits per byte only "
                "with models that lower-case too.")
    if not lossless:
        return ("this tokenizer does not keep all white space or spellings, so a simpler text was scored: compare its "
                "bits per byte only with models that normalize text in the same way.")
    return None
