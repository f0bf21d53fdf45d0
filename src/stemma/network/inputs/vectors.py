"""A vector beside each token, from a float field of the corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

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

    def from_draft(self, name: str, draft: Any) -> np.ndarray:
        """Zeros at special tokens, at padding, and where an objective has put another token: they would tell which one
        stood there."""
        values: np.ndarray = draft.field(self.field or name)
        values[draft.ids != draft.original] = 0.0
        return values

    def lacks(self, name: str, corpus: Any) -> str | None:
        return field_lacks(corpus, self.field or name, self.size, f"network.inputs.{name}.size")


@register("input", "vectors", VectorSettings)
def vectors(chosen: VectorSettings, network: NetworkSettings, width: int, vocabulary: int) -> nn.Module:
    """A linear map without a constant: where there is no vector, nothing is added."""
    from stemma.network.initialization import Linear, draw_of

    return Linear(chosen.size, width, False, draw_of(network, chosen.size))


def field_lacks(corpus: Any, field: str, size: int, key: str | None) -> str | None:
    """What a corpus does not have of a field with so many numbers a token; `key` is the setting that says how many, or
    None: there is no choice."""
    if field not in corpus.fields:
        return f'the corpus has no field "{field}"; lay one beside its tokens: `stemma corpus annotate ' \
               f"{corpus.path} --token-field {field}=FILE.npy`"
    found = corpus.fields[field].size
    if found == size:
        return None
    return f'the field "{field}" has {found} numbers a token: ' + (f"{size} are needed" if key is None else
                                                                   f"set {key}={found}")
