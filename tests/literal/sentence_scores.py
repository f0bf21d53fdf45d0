"""Scores of a sentence, one forward pass per token and no batching: the definitions, written out."""

from __future__ import annotations

import torch

from stemma.model import Model
from stemma.network.inputs_outputs import Stream
from stemma.visibility import Bidirectional, Causal


def token_ids(model: Model, text: str) -> list[int]:
    return model.require_tokenizer().encode(text, special=False).ids


def log_p(logits: torch.Tensor, token: int) -> float:
    return float(logits.double().log_softmax(-1)[token])


def causal(model: Model, text: str, separator: bool = True) -> float:
    """log p(w1 | separator) + log p(w2 | separator w1) + ..."""
    ids = ([model.document_separator_id] if separator else []) + token_ids(model, text)
    return sum(log_p(model.logits(torch.tensor([ids[:i]]))[0, -1], ids[i]) for i in range(1, len(ids)))


def masked(model: Model, text: str) -> float:
    """Sum of log p(w_i | all other tokens), with [MASK] at position i (Salazar et al. 2020, equation 1)."""
    tokenizer = model.require_tokenizer()
    special = tokenizer.special_token_ids
    ids = [special["start"], *token_ids(model, text), special["separator"]]
    total = 0.0
    for i in range(1, len(ids) - 1):
        row = [*ids[:i], special["mask"], *ids[i + 1:]]
        segments = torch.zeros(1, len(row), dtype=torch.long)
        total += log_p(model.logits(torch.tensor([row]), token_type_ids=segments)[0, i], ids[i])
    return total


def t5(model: Model, text: str) -> float:
    """Sum of log p(w_i | text with a sentinel for w_i, decoder: start, sentinel)."""
    special = model.require_tokenizer().special_token_ids
    ids = token_ids(model, text)
    start = special[model.recipe.settings.corpus.decoder_start]
    total = 0.0
    for i in range(len(ids)):
        source = [*ids[:i], special["sentinel"], *ids[i + 1:], special["end"]]
        logits = model.logits(torch.tensor([source]), decoder_input_ids=torch.tensor([[start, special["sentinel"]]]))
        total += log_p(logits[0, -1], ids[i])
    return total


def bart(model: Model, text: str) -> float:
    """Sum of log p(w_i | text with a mask for w_i, decoder: start, begin, w_1 ... w_i-1)."""
    special = model.require_tokenizer().special_token_ids
    ids = token_ids(model, text)
    start = special[model.recipe.settings.corpus.decoder_start]
    total = 0.0
    for i in range(len(ids)):
        source = [special["start"], *ids[:i], special["mask"], *ids[i + 1:], special["end"]]
        logits = model.logits(torch.tensor([source]),
                              decoder_input_ids=torch.tensor([[start, special["start"], *ids[:i]]]))
        total += log_p(logits[0, -1], ids[i])
    return total


def mass(model: Model, text: str) -> float:
    """Sum of log p(w_i | text with a mask for w_i, decoder: a mask at the position of w_i)."""
    special = model.require_tokenizer().special_token_ids
    ids = token_ids(model, text)
    total = 0.0
    for i in range(len(ids)):
        source = torch.tensor([[*ids[:i], special["mask"], *ids[i + 1:], special["end"]]])
        decoder = Stream(torch.tensor([[special["mask"]]]), Causal(), torch.tensor([[i]]))
        hidden = model.network({"encoder": Stream(source, Bidirectional()), "decoder": decoder})["decoder"]
        total += log_p(model.lm_head()(hidden)[0, -1], ids[i])
    return total


def xlnet(reference: torch.nn.Module, model: Model, text: str) -> float:
    """Sum of log p(w_i | all other tokens): no position attends to token i, and the query at i is the target. With
    transformers' XLNet."""
    special = model.require_tokenizer().special_token_ids
    ids = token_ids(model, text)
    row = torch.tensor([[*ids, special["separator"], special["start"]]])
    segments = torch.tensor([[0] * (len(ids) + 1) + [2]])
    length, total = row.shape[1], 0.0
    for i in range(len(ids)):
        perm_mask, target_mapping = torch.zeros(1, length, length), torch.zeros(1, 1, length)
        perm_mask[:, :, i] = 1
        target_mapping[0, 0, i] = 1
        with torch.no_grad():
            logits = reference(row, perm_mask=perm_mask, target_mapping=target_mapping, token_type_ids=segments).logits
        total += log_p(logits[0, 0], ids[i])
    return total
