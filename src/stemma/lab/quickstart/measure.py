"""What pre-training was worth, measured on text the model never saw: hidden words guessed, and few labels learnt from.

Both questions come with something to compare with. Counting neighbours answers the first one too, at the very same
places; who else answers the second one stands in `starts.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stemma.corpus.draft import Draft
from stemma.corpus.feed import Feed
from stemma.corpus.layout import Layout
from stemma.corpus.packers import Packing
from stemma.corpus.shards import Corpus
from stemma.corpus.view import split
from stemma.exchange.model import Model
from stemma.generation.fill import fill
from stemma.lab.quickstart.baselines import Bigram, TwoSided, Unigram
from stemma.lineage import Recipe
from stemma.objectives import build_objectives
from stemma.objectives.masked_lm import HEAD
from stemma.objectives.masking import choose_tokens
from stemma.training.supply import Supply

BASELINES = {"unigram": Unigram, "bigram": Bigram, "two-sided": TwoSided}
RATE = 0.15  # of the tokens are hidden: the share that BERT is measured by
MOST_ROWS = 1024  # of held-out text: enough for three digits
ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Hidden:
    """Rows of true ids; which of them are scored, and which the counters may not look at (those and special tokens)."""

    ids: np.ndarray
    lengths: np.ndarray
    scored: np.ndarray
    unseen: np.ndarray


def hide(corpus: Corpus, recipe: Recipe, seed: int) -> Hidden:
    """Held-out text packed as the recipe packs it, with some of its tokens hidden."""
    settings = recipe.settings.corpus
    layout = Layout.of(corpus.tokenizer, settings.single, settings.pair, settings.sequence_length,
                       boundary=settings.boundary)
    everything, _ = split(corpus, 0.0)
    pieces = Feed(everything, Packing(settings.packing, layout), seed).all_rows(MOST_ROWS)
    draft = Draft(everything, pieces, layout)
    chosen = choose_tokens(draft, RATE, np.random.default_rng(seed))
    return Hidden(draft.ids, draft.lengths, chosen, chosen | ~draft.text)


def guess_by_counting(corpus: Corpus, hidden: Hidden) -> dict[str, dict[str, float]]:
    """Accuracy and loss of the counters, which count the training corpus."""
    vocabulary = corpus.tokenizer.vocab_size
    ids = corpus.slice("tokens", 0, corpus.tokens)
    fitted = {name: kind.fit(ids, vocabulary) for name, kind in BASELINES.items()}
    return {name: {"accuracy": model.accuracy(hidden.ids, hidden.unseen, hidden.scored),
                   "loss": model.loss(hidden.ids, hidden.unseen, hidden.scored)} for name, model in fitted.items()}


@torch.inference_mode()
def guess_by_reading(model: Model, hidden: Hidden) -> dict[str, float]:
    """Accuracy and loss of the model at the same places, each behind a mask token."""
    masked = np.where(hidden.scored, model.needs_tokenizer().role("mask"), hidden.ids)
    head, right, lost = model.token_head(), 0, 0.0
    for start in range(0, len(masked), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        longest = int(hidden.lengths[rows].max())
        seen = torch.arange(longest) < torch.from_numpy(hidden.lengths[rows])[:, None]
        scored = torch.from_numpy(hidden.scored[rows, :longest])
        states = model.hidden(torch.from_numpy(masked[rows, :longest].astype(np.int64)), seen)
        labels = torch.from_numpy(hidden.ids[rows, :longest].astype(np.int64))[scored]
        logits = head(states[scored.to(states.device)]).float().cpu()
        right += int((logits.argmax(-1) == labels).sum())
        lost += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
    count = int(hidden.scored.sum())
    return {"accuracy": right / count, "loss": lost / count}


def validation_baselines(recipe: Recipe, corpus: Corpus, seed: int) -> dict[str, float]:
    """The loss of the counters at the places where the run's own validation loss was measured: lines for its curve."""
    supply = Supply(recipe, corpus, build_objectives(recipe), seed)
    try:
        batches = supply.validation_batches(recipe.settings.corpus.sequence_length)
        ids = np.concatenate([corpus.slice("tokens", start, stop) for start, stop in supply.training.documents])
    finally:
        supply.close()
    special = corpus.tokenizer.special_ids
    losses: dict[str, list[tuple[float, int]]] = {name: [] for name in BASELINES}
    fitted = {name: kind.fit(ids, corpus.tokenizer.vocab_size) for name, kind in BASELINES.items()}
    for _, batch in batches:
        target = batch.scores[HEAD]
        read = batch.streams["encoder"].ids
        assert read is not None
        rows = read.numpy().copy()
        rows.reshape(-1)[target.index.numpy()] = target.labels.numpy()
        scored = np.zeros(rows.shape, dtype=bool)
        scored.reshape(-1)[target.index.numpy()] = True
        unseen = scored | np.isin(rows, special)
        for name, model in fitted.items():
            losses[name].append((model.loss(rows, unseen, scored), int(scored.sum())))
    return {name: sum(loss * count for loss, count in parts) / sum(count for _, count in parts)
            for name, parts in losses.items() if parts}


def fill_some(model: Model, sentences: Sequence[str], count: int, seed: int) -> list[dict[str, Any]]:
    """Held-out sentences with one word hidden, drawn at random: what stood there, and what the model thinks."""
    tokenizer = model.needs_tokenizer()
    rng = np.random.default_rng(seed)
    shown: list[dict[str, Any]] = []
    for index in rng.permutation(len(sentences)):
        words = sentences[index].split()
        whole = [i for i, word in enumerate(words)
                 if word.isalpha() and len(tokenizer.encode(word, special=False).ids) == 1]
        if len(shown) == count:
            break
        if 8 <= len(words) <= 14 and whole:
            place = int(rng.choice(whole))
            text = " ".join([*words[:place], "[MASK]", *words[place + 1:]])
            guesses = fill(model, text, top=3)[0]["candidates"]
            shown.append({"text": text, "truth": words[place], "guesses": guesses})
    return shown


def spread(values: Sequence[float]) -> float:
    """The sample standard deviation; 0 of a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
