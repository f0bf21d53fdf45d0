"""A look inside, token by token: how well each token was foreseen, what was expected instead, how long it was thought
about (the Universal Transformer decides that for each place by itself)."""

from __future__ import annotations

from typing import Any

import torch

from stemma.errors import UserError
from stemma.generation.decoding_mode import decoding_mode
from stemma.model import Model


def token_report(model: Model, text: str) -> list[dict[str, Any]]:
    """One entry a token: the token, its probability given those before it, the likeliest one, and the steps taken."""
    tokenizer = model.require_tokenizer()
    corpus = model.recipe.settings.corpus
    encoding = tokenizer.with_template(corpus.single, corpus.pair).encode(text)
    if not encoding.ids:
        raise UserError("there is no text to look at; give a sentence.")
    ids = torch.tensor([encoding.ids])
    stream = model.encoder_stream(ids, token_type_ids=torch.tensor([encoding.type_ids]))
    with torch.inference_mode():
        hidden = model.network({"encoder": stream})
        found: list[dict[str, Any]] = [{"token": token} for token in tokenizer.ids_to_tokens(encoding.ids)]
        if decoding_mode(model.recipe) == "next" and "vocabulary" in model.network.heads:
            chances = model.lm_head()(hidden["encoder"])[0].float().softmax(-1)
            best = chances[:, : tokenizer.vocab_size].argmax(-1).tolist()
            for place, after in enumerate(found[1:]):
                after["probability"] = float(chances[place, ids[0, place + 1]])
                after["expected"] = tokenizer.id_to_token(best[place])
        for name, measure in hidden.metrics.items():
            for entry, value in zip(found, measure[0].tolist(), strict=True):
                entry[name] = value
    return found
