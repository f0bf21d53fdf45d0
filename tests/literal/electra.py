"""The joint loss of ELECTRA (arXiv:2003.10555, section 2), row by row and place by place, in double precision: a
generator's masked LM plus 50 times what the discriminator loses on the tokens that the generator drew."""

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
    hidden: dict[int, tuple[int, int]]  # place -> (what the generator reads there, what it drew there)


def read(ids: list[int], segments: list[int], weights: Weights, settings: Any) -> np.ndarray:
    """(L, width): the sum of three vectors, normalised, mapped to the stack's width, and through the stack."""
    x = np.array([weights["embedding.tokens.weight"][token] + weights["embedding.segments.weight"][segment]
                  + weights["embedding.position.table.weight"][place]
                  for place, (token, segment) in enumerate(zip(ids, segments, strict=True))])
    x = layer_norm(x, weights, "embedding.norm", settings.norm.epsilon)
    if "embedding.project.weight" in weights:
        x = linear(x, weights, "embedding.project")
    return encoder(x, weights, settings, lambda query, key: True)


def losses(rows: list[Row], weights: Weights, settings: Any, generator: Weights,
           generator_settings: Any) -> dict[str, float]:
    lost, scored, judged, places = 0.0, 0, 0.0, 0
    called = caught = replaced = right = 0
    for row in rows:
        read_ids = [row.hidden[place][0] if place in row.hidden else token for place, token in enumerate(row.original)]
        shown = [row.hidden[place][1] if place in row.hidden else token for place, token in enumerate(row.original)]
        written = read(read_ids, row.segments, generator, generator_settings)
        for place in row.hidden:
            x = layer_norm(gelu(linear(written[place], generator, "heads.vocabulary.dense")), generator,
                           "heads.vocabulary.norm", generator_settings.norm.epsilon)
            chances = softmax(generator["embedding.tokens.weight"] @ x + generator["heads.vocabulary.bias"])
            lost -= math.log(chances[row.original[place]])
            right += int(chances.argmax()) == row.original[place]
            scored += 1
        for place, x in enumerate(read(shown, row.segments, weights, settings)):
            hidden = gelu(linear(x, weights, "heads.replaced_token.dense"))
            score = float(linear(hidden, weights, "heads.replaced_token.output")[0])
            fake = shown[place] != row.original[place]
            judged -= math.log(1 / (1 + math.exp(-score if fake else score)))
            places += 1
            called, caught, replaced = called + (score > 0), caught + (score > 0 and fake), replaced + fake
    return {"masked_lm": lost / scored, "replaced_token": judged / places, "generator_accuracy": right / scored,
            "replaced": replaced / places, "precision": caught / called, "recall": caught / replaced}
