"""A network: an embedding, one stack for each part, and the heads that objectives asked for. Parts, no families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor, nn

from stemma.errors import UserError
from stemma.network.embed import Embedding
from stemma.network.heads import Head, HeadSpec
from stemma.network.stack import Stack
from stemma.network.streams import Context, Hidden, Stream
from stemma.schema.network import NetworkSettings

POOLER = "pooler"


class Network(nn.Module):
    def __init__(self, settings: NetworkSettings, vocabulary: int, heads: Mapping[str, HeadSpec]):
        super().__init__()
        if settings.decoder is not None:
            raise UserError("this recipe has a decoder beside its encoder, and only one-stack networks can be built; "
                            "choose another recipe (`stemma tree`).")
        self.settings = settings
        self.specs = dict(heads)
        self.embedding = Embedding(settings, vocabulary)
        self.encoder = Stack(settings, settings.layers)
        self.heads = nn.ModuleDict({name: spec.build(settings, self.embedding) for name, spec in heads.items()})
        self.initialize(settings.initialization.spread)

    @property
    def vocabulary(self) -> int:
        return self.embedding.tokens.num_embeddings

    @property
    def parts(self) -> tuple[str, ...]:
        return ("encoder",)

    def initialize(self, spread: float) -> None:
        """Small normal weights, zero biases; a norm starts as the identity."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.trunc_normal_(module.weight, std=spread, a=-2 * spread, b=2 * spread)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, streams: Mapping[str, Stream], state: object | None = None,
                keep_layers: bool = False) -> Hidden:
        stream = streams["encoder"]
        length = stream.ids.shape[1]
        context = Context(mask=stream.sees.compile(length, length, stream.ids.device))
        x = self.embedding(stream)
        layers = [x] if keep_layers else None
        x = self.encoder(x, context, layers, stream.wanted)
        return Hidden(outputs={"encoder": x}, layers={"encoder": layers} if layers is not None else {})

    def head(self, name: str) -> Head:
        return cast(Head, self.heads[name])

    def pooled(self, hidden: Tensor) -> Tensor:
        return self.heads[POOLER](hidden)

    def parameter_count(self, heads: bool = True) -> int:
        """Every number once; without heads, BERT's pooler still counts as part of the body."""
        total = sum(parameter.numel() for parameter in self.parameters())
        if heads:
            return total
        above = (head for name, head in self.heads.items() if name != POOLER)
        return total - sum(parameter.numel() for head in above for parameter in head.parameters())
