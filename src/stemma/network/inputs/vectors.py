"""A vector beside each token, from a float field of the corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from stemma.network.inputs.fields import field_lacks
from stemma.registry import register
from stemma.schema.base import Width
from stemma.schema.parts import InputSettings

if TYPE_CHECKING:  # settings are read before torch is imported
    import numpy as np
    from torch import nn

    from stemma.schema.network import NetworkSettings


class VectorSettings(InputSettings):
    """A vector beside each token: a float field of the corpus (`stemma corpus annotate --token-field`)."""

    kind: Literal["vectors"]
    size: Width  # numbers a token
    field: str | None = None  # its name in the corpus; None = as the input

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,)

    def fields(self, name: str) -> tuple[str, ...]:
        return (self.field or name,)

    def from_draft(self, name: str, draft: Any) -> np.ndarray:
        """Zeros at special tokens, at padding, and where an objective has put another token: they would tell which one
        stood there."""
        values: np.ndarray = draft.field(self.field or name)
        values[draft.input_ids != draft.original_ids] = 0.0
        return values

    def missing_data(self, name: str, corpus: Any) -> str | None:
        return field_lacks(corpus, self.field or name, self.size, f"network.inputs.{name}.size")


@register("input", "vectors", VectorSettings)
def vectors(chosen: VectorSettings, network: NetworkSettings, width: int, vocabulary: int) -> nn.Module:
    """A linear map without a constant: where there is no vector, nothing is added."""
    from stemma.network.initialization import Linear, default_initializer

    return Linear(chosen.size, width, False, default_initializer(network, chosen.size))
