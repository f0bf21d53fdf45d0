"""The module of the input `characters`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.initialization import Initializer, Linear, LookupEmbedding, default_initializer
from stemma.network.inputs.characters import NOTHING, CharacterSettings
from stemma.schema.network import NetworkSettings


class CharacterCNN(nn.Module):
    """Byte embeddings, convolutions with max-pooling, highway layers, and a linear layer. Its output starts about as
    large as a token embedding."""

    spelling: Tensor

    def __init__(self, settings: CharacterSettings, network: NetworkSettings, width: int, vocab_size: int):
        super().__init__()
        default, num_filters = default_initializer(network), sum(settings.filters)
        embedding_std = network.initialization.embedding_std or default.std
        # a saved buffer: the model knows the spelling without its tokenizer
        self.register_buffer("spelling", torch.zeros(vocab_size, settings.longest, dtype=torch.int16))
        self.table = LookupEmbedding(settings.num_symbols, settings.size, Initializer(1.0, default.truncated))
        self.padding_is_zero = settings.symbols == "bytes"
        self.widths = list(settings.widths)
        self.filters = nn.ModuleList(_linear(span * settings.size, count, default)
                                     for span, count in zip(settings.widths, settings.filters, strict=True))
        self.highway = nn.ModuleList(Highway(num_filters, default, settings.carry) for _ in range(settings.highway))
        self.output = Linear(num_filters, width, True,
                             Initializer(embedding_std * num_filters**-0.5, default.truncated))

    def spell(self, spelling: np.ndarray) -> None:
        """Set the bytes of each token, (tokens, longest); further rows of the embedding have none."""
        self.spelling.zero_()
        self.spelling[:len(spelling)] = torch.from_numpy(spelling)

    def characters(self, ids: Tensor) -> Tensor:
        """(...) token ids -> (..., longest) symbols."""
        return self.spelling[ids].long()

    def forward(self, ids: Tensor, spelled: Tensor | None = None) -> Tensor:
        """(B, L) token ids -> (B, L, width). Each distinct token is computed once.

        `spelled`: (B, L, longest) symbols of tokens that have their own spelling; a negative number comes first at all
        others."""
        distinct_ids, indices = torch.unique(ids, return_inverse=True)
        symbols = self.characters(distinct_ids)  # (N, longest)
        own = None if spelled is None else spelled[..., 0] >= 0
        if spelled is not None and own is not None and own.any():
            spellings, spelling_index = torch.unique(spelled[own].long(), dim=0, return_inverse=True)
            indices = indices.masked_scatter(own, spelling_index + len(symbols))
            symbols = torch.cat([symbols, spellings])
        x = self.table(symbols)
        if self.padding_is_zero:
            x = x * (symbols != NOTHING)[..., None]
        pooled = [functional.relu(filters(x.unfold(1, span, 1).transpose(2, 3).flatten(2))).amax(1)
                  for span, filters in zip(self.widths, self.filters, strict=True)]
        x = torch.cat(pooled, -1)
        for layer in self.highway:
            x = layer(x)
        return functional.embedding(indices, self.output(x))


class Highway(nn.Module):
    """Highway layer (arXiv:1505.00387): a gate between its input and a transformed input. At first it mostly carries
    the input. ELMo's code weights the transformed input by the gate: its gate is one minus this one."""

    def __init__(self, width: int, default: Initializer, carry: float = 1.0):
        super().__init__()
        self.transform = _linear(width, width, default)
        self.carry = _linear(width, width, default, bias_start=carry)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.carry(x))
        return gate * x + (1 - gate) * functional.relu(self.transform(x))


def _linear(inputs: int, outputs: int, default: Initializer, bias_start: float = 0.0) -> Linear:
    """A linear layer whose output has the scale of its input."""
    return Linear(inputs, outputs, True, Initializer(inputs**-0.5, default.truncated), bias_start=bias_start)
