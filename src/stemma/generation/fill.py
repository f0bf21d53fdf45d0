"""Predict masked tokens: what `stemma fill` does."""

from __future__ import annotations

import re
from typing import Any

import torch

from stemma.errors import UserError
from stemma.generation.decoding_mode import decoding_mode
from stemma.model import Model

MASK_STRINGS = ("[MASK]", "<mask>")  # accepted for every vocabulary, whatever its mask token
SPACE_IN_TOKEN = ("byte_bpe", "unigram")  # kinds of tokenizers whose tokens contain the space before a word


def fill(model: Model, text: str, top: int = 5) -> list[dict[str, Any]]:
    """For each mask of the text, the most probable tokens with their probabilities."""
    if model.is_encoder_decoder:
        raise UserError(f"{model.recipe.label} does not predict tokens at masks: its decoder generates text; use "
                        "`stemma generate` with the text as its source.")
    if not any(task.masks_tokens for task in model.recipe.settings.objective.values()):
        _require_masked_lm(model)
    tokenizer = model.require_tokenizer()
    mask = tokenizer.special_id("mask")
    mask_token = tokenizer.id_to_token(mask)
    for mask_string in MASK_STRINGS:
        text = text.replace(mask_string, mask_token)
    if tokenizer.kind in SPACE_IN_TOKEN:  # otherwise the space before a mask is a token of its own
        text = re.sub(rf"\s+(?={re.escape(mask_token)})", "", text)
    corpus = model.recipe.settings.corpus
    encoding = tokenizer.with_template(corpus.single, corpus.pair).encode(text)
    positions = [position for position, token in enumerate(encoding.ids) if token == mask]
    if not positions:
        raise UserError(f"the text has no mask to fill; write {mask_token} where a word should be predicted.")
    if top < 1:
        raise UserError(f"--top must be at least 1, not {top}.")
    head = model.lm_head()
    hidden = model.hidden(torch.tensor([encoding.ids]), token_type_ids=torch.tensor([encoding.type_ids]))
    with torch.inference_mode():
        predicting = [position - model.mask_shift for position in positions]
        # rows beyond the tokenizer's vocabulary pad the embedding matrix and are not tokens
        logits = head(hidden[0, predicting]).float()
        if any(not task.predicts_mask_token for task in model.recipe.settings.objective.values()):
            logits[:, mask] = -torch.inf
        probabilities = logits.softmax(-1)[:, : tokenizer.vocab_size]
    best = probabilities.topk(min(top, probabilities.shape[-1]))
    return [{"position": position, "candidates": [{"token": tokenizer.id_to_token(int(token)),
                                                   "probability": float(probability)}
                                                  for token, probability in zip(tokens, values, strict=True)]}
            for position, tokens, values in zip(positions, best.indices, best.values, strict=True)]


def _require_masked_lm(model: Model) -> None:
    """Refuse models that were pre-trained without masks, even if their tokenizer has a mask token."""
    pretraining = {"permuted": "predicted tokens in permuted order, without a mask token",
                   "next": "read text in one direction, without masks",
                   "prefix": "continued texts, without masks"}
    mode = decoding_mode(model.recipe)
    if mode is None:
        model.require_tokenizer()
        model.lm_head()  # refuses a model without one
    if mode in pretraining:
        raise UserError(f"{model.recipe.label} cannot fill a mask: in pre-training it {pretraining[mode]}. "
                        "`stemma generate MODEL \"...\"` continues the words before the gap; to fill masks take a "
                        "masked language model, such as bert.")
