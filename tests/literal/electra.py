"""The joint loss of ELECTRA (arXiv:2003.10555, section 2), row by row and position by position, in double precision:
the generator's masked LM loss plus 50 times the discriminator's loss on the tokens that the generator sampled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from literal.transformer import Weights, encoder, gelu, layer_norm, linear, softmax


@dataclass(frozen=True)
class Row:
    original: list[int]
    segments: list[int]
    hidden: dict[int, tuple[int, int]]  # masked position -> (token of the generator's input, token that it sampled)


def read(ids: list[int], segments: list[int], weights: Weights, settings: Any) -> np.ndarray:
    """(L, width): the sum of three embeddings, normalised, projected to the stack's width, and through the stack."""
    x = np.array([weights["embedding.tokens.weight"][token] + weights["embedding.segments.weight"][segment]
                  + weights["embedding.position.table.weight"][position]
                  for position, (token, segment) in enumerate(zip(ids, segments, strict=True))])
    x = layer_norm(x, weights, "embedding.norm", settings.norm.epsilon)
    if "embedding.project.weight" in weights:
        x = linear(x, weights, "embedding.project")
    return encoder(x, weights, settings, lambda query, key: True)


def losses(rows: list[Row], weights: Weights, settings: Any, generator: Weights,
           generator_settings: Any) -> dict[str, float]:
    mlm_loss, masked_count, discriminator_loss, position_count = 0.0, 0, 0.0, 0
    predicted_count = true_positives = replaced_count = correct = 0
    for row in rows:
        generator_ids, discriminator_ids = ([row.hidden.get(position, (token, token))[source]
                                             for position, token in enumerate(row.original)] for source in (0, 1))
        generator_states = read(generator_ids, row.segments, generator, generator_settings)
        for position in row.hidden:
            x = layer_norm(gelu(linear(generator_states[position], generator, "heads.vocabulary.dense")), generator,
                           "heads.vocabulary.norm", generator_settings.norm.epsilon)
            probabilities = softmax(generator["embedding.tokens.weight"] @ x + generator["heads.vocabulary.bias"])
            mlm_loss -= math.log(probabilities[row.original[position]])
            correct += int(probabilities.argmax()) == row.original[position]
            masked_count += 1
        for position, x in enumerate(read(discriminator_ids, row.segments, weights, settings)):
            hidden = gelu(linear(x, weights, "heads.replaced_token.dense"))
            score = float(linear(hidden, weights, "heads.replaced_token.output")[0])
            is_replaced = discriminator_ids[position] != row.original[position]
            discriminator_loss -= math.log(1 / (1 + math.exp(-score if is_replaced else score)))
            position_count += 1
            replaced_count += is_replaced
            predicted_count += score > 0
            true_positives += score > 0 and is_replaced
    return {"masked_lm": mlm_loss / masked_count, "replaced_token": discriminator_loss / position_count,
            "generator_accuracy": correct / masked_count, "replaced": replaced_count / position_count,
            "precision": true_positives / predicted_count, "recall": true_positives / replaced_count}
