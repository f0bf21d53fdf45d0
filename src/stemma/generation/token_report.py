"""A report per token: its probability, the most probable token, and metrics of the network, such as the ponder steps of
the Universal Transformer."""

from __future__ import annotations

from typing import Any

import torch

from stemma.errors import UserError
from stemma.generation.decoding_mode import decoding_mode
from stemma.model import Model


def token_report(model: Model, text: str) -> list[dict[str, Any]]:
    """One entry per token: the token, its probability given those before it, the most probable token, and metrics."""
    tokenizer = model.require_tokenizer()
    corpus = model.recipe.settings.corpus
    encoding = tokenizer.with_template(corpus.single, corpus.pair).encode(text)
    if not encoding.ids:
        raise UserError("there is no text to look at; give a sentence.")
    ids = torch.tensor([encoding.ids])
    stream = model.encoder_stream(ids, token_type_ids=torch.tensor([encoding.type_ids]))
    with torch.inference_mode():
        hidden = model.network({"encoder": stream})
        entries: list[dict[str, Any]] = [{"token": token} for token in tokenizer.ids_to_tokens(encoding.ids)]
        if decoding_mode(model.recipe) == "next" and "vocabulary" in model.network.heads:
            probabilities = model.lm_head()(hidden["encoder"])[0].float().softmax(-1)
            best = probabilities[:, : tokenizer.vocab_size].argmax(-1).tolist()
            for position, entry in enumerate(entries[1:]):  # position predicts the token after it
                entry["probability"] = float(probabilities[position, ids[0, position + 1]])
                entry["expected"] = tokenizer.id_to_token(best[position])
        for name, values in hidden.metrics.items():
            for entry, value in zip(entries, values[0].tolist(), strict=True):
                entry[name] = value
    return entries
