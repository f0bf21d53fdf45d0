"""Masked-token accuracy and loss on held-out text: of the model, and of counting models at the same positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.packers import Packer
from stemma.corpus.row_template import RowTemplate
from stemma.corpus.sampler import RowSampler
from stemma.corpus.subset import train_validation_split
from stemma.exchange.load import load
from stemma.generation.fill import fill
from stemma.model import Model
from stemma.objectives import build_objectives
from stemma.objectives.masked_lm import LM_HEAD_NAME
from stemma.objectives.masking import choose_tokens
from stemma.recipe_loading import Recipe
from stemma.training.pretrain import pretrain
from stemma.training.pretrain_loader import PretrainLoader

BASELINES = {"unigram": "unigram", "bigram": "left", "two-sided": "both"}  # sizes of the recipe two-sided-ngram
MASKING_RATE = 0.15  # BERT's
MAX_ROWS = 1024  # of held-out text: enough for three digits
BATCH_ROWS = 64


@dataclass(frozen=True)
class MaskedRows:
    """Rows of held-out text with masked positions."""

    input_ids: np.ndarray  # before masking
    lengths: np.ndarray
    targets: np.ndarray


def mask_held_out(corpus: Corpus, recipe: Recipe, seed: int) -> MaskedRows:
    """Held-out text in the recipe's packing, with masked tokens."""
    settings = recipe.settings.corpus
    template = RowTemplate.from_tokenizer(corpus.tokenizer, settings.single, settings.pair, settings.sequence_length,
                                          boundary=settings.boundary)
    subset, _ = train_validation_split(corpus, 0.0)
    pieces = RowSampler(subset, Packer(settings.packing, template), seed).first_rows(MAX_ROWS)
    draft = Draft(subset, pieces, template)
    targets = choose_tokens(draft, MASKING_RATE, np.random.default_rng(seed))
    return MaskedRows(draft.input_ids, draft.lengths, targets)


def count_baselines(corpus: Path, folder: Path) -> dict[str, Model]:
    """Models of the recipe two-sided-ngram, counted in the training text of this corpus: runs in this folder."""
    models = {}
    for name, size in BASELINES.items():
        if not (folder / name / "result.json").is_file():
            pretrain(f"two-sided-ngram@{size}", corpus, folder / name, overwrite=True)
        models[name] = load(folder / name)
    return models


def baseline_scores(models: Mapping[str, Model], masked_rows: MaskedRows) -> dict[str, dict[str, float]]:
    """Accuracy and loss of the baselines."""
    return {name: model_scores(model, masked_rows) for name, model in models.items()}


@torch.inference_mode()
def model_scores(model: Model, masked_rows: MaskedRows) -> dict[str, float]:
    """Accuracy and loss of the model at the same positions, each replaced by a mask token."""
    masked = np.where(masked_rows.targets, model.require_tokenizer().special_id("mask"), masked_rows.input_ids)
    head, correct, total_loss = model.lm_head(), 0, 0.0
    for start in range(0, len(masked), BATCH_ROWS):
        rows = slice(start, start + BATCH_ROWS)
        length = int(masked_rows.lengths[rows].max())
        attention_mask = torch.arange(length) < torch.from_numpy(masked_rows.lengths[rows])[:, None]
        targets = torch.from_numpy(masked_rows.targets[rows, :length])
        states = model.hidden(torch.from_numpy(masked[rows, :length].astype(np.int64)), attention_mask)
        labels = torch.from_numpy(masked_rows.input_ids[rows, :length].astype(np.int64))[targets]
        predicting = targets.roll(-model.mask_shift, 1)
        logits = head(states[predicting.to(states.device)]).float().cpu()
        correct += int((logits.argmax(-1) == labels).sum())
        total_loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
    count = int(masked_rows.targets.sum())
    return {"accuracy": correct / count, "loss": total_loss / count}


@torch.inference_mode()
def validation_baselines(models: Mapping[str, Model], recipe: Recipe, corpus: Corpus, seed: int) -> dict[str, float]:
    """The loss of the baselines at the targets of the run's validation batches, for its learning curve."""
    loader = PretrainLoader(recipe, corpus, build_objectives(recipe), seed)
    try:
        batches = loader.validation_batches(recipe.settings.corpus.sequence_length)
    finally:
        loader.close()
    mask_id = corpus.tokenizer.special_id("mask")
    shift = max((task.target_shift for task in recipe.settings.objective.values()), default=0)
    losses: dict[str, list[tuple[float, int]]] = {name: [] for name in models}
    for _, batch in batches:
        if batch.streams["encoder"].attention_mask.causal:
            continue
        target = batch.token_targets[LM_HEAD_NAME]
        input_ids = batch.streams["encoder"].input_ids
        assert input_ids is not None
        positions = target.index + shift
        ids = input_ids.flatten().index_fill(0, positions, mask_id).view_as(input_ids)
        for name, model in models.items():
            hidden = model.hidden(ids).flatten(0, 1)[positions]
            losses[name].append((float(model.lm_head().loss(hidden, target.labels, 1.0)), len(positions)))
    return {name: sum(loss for loss, _ in parts) / sum(count for _, count in parts)
            for name, parts in losses.items() if parts}


def sample_fills(model: Model, sentences: Sequence[str], count: int, seed: int) -> list[dict[str, Any]]:
    """A random sample of held-out sentences with one masked word: the gold word and the model's predictions."""
    tokenizer = model.require_tokenizer()
    rng = np.random.default_rng(seed)
    sample: list[dict[str, Any]] = []
    for index in rng.permutation(len(sentences)):
        words = sentences[index].split()
        single_token = [i for i, word in enumerate(words)
                        if word.isalpha() and len(tokenizer.encode(word, special=False).ids) == 1]
        if len(sample) == count:
            break
        if 8 <= len(words) <= 14 and single_token:
            position = int(rng.choice(single_token))
            text = " ".join([*words[:position], "[MASK]", *words[position + 1:]])
            candidates = fill(model, text, top=3)[0]["candidates"]
            sample.append({"text": text, "truth": words[position], "guesses": candidates})
    return sample


def sample_std(values: Sequence[float]) -> float:
    """The sample standard deviation; 0 of a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
