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

from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.packers import Packer
from stemma.corpus.row_template import RowTemplate
from stemma.corpus.sampler import RowSampler
from stemma.corpus.subset import train_validation_split
from stemma.generation.fill import fill
from stemma.lab.quickstart.baselines import BigramBaseline, TwoSidedBaseline, UnigramBaseline
from stemma.model import Model
from stemma.objectives import build_objectives
from stemma.objectives.masked_lm import LM_HEAD_NAME
from stemma.objectives.masking import choose_tokens
from stemma.recipe_loading import Recipe
from stemma.training.pretrain_loader import PretrainLoader

BASELINES = {"unigram": UnigramBaseline, "bigram": BigramBaseline, "two-sided": TwoSidedBaseline}
MASKING_RATE = 0.15  # of the tokens are hidden: the share that BERT is measured by
MAX_ROWS = 1024  # of held-out text: enough for three digits
BATCH_ROWS = 64


@dataclass(frozen=True)
class MaskedRows:
    """Rows of true ids; which of them are scored, and which the counters may not look at (those and special tokens)."""

    input_ids: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray
    masked: np.ndarray


def mask_held_out(corpus: Corpus, recipe: Recipe, seed: int) -> MaskedRows:
    """Held-out text packed as the recipe packs it, with some of its tokens hidden."""
    settings = recipe.settings.corpus
    layout = RowTemplate.from_tokenizer(corpus.tokenizer, settings.single, settings.pair, settings.sequence_length,
                       boundary=settings.boundary)
    everything, _ = train_validation_split(corpus, 0.0)
    pieces = RowSampler(everything, Packer(settings.packing, layout), seed).first_rows(MAX_ROWS)
    draft = Draft(everything, pieces, layout)
    chosen = choose_tokens(draft, MASKING_RATE, np.random.default_rng(seed))
    return MaskedRows(draft.input_ids, draft.lengths, chosen, chosen | ~draft.is_text)


def baseline_scores(corpus: Corpus, masked_rows: MaskedRows) -> dict[str, dict[str, float]]:
    """Accuracy and loss of the counters, which count the training corpus."""
    vocabulary = corpus.tokenizer.vocab_size
    ids = corpus.values_between("tokens", 0, corpus.num_tokens)
    fitted = {name: kind.fit(ids, vocabulary) for name, kind in BASELINES.items()}
    return {name: {"accuracy": model.accuracy(masked_rows.input_ids, masked_rows.masked, masked_rows.targets),
                   "loss": model.loss(masked_rows.input_ids, masked_rows.masked, masked_rows.targets)} for name,
            model in fitted.items()}


@torch.inference_mode()
def model_scores(model: Model, masked_rows: MaskedRows) -> dict[str, float]:
    """Accuracy and loss of the model at the same places, each behind a mask token."""
    masked = np.where(masked_rows.targets, model.require_tokenizer().special_id("mask"), masked_rows.input_ids)
    head, right, lost = model.lm_head(), 0, 0.0
    for start in range(0, len(masked), BATCH_ROWS):
        rows = slice(start, start + BATCH_ROWS)
        longest = int(masked_rows.lengths[rows].max())
        seen = torch.arange(longest) < torch.from_numpy(masked_rows.lengths[rows])[:, None]
        scored = torch.from_numpy(masked_rows.targets[rows, :longest])
        states = model.hidden(torch.from_numpy(masked[rows, :longest].astype(np.int64)), seen)
        labels = torch.from_numpy(masked_rows.input_ids[rows, :longest].astype(np.int64))[scored]
        logits = head(states[scored.to(states.device)]).float().cpu()
        right += int((logits.argmax(-1) == labels).sum())
        lost += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
    count = int(masked_rows.targets.sum())
    return {"accuracy": right / count, "loss": lost / count}


def validation_baselines(recipe: Recipe, corpus: Corpus, seed: int) -> dict[str, float]:
    """The loss of the counters at the places where the run's own validation loss was measured: lines for its curve."""
    supply = PretrainLoader(recipe, corpus, build_objectives(recipe), seed)
    try:
        batches = supply.validation_batches(recipe.settings.corpus.sequence_length)
        ids = np.concatenate([corpus.values_between("tokens", start, stop) for start,
                              stop in supply.training.document_ranges])
    finally:
        supply.close()
    special = corpus.tokenizer.special_ids
    losses: dict[str, list[tuple[float, int]]] = {name: [] for name in BASELINES}
    fitted = {name: kind.fit(ids, corpus.tokenizer.vocab_size) for name, kind in BASELINES.items()}
    for _, batch in batches:
        target = batch.token_targets[LM_HEAD_NAME]
        read = batch.streams["encoder"].input_ids
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


def sample_fills(model: Model, sentences: Sequence[str], count: int, seed: int) -> list[dict[str, Any]]:
    """Held-out sentences with one word hidden, drawn at random: what stood there, and what the model thinks."""
    tokenizer = model.require_tokenizer()
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


def sample_std(values: Sequence[float]) -> float:
    """The sample standard deviation; 0 of a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
