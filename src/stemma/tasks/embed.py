"""Embeddings of texts and of their tokens: hidden states of a layer, one vector for each text or for each token."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Encoding
from torch import Tensor
from torch.nn import functional

from stemma.errors import UserError
from stemma.model import Model
from stemma.network.input_checks import padded_inputs
from stemma.tasks.layer_states import ALL, batches_of_layer_states, parse_layer

logger = logging.getLogger(__name__)

POOLINGS = ("mean", "start")


@dataclass(frozen=True)
class TokenVectors:
    """The tokens of a text without special tokens, their (start, end) in the text, and a vector for each."""

    tokens: list[str]
    offsets: list[tuple[int, int]]
    vectors: np.ndarray  # (tokens, width), or (layers, tokens, width) for all layers; float32


def embed(model: Model, texts: Sequence[str], pooling: str = "mean", normalize: bool = False,
          inputs: Mapping[str, Sequence[Any]] | None = None, layer: str | int | None = None) -> np.ndarray:
    """(texts, width) float32; for layer "all" (texts, layers, width). `inputs`: named extra inputs, an array per text
    with a row per token, special tokens included. `layer`: as in `layer_states.py`; None: the last one."""
    if pooling not in POOLINGS:
        raise UserError(f'--pooling is "{pooling}"; choose {" or ".join(POOLINGS)}.')
    chosen = parse_layer(layer)
    encodings = _encode(model, texts)
    rows, extra = [encoding.ids for encoding in encodings], _extra_inputs(model, texts, encodings, inputs)
    vectors: np.ndarray | None = None
    for indices, states, mask in batches_of_layer_states(model, rows, extra, chosen):
        if pooling == "mean":
            weight = mask.to(states)[None, :, :, None]
            pooled = (states * weight).sum(2) / weight.sum(2)
        else:
            pooled = states[:, :, 0]
        if normalize:
            pooled = functional.normalize(pooled, dim=-1)
        by_text = pooled.transpose(0, 1).cpu().numpy()  # (B, layers, width)
        if vectors is None:
            vectors = np.zeros((len(texts), *by_text.shape[1:]), dtype=np.float32)
        vectors[indices] = by_text
    if vectors is None:
        network = model.recipe.settings.network
        vectors = np.zeros((0, network.parts()["encoder"].layers + 1, network.width), dtype=np.float32)
    return vectors if chosen == ALL else vectors[:, 0]


def embed_tokens(model: Model, texts: Sequence[str], layer: str | int | None = None,
                 inputs: Mapping[str, Sequence[Any]] | None = None) -> list[TokenVectors]:
    """The vectors of the tokens of each text. Tokens beyond the length of the model are missing."""
    chosen = parse_layer(layer)
    encodings = _encode(model, texts)
    rows, extra = [encoding.ids for encoding in encodings], _extra_inputs(model, texts, encodings, inputs)
    results: dict[int, TokenVectors] = {}
    for indices, states, _ in batches_of_layer_states(model, rows, extra, chosen):
        by_text = states.transpose(0, 1).cpu().numpy()  # (B, layers, L, width)
        for index, vectors in zip(indices, by_text, strict=True):
            encoding = encodings[index]
            kept = [position for position, special in enumerate(encoding.special_tokens_mask) if not special]
            results[index] = TokenVectors([encoding.tokens[position] for position in kept],
                                          [encoding.offsets[position] for position in kept],
                                          vectors[:, kept] if chosen == ALL else vectors[0, kept])
    return [results[index] for index in range(len(texts))]


def token_arrays(texts: Sequence[TokenVectors]) -> dict[str, np.ndarray]:
    """The tokens of all texts as arrays with a row for each token: vectors, token, text, start, end."""
    lengths = [len(text.tokens) for text in texts]
    vectors = [text.vectors if text.vectors.ndim == 2 else text.vectors.swapaxes(0, 1) for text in texts]
    offsets = np.array([span for text in texts for span in text.offsets], dtype=np.int64).reshape(-1, 2)
    return {"vectors": np.concatenate(vectors) if vectors else np.zeros((0, 0), dtype=np.float32),
            "token": np.array([token for text in texts for token in text.tokens], dtype=np.str_),
            "text": np.repeat(np.arange(len(texts)), lengths), "start": offsets[:, 0], "end": offsets[:, 1]}


def _encode(model: Model, texts: Sequence[str]) -> list[Encoding]:
    """The texts as token ids with special tokens, truncated to the length of the model."""
    model.require_hidden_states("embed texts")
    tokenizer = model.require_tokenizer()
    corpus = model.recipe.settings.corpus
    limit = corpus.sequence_length  # longer positions were never trained
    template = tokenizer.with_template(corpus.single, corpus.pair)
    template.backend.enable_truncation(limit)  # truncates the text, not the special tokens
    encodings = template.encode_batch(list(texts))
    too_long = sum(bool(encoding.overflowing) for encoding in encodings)
    if too_long:
        logger.warning(f"{too_long} of {len(texts)} texts are longer than the {limit} tokens of the model, and were "
                       "truncated.")
    return encodings


def _extra_inputs(model: Model, texts: Sequence[str], encodings: Sequence[Encoding],
                  inputs: Mapping[str, Sequence[Any]] | None) -> dict[str, list[Tensor]]:
    """A tensor (tokens, ...) for each text, by the name of the input: those that are given, and those that read the
    text of unknown words."""
    settings, tokenizer = model.recipe.settings.network.inputs, model.require_tokenizer()
    texts = [tokenizer.pre_normalize(text) for text in texts]
    values = {name: [torch.from_numpy(kind.from_texts(
        tokenizer, np.array(encoding.ids), [text[slice(*offsets)] for offsets in encoding.offsets]))
        for text, encoding in zip(texts, encodings, strict=True)]
        for name, kind in settings.items() if kind.reads_text}
    return padded_inputs(inputs, settings, [len(encoding.ids) for encoding in encodings], model.recipe.label) | values
