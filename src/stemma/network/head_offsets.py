"""Heads of the first layer that begin by attending to a neighbour (`network.initialization.head_offsets`).

A masked token is predicted from its neighbours, but a network with learned positions does not know at first which
positions are near: random position vectors say nothing about distance, and they are noise in every dimension of the
token vectors. A network of laptop size spends millions of tokens on this alone. Here it is the beginning:

- Learned positions begin as sines and cosines (arXiv:1706.03762) in the last dimensions, and tokens and segments
  begin with zeros there. So positions and tokens do not disturb each other.
- In the first layer, some rows of each head's query and key matrices read these dimensions. The query is rotated by the
  offset of the head, so that the score is highest where key position = query position + offset, as with rotary
  positions (arXiv:2104.09864).

These are initial values only: all weights are trained, and the network is the one of the paper.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stemma.network.attention.self_attention import SelfAttention
from stemma.network.body import Body
from stemma.network.embedding import InputEmbedding
from stemma.network.initialization import LookupEmbedding
from stemma.network.position_embedding import LearnedPositionEmbedding
from stemma.schema.network import NetworkSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

DIMENSIONS = 32  # of the hidden state, for sines and cosines
WAVELENGTHS = 100.0  # ratio of the longest to the shortest, which is 2 pi positions
AMPLITUDE = math.sqrt(2)  # of a sine whose dimension has variance 1, as after a norm


@torch.no_grad()
def initialize_head_offsets(settings: NetworkSettings, embedding: InputEmbedding, body: Body,
                            offsets: Sequence[int]) -> None:
    """Set the initial positions and the first layer's heads; head h begins with the offset h mod len(offsets). Other
    kinds of positions and bodies stay as they are."""
    attention = _first_attention(body)
    if not isinstance(embedding.position, LearnedPositionEmbedding) or attention is None \
            or not isinstance(embedding.tokens, LookupEmbedding):
        return
    table, width = embedding.position.table, embedding.tokens.embedding_dim
    dimensions = min(DIMENSIONS, attention.head_width, width // 2) // 2 * 2
    if embedding.project is not None and settings.width < 2 * dimensions:
        return  # beside the positions there would be no room for the tokens (a small generator)
    own = slice(width - dimensions, width)
    initialization = settings.initialization
    std = (initialization.embedding_std or initialization.std_for(settings.width)) * embedding.scale
    for module in (embedding.tokens, embedding.segments, embedding.tasks):
        if module is not None:
            module.weight[:, own] = 0.0
    frequencies = WAVELENGTHS**(-torch.arange(dimensions // 2) * 2 / dimensions)  # radians per position
    angles = torch.arange(table.num_embeddings)[:, None] * frequencies
    table.weight.zero_()
    table.weight[:, own] = torch.cat([angles.sin(), angles.cos()], 1).to(table.weight) * std * AMPLITUDE
    if embedding.project is not None:  # the dimensions stay apart, and all keep their variance
        weight = embedding.project.weight
        weight.normal_(std=(width - dimensions)**-0.5)
        weight[-dimensions:] = 0.0
        weight[:, own] = 0.0
        weight[-dimensions:, own] = torch.eye(dimensions).to(weight)
    _point_heads(attention, frequencies, offsets)


def _first_attention(body: Body) -> SelfAttention | None:
    blocks = getattr(body, "blocks", None)
    attention = getattr(blocks[0], "attention", None) if blocks is not None and len(blocks) else None
    return attention if isinstance(attention, SelfAttention) else None


def _point_heads(attention: SelfAttention, frequencies: Tensor, offsets: Sequence[int]) -> None:
    """Let every head attend to its offset. Scores are sums of cosines; at the offset itself each of them is 1."""
    rows, scale = 2 * len(frequencies), attention.scale or attention.head_width**-0.5
    gain = 1.0 / (AMPLITUDE * math.sqrt(scale))
    query, key = attention.input.weight.chunk(attention.fused_matrices["input"])[:2]
    for head in range(attention.heads):
        angle = frequencies * offsets[head % len(offsets)]
        sine, cosine = torch.diag(angle.sin()), torch.diag(angle.cos())
        rotation = torch.cat([torch.cat([cosine, sine], 1), torch.cat([-sine, cosine], 1)])
        own = slice(head * attention.head_width, head * attention.head_width + rows)
        for matrix, values in ((query, rotation), (key, torch.eye(rows))):
            matrix[own] = 0.0
            matrix[own, -rows:] = values.to(matrix) * gain
