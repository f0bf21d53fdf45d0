"""Guess what stands behind a mask."""

from __future__ import annotations

from typing import Any

import torch

from stemma.errors import UserError
from stemma.generation.decoding_mode import decoding_mode
from stemma.model import Model

MASK_STRINGS = ("[MASK]", "<mask>")  # as people write it, whatever this vocabulary calls it


def fill(model: Model, text: str, top: int = 5) -> list[dict[str, Any]]:
    """For each mask of the text, the likeliest tokens with their probabilities."""
    if model.is_encoder_decoder:
        raise UserError(f"{model.recipe.label} does not guess at a mask's place: its decoder writes; use `stemma "
                        "generate` with the text as its source.")
    if not any(task.masks_tokens for task in model.recipe.settings.objective.values()):
        _require_masked_lm(model)
    tokenizer = model.require_tokenizer()
    mask = tokenizer.special_id("mask")
    for spelling in MASK_STRINGS:
        text = text.replace(spelling, tokenizer.id_to_token(mask))
    corpus = model.recipe.settings.corpus
    encoding = tokenizer.with_template(corpus.single, corpus.pair).encode(text)
    places = [place for place, token in enumerate(encoding.ids) if token == mask]
    if not places:
        raise UserError(f"the text has no mask to fill; write {tokenizer.id_to_token(mask)} where a word should be guessed.")
    if top < 1:
        raise UserError(f"--top must be at least 1, not {top}.")
    head = model.lm_head()
    hidden = model.hidden(torch.tensor([encoding.ids]), token_type_ids=torch.tensor([encoding.type_ids]))
    with torch.inference_mode():
        probabilities = head(hidden[0, places]).float().softmax(-1)[:, : tokenizer.vocab_size]  # the rest has no name
    best = probabilities.topk(min(top, probabilities.shape[-1]))
    return [{"position": place, "candidates": [{"token": tokenizer.id_to_token(int(token)),
                                                "probability": float(chance)}
                                               for token, chance in zip(tokens, chances, strict=True)]}
            for place, tokens, chances in zip(places, best.indices, best.values, strict=True)]


def _require_masked_lm(model: Model) -> None:
    """A model that learned without masks has no answer behind one, whatever its tokenizer knows."""
    learned = {"permuted": "guessed hidden positions from the others, without a mask token",
               "next": "read text in one direction, without masks", "prefix": "wrote on from a text, without masks"}
    way = decoding_mode(model.recipe)
    if way in learned:
        raise UserError(f"{model.recipe.label} cannot fill a mask: in pre-training it {learned[way]}. "
                        "`stemma generate MODEL \"...\"` goes on from the words before the gap; to fill masks take a "
                        "masked language model, such as bert.")
