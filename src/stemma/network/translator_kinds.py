"""The body of a recurrent decoder that attends to its source: settings and registration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from stemma.network.lstm_kinds import LSTMSettings
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Natural, Width
from stemma.schema.parts import BodySettings, NetworkPart

if TYPE_CHECKING:  # recipes are checked without importing torch
    from stemma.network.body import Body
    from stemma.schema.network import NetworkSettings


class AttentionalLSTMSettings(BodySettings):
    """An LSTM decoder that attends to the encoder's output at every step."""

    kind: Literal["attentional_lstm"]
    hidden: Width | None = None  # of each layer; None = network.width
    readout: Width | None = None  # of the output; None = network.width
    # Score of a source position: additive: v tanh(W s + U h) (arXiv:1409.0473); general: s W h; dot: s h
    # (arXiv:1508.04025, section 3.1)
    score: Literal["additive", "general", "dot"] = "general"
    # What a step gets besides its token. context: attention by the previous state, whose result is an input of the
    # step (arXiv:1409.0473); output: attention by the new state, whose readout is an input of the next step (input
    # feeding, arXiv:1508.04025, section 3.3); none: nothing, so that all steps of training are computed at once
    feeding: Literal["context", "output", "none"] = "output"
    # The first state. states: that of the encoder, layer by layer; first: a function of the encoder's output at the
    # first position, where a backward LSTM has read the whole text (arXiv:1409.0473)
    start: Literal["states", "first"] = "states"
    residual: Natural = 0  # this layer's output, from 1, is added to the readout, so that the layers of a language
    #                        model keep their way to its output layer (arXiv:1611.02683); 0 = none

    required_keys: ClassVar[frozenset[str]] = frozenset({"layers"})
    supports: ClassVar[frozenset[str]] = frozenset({"causal", "cache", "scores"})
    structural_keys: ClassVar[tuple[str, ...]] = ("kind", "score", "feeding", "start")
    size_keys: ClassVar[tuple[str, ...]] = ("hidden", "readout", "residual")
    cross_attends: ClassVar[bool] = True
    reads_embedding: ClassVar[bool] = True
    causal_only: ClassVar[bool] = True

    def output_width(self, width: int) -> int:
        return self.readout or width

    def network_conflicts(self, network: NetworkSettings) -> Iterator[Conflict]:
        part = next(part for part in network.parts().values() if part.body is self)
        if part.attends_to is None:
            yield (ConflictKey(f"{part.key}.kind", "attends to an encoder's output: set network.decoder.depth.kind="
                                                   "attentional_lstm, and another kind here"),)
            return
        encoder, hidden = network.parts()[part.attends_to], self.hidden or network.width
        body = encoder.body
        directions = body.directions if isinstance(body, LSTMSettings) else 0
        problem = None
        if self.start == "first" and directions != 2:
            problem = "first needs an encoder with a backward direction: set network.depth.kind=bilstm"
        elif self.start == "states" and not directions:
            problem = "states are those of an LSTM: set network.depth.kind=bilstm"
        elif self.start == "states" and encoder.layers != part.layers:
            problem = f"states are taken layer by layer, and the encoder has {encoder.layers} layers and the decoder " \
                      f"{part.layers}: give them as many"
        elif self.start == "states" and isinstance(body, LSTMSettings) and (
                body.projection or (body.hidden or network.width // directions) * directions != hidden
                or network.width != hidden):
            problem = f"states of the encoder must be as wide as those of the decoder ({hidden}): set network.width " \
                      "and network.decoder.depth.hidden to one number, and no other width in network.depth"
        if self.residual > part.layers:
            yield (ConflictKey(f"{part.key}.residual", f"the decoder has {part.layers} layers"),
                   ConflictKey("decoder.layers", f"network.{part.key}.residual is {self.residual}"))
        if self.residual and self.output_width(network.width) != hidden:
            what = f"the output is {self.output_width(network.width)} wide and the layers {hidden}: there is no sum"
            yield (ConflictKey(f"{part.key}.residual", what), ConflictKey(f"{part.key}.readout", what),
                   ConflictKey(f"{part.key}.hidden", what))
        if problem is not None:
            yield (ConflictKey(f"{part.key}.start", problem), ConflictKey("depth.kind", problem),
                   ConflictKey("decoder.layers", problem))


@register("body", "attentional_lstm", AttentionalLSTMSettings)
def attentional_lstm(network: NetworkSettings, part: NetworkPart) -> Body:
    from stemma.network.attentional_lstm import AttentionalLSTM

    return AttentionalLSTM(network, part)
