"""A vector for each token, from a float field of the corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from stemma.network.inputs.fields import field_lacks
from stemma.registry import register
from stemma.schema.base import Width
from stemma.schema.parts import InputSettings

if TYPE_CHECKING:  # recipes are checked without importing torch
    import numpy as np
    from torch import nn

    from stemma.schema.network import NetworkSettings


class VectorSettings(InputSettings):
    """A vector for each token: a float field of the corpus (`stemma corpus annotate --token-field`)."""

    kind: Literal["vectors"]
    size: Width  # dimension of the vectors
    field: str | None = None  # field in the corpus; None = the name of the input

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,)

    def fields(self, name: str) -> tuple[str, ...]:
        return (self.field or name,)

    def from_draft(self, name: str, draft: Any) -> np.ndarray:
        """Zeros at special tokens, at padding, and at masked or replaced tokens, whose vectors would reveal them."""
        values: np.ndarray = draft.field(self.field or name)
        values[draft.input_ids != draft.original_ids] = 0.0
        return values

    def missing_data(self, name: str, corpus: Any) -> str | None:
        return field_lacks(corpus, self.field or name, self.size, f"network.inputs.{name}.size")


@register("input", "vectors", VectorSettings)
def vectors(settings: VectorSettings, network: NetworkSettings, width: int, vocab_size: int) -> nn.Module:
    """A linear layer without bias: a zero vector adds nothing."""
    from stemma.network.initialization import Linear, default_initializer

    return Linear(settings.size, width, False, default_initializer(network, settings.size))
