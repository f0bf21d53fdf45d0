"""What a network reads of each position besides its token, and how both become one vector.

An input is built with its settings, the network's, and the embedding's width: a module that is called with what a
stream has under its name, (B, L, ...), and gives (B, L, width). A stream need not have it: text that is typed has no
vectors beside it. A fusion is built with the network's settings, the width and the names of the inputs: a module that
is called with those that a stream has, by name, "tokens" among them, each (B, L, width).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from stemma.registry import register
from stemma.schema.base import Width
from stemma.schema.parts import FusionKind, InputSettings

if TYPE_CHECKING:  # settings are read before torch is imported
    from collections.abc import Sequence

    import numpy as np
    from torch import nn

    from stemma.schema.network import NetworkSettings


class VectorSettings(InputSettings):
    """A vector beside each token: a float field of the corpus (`stemma corpus annotate --token-field`)."""

    kind: Literal["vectors"]
    size: Width  # numbers a token
    field: str | None = None  # its name in the corpus; None = as the input

    def from_draft(self, name: str, draft: Any) -> np.ndarray:
        """Zeros at special tokens, at padding, and where an objective has put another token: they would tell which one
        stood there."""
        values: np.ndarray = draft.field(self.field or name)
        values[draft.ids != draft.original] = 0.0
        return values

    def lacks(self, name: str, corpus: Any) -> str | None:
        field = self.field or name
        if field not in corpus.fields:
            return f'the corpus has no field "{field}"; lay one beside its tokens: `stemma corpus annotate ' \
                   f"{corpus.path} --token-field {field}=FILE.npy`"
        size = corpus.fields[field].size
        return None if size == self.size else f'the field "{field}" has {size} numbers a token: set ' \
                                              f"network.inputs.{name}.size={size}"


@register("input", "vectors", VectorSettings)
def vectors(chosen: VectorSettings, network: NetworkSettings, width: int) -> nn.Module:
    """A linear map without a constant: where there is no vector, nothing is added."""
    from stemma.network.initialization import Linear, draw_of

    return Linear(chosen.size, width, False, draw_of(network, chosen.size))


@register("fusion", "sum", FusionKind)
def added_up(network: NetworkSettings, width: int, names: Sequence[str]) -> nn.Module:
    """Token and inputs count alike."""
    from stemma.network.embed import Sum

    return Sum()
