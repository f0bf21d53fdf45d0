"""A token embedding whose words start from static word vectors (word2vec, GloVe), and may keep them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stemma.network.embedding import InputEmbedding
from stemma.network.fixed_embedding import FixedVectorEmbedding
from stemma.vectors.word_vectors import WordVectors

DEFAULT_SPREAD = 0.1  # of random vectors, if no word has a vector


def fill_embedding(embedding: InputEmbedding, words: Sequence[str], vectors: WordVectors) -> np.ndarray:
    """Set the rows of the tokens `words` that have a vector; other rows get random numbers of the same spread.
    Returns (V,) which rows have a vector."""
    matrix, known = vectors.for_words(words)
    tokens = embedding.tokens
    weight = tokens.weight
    assert isinstance(weight, Tensor)
    rows = torch.from_numpy(known)
    with torch.no_grad():
        weight.normal_(std=float(matrix[known].std()) if known.any() else DEFAULT_SPREAD)
        weight[rows.nonzero()[:, 0]] = torch.from_numpy(matrix[known])
        if isinstance(tokens, FixedVectorEmbedding):
            tokens.fix(torch.from_numpy(matrix), rows)
    return known
