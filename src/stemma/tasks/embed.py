"""Text embeddings: the mean over the tokens, or the hidden state of the first position."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from stemma.errors import UserError
from stemma.model import Model
from stemma.network.input_checks import Inputs, padded_inputs
from stemma.progress import progress_stage

logger = logging.getLogger(__name__)

POOLINGS = ("mean", "start")
BATCH_TOKENS = 8192


def embed(model: Model, texts: Sequence[str], pooling: str = "mean", normalize: bool = False,
          inputs: Mapping[str, Sequence[Any]] | None = None, layer: int | None = None) -> np.ndarray:
    """(texts, width) float32. Batches contain texts of similar length, so there is little padding. `inputs`: named
    extra inputs, an array per text with a row per token, special tokens included. `layer`: 0 is the embedding, -1 the
    last layer; None: the output of the network."""
    if pooling not in POOLINGS:
        raise UserError(f'--pooling is "{pooling}"; choose {" or ".join(POOLINGS)}.')
    model.require_hidden_states("embed texts")
    count = model.network.parts["encoder"].layers
    if layer is not None and not -count - 1 <= layer <= count:
        raise UserError(f"--layer is {layer}, and {model.recipe.label} has {count} layers: choose 0 (the embedding) to "
                        f"{count}, or -1 (the last one) to {-count - 1}.")
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
    extra_inputs = padded_inputs(inputs, model.recipe.settings.network.inputs,
                                 [len(encoding.ids) for encoding in encodings], model.recipe.label)
    extra_inputs |= _text_inputs(model, texts, encodings)
    order = sorted(range(len(texts)), key=lambda i: len(encodings[i].ids))
    vectors: list[np.ndarray] = [np.zeros(0, np.float32)] * len(texts)
    start = 0
    with progress_stage("embedding", len(order), "texts") as work:
        while start < len(order):
            stop = start + 1
            while stop < len(order) and (stop + 1 - start) * len(encodings[order[stop]].ids) <= BATCH_TOKENS:
                stop += 1
            indices = order[start:stop]
            batch_inputs = {name: pad_sequence([arrays[i] for i in indices], batch_first=True)
                            for name, arrays in extra_inputs.items()}
            batch = _pool_batch(model, [encodings[i].ids for i in indices], batch_inputs, pooling, normalize,
                                layer)
            for index, vector in zip(indices, batch, strict=True):
                vectors[index] = vector
            start = stop
            work.set_count(start)
    return np.stack(vectors) if vectors else np.zeros((0, model.recipe.settings.network.width), np.float32)


def _text_inputs(model: Model, texts: Sequence[str], encodings: Sequence[Any]) -> dict[str, list[torch.Tensor]]:
    """Values of the inputs that read the text of unknown words: a tensor (tokens, ...) for each text, by name."""
    tokenizer = model.require_tokenizer()
    texts = [tokenizer.pre_normalize(text) for text in texts]
    return {name: [torch.from_numpy(settings.from_texts(
        tokenizer, np.array(encoding.ids), [text[slice(*offsets)] for offsets in encoding.offsets]))
        for text, encoding in zip(texts, encodings, strict=True)]
        for name, settings in model.recipe.settings.network.inputs.items() if settings.reads_text}


@torch.inference_mode()
def _pool_batch(model: Model, rows: list[list[int]], inputs: Inputs, pooling: str, normalize: bool,
                layer: int | None) -> np.ndarray:
    max_length = max(map(len, rows))
    mask = torch.tensor([[1] * len(row) + [0] * (max_length - len(row)) for row in rows])
    ids = torch.tensor([row + [0] * (max_length - len(row)) for row in rows])
    output = model.network({"encoder": model.encoder_stream(ids, mask, inputs=inputs)},  # not the decoder
                           keep_hidden_states=layer is not None)
    hidden = output["encoder"] if layer is None else output.all_hidden_states("encoder")[layer]
    if pooling == "mean":
        weight = mask.to(hidden)[..., None]
        vectors = (hidden * weight).sum(1) / weight.sum(1)
    else:
        vectors = hidden[:, 0]
    if normalize:
        vectors = functional.normalize(vectors, dim=-1)
    return vectors.float().cpu().numpy()
