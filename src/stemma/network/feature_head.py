"""A network used as it stands: its layers are mixed, and only what reads the mixture learns the task.

The mixture is ELMo's (arXiv:1802.05365, equation 1): a scale times the layers weighed by a softmax; or the layers
stand side by side. Two layers of a BiLSTM read it, as in BERT's feature-based experiments (arXiv:1810.04805, section
5.3), here as wide as the network in both directions together. For one answer to a whole input, the highest value of
each of its outputs is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from stemma.network.dropout import Dropout
from stemma.network.embedding import InputEmbedding
from stemma.network.initialization import Linear, default_initializer
from stemma.network.module import TensorModule
from stemma.registry import register
from stemma.schema.network import NetworkSettings

LSTM_LAYERS = 2  # of the BiLSTM


@register("head", "FeatureHead")
@dataclass(frozen=True)
class FeatureHead:
    """Guess one of a few classes, for the whole input or for `each` place of it."""

    keep_layers: ClassVar[bool] = True  # it reads more of a network than its output

    classes: int
    layers: int  # so many of the highest are mixed; the embedding counts as the lowest
    each: bool = False
    dropout: float = 0.1
    above: int = 0  # so many of the very highest are left out
    joined: bool = False  # side by side instead of mixed

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return LayerMixHead(settings, self)


class LayerMixHead(TensorModule):
    def __init__(self, settings: NetworkSettings, spec: FeatureHead):
        super().__init__()
        width = settings.width
        self.per_token, self.num_layers, self.skip_top = spec.each, spec.layers, spec.above
        self.shares = None if spec.joined else nn.Parameter(torch.zeros(spec.layers))
        self.scale = None if spec.joined else nn.Parameter(torch.ones(1))
        self.dropout = Dropout(spec.dropout)
        half = max(1, width // 2)
        self.reader = nn.LSTM(width * spec.layers if spec.joined else width, half, LSTM_LAYERS, batch_first=True,
                              bidirectional=True, dropout=spec.dropout)
        self.output = Linear(2 * half, spec.classes, True, default_initializer(settings, 2 * half))

    def mix_layers(self, layers: Sequence[Tensor]) -> Tensor:
        """(B, L, width) of every layer, the embedding first -> (B, L, width), or (B, L, layers x width)"""
        top = len(layers) - self.skip_top
        chosen = [layer.float() for layer in layers[top - self.num_layers:top]]
        if self.shares is None or self.scale is None:
            return torch.cat(chosen, -1)
        return self.scale * torch.einsum("n,nblw->blw", self.shares.softmax(0), torch.stack(chosen))

    def forward(self, layers: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """(B, L, width) of every layer, (B,) places in use -> (B, L, classes), or (B, classes)"""
        with torch.autocast(layers[0].device.type, enabled=False):  # a recurrent net adds up too much for half of it
            packed = pack_padded_sequence(self.dropout(self.mix_layers(layers)), lengths.cpu(), batch_first=True,
                                          enforce_sorted=False)
            filling = 0.0 if self.per_token else -torch.inf  # which is never the highest
            read, _ = pad_packed_sequence(self.reader(packed)[0], batch_first=True, padding_value=filling,
                                          total_length=layers[0].shape[1])
            return self.output(self.dropout(read if self.per_token else read.amax(1)))
