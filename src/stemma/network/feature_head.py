"""A BiLSTM over a mix of a network's layers learns a task: feature-based with a frozen network, or with both trained.

The mix is ELMo's (arXiv:1802.05365, equation 1), a scaled sum of the layers with softmax weights, or a concatenation.
The BiLSTM has two layers, as in BERT's feature-based experiments (arXiv:1810.04805, section 5.3), and both directions
together are as wide as the network. Classification of a whole input max-pools its outputs.
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

LSTM_LAYERS = 2


@register("head", "FeatureHead")
@dataclass(frozen=True)
class FeatureHead:
    """Classification from mixed layers, of the whole input or of `each` position."""

    keep_layers: ClassVar[bool] = True  # it needs the hidden states of all layers

    classes: int
    layers: int  # number of top layers that are mixed; the embedding counts as the lowest layer
    each: bool = False
    dropout: float = 0.1
    above: int = 0  # number of layers at the very top that are left out
    joined: bool = False  # concatenate the layers instead of mixing them
    ends: bool = False  # concatenate the embedding and the last layer (CoVe, arXiv:1708.00107, section 4)

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return LayerMixHead(settings, self)


def bottom_width(settings: NetworkSettings) -> int:
    """The width of the lowest hidden state: the embedding as the body gets it, which two LSTMs in opposite directions
    repeat up to their width."""
    if settings.depth.reads_embedding and not settings.depth.opposite_directions:
        return settings.embedding.width or settings.width
    return settings.width


class LayerMixHead(TensorModule):
    """Layer mix, BiLSTM and linear output layer."""

    def __init__(self, settings: NetworkSettings, spec: FeatureHead):
        super().__init__()
        width = settings.width
        self.per_token, self.num_layers, self.skip_top, self.ends = spec.each, spec.layers, spec.above, spec.ends
        self.shares = None if spec.joined or spec.ends else nn.Parameter(torch.zeros(spec.layers))
        self.scale = None if spec.joined or spec.ends else nn.Parameter(torch.ones(1))
        self.dropout = Dropout(spec.dropout)
        half = max(1, width // 2)
        inputs = bottom_width(settings) + width if spec.ends else width * spec.layers if spec.joined else width
        self.reader = nn.LSTM(inputs, half, LSTM_LAYERS, batch_first=True, bidirectional=True, dropout=spec.dropout)
        self.output = Linear(2 * half, spec.classes, True, default_initializer(settings, 2 * half))

    def mix_layers(self, layers: Sequence[Tensor]) -> Tensor:
        """(B, L, width) of every layer, the embedding first -> (B, L, width), or all or two of them side by side"""
        if self.ends:
            return torch.cat([layers[0].float(), layers[-1].float()], -1)
        top = len(layers) - self.skip_top
        mixed_layers = [layer.float() for layer in layers[top - self.num_layers:top]]
        if self.shares is None or self.scale is None:
            return torch.cat(mixed_layers, -1)
        return self.scale * torch.einsum("n,nblw->blw", self.shares.softmax(0), torch.stack(mixed_layers))

    def forward(self, layers: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """(B, L, width) of every layer, (B,) row lengths -> (B, L, classes), or (B, classes)"""
        with torch.autocast(layers[0].device.type, enabled=False):  # an LSTM needs full precision
            mixed = self.mix_layers(layers)
            assert mixed.shape[-1] == self.reader.input_size  # torch does not check packed rows
            packed = pack_padded_sequence(self.dropout(mixed), lengths.cpu(), batch_first=True, enforce_sorted=False)
            padding_value = 0.0 if self.per_token else -torch.inf  # -inf never is the maximum
            lstm_output, _ = pad_packed_sequence(self.reader(packed)[0], batch_first=True, padding_value=padding_value,
                                                 total_length=layers[0].shape[1])
            return self.output(self.dropout(lstm_output if self.per_token else lstm_output.amax(1)))
