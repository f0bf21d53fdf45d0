"""The module of the input `characters`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.initialization import Initializer, Linear, LookupEmbedding, default_initializer
from stemma.network.inputs.characters import NOTHING, SYMBOLS, CharacterSettings
from stemma.schema.network import NetworkSettings


class CharacterCNN(nn.Module):
    """Embeddings of bytes, filters over neighbours with the highest value of each, highway layers, and a linear map.
    Its output starts about as large as a token's vector."""

    spelling: Tensor

    def __init__(self, chosen: CharacterSettings, network: NetworkSettings, width: int, vocabulary: int):
        super().__init__()
        usual, total = default_initializer(network), sum(chosen.filters)
        # a buffer that is saved: a model knows the spelling without its tokenizer
        self.register_buffer("spelling", torch.zeros(vocabulary, chosen.longest, dtype=torch.int16))
        self.table = LookupEmbedding(SYMBOLS, chosen.size, Initializer(1.0, usual.truncated))
        self.widths = list(chosen.widths)
        self.filters = nn.ModuleList(_fitted(span * chosen.size, count, usual)
                                     for span, count in zip(chosen.widths, chosen.filters, strict=True))
        self.highway = nn.ModuleList(Highway(total, usual) for _ in range(chosen.highway))
        self.output = Linear(total, width, True, Initializer(usual.std * total**-0.5, usual.truncated))

    def spell(self, spelling: np.ndarray) -> None:
        """Take up the bytes of each token, (tokens, longest); further rows of the embedding have none."""
        self.spelling.zero_()
        self.spelling[:len(spelling)] = torch.from_numpy(spelling)

    def characters(self, ids: Tensor) -> Tensor:
        """(...) token ids -> (..., longest) symbols."""
        return self.spelling[ids].long()

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) token ids -> (B, L, width). Each token is computed once, however often it occurs."""
        found, places = torch.unique(ids, return_inverse=True)
        symbols = self.characters(found)  # (N, longest)
        x = self.table(symbols) * (symbols != NOTHING)[..., None]
        seen = [functional.relu(filters(x.unfold(1, span, 1).transpose(2, 3).flatten(2))).amax(1)
                for span, filters in zip(self.widths, self.filters, strict=True)]
        x = torch.cat(seen, -1)
        for layer in self.highway:
            x = layer(x)
        return functional.embedding(places, self.output(x))


class Highway(nn.Module):
    """Passes a share of each number on and replaces the rest (arXiv:1505.00387). It starts by passing most of it on."""

    def __init__(self, width: int, usual: Initializer):
        super().__init__()
        self.transform = _fitted(width, width, usual)
        self.carry = _fitted(width, width, usual, start=1.0)

    def forward(self, x: Tensor) -> Tensor:
        carried = torch.sigmoid(self.carry(x))
        return carried * x + (1 - carried) * functional.relu(self.transform(x))


def _fitted(inputs: int, outputs: int, usual: Initializer, start: float = 0.0) -> Linear:
    """A linear map whose output is as large as its input."""
    return Linear(inputs, outputs, True, Initializer(inputs**-0.5, usual.truncated), bias_start=start)
