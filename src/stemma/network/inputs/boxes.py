"""A vector and a bounding box for each token: a region of an image (LXMERT, arXiv:1908.07490), a word on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from stemma.network.inputs.fields import field_lacks, field_range
from stemma.registry import register
from stemma.schema.base import Width
from stemma.schema.parts import InputSettings

if TYPE_CHECKING:  # recipes are checked without importing torch
    import numpy as np
    from torch import nn

    from stemma.schema.network import NetworkSettings

EDGES = 4  # x1, y1, x2, y2


class BoxSettings(InputSettings):
    """Two float fields of the corpus. A stream has both in one array: the vector, then x1, y1, x2, y2 as fractions of
    the width and the height. All zeros mean that there is no box."""

    kind: Literal["boxes"]
    size: Width  # dimension of the vector
    field: str | None = None  # field of the vectors in the corpus; None = the name of the input
    boxes: str = "boxes"  # field of the boxes
    area: bool = False  # add the area as a fifth number
    norms: bool = True  # normalize the projected vector and the projected box before adding them

    structural_keys = ("kind", "area", "norms")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size + EDGES,)

    def fields(self, name: str) -> tuple[str, ...]:
        return (self.field or name, self.boxes)

    def from_draft(self, name: str, draft: Any) -> np.ndarray:
        """Zeros at replaced tokens, as with `vectors`."""
        import numpy as np

        values: np.ndarray = np.concatenate([draft.field(field) for field in self.fields(name)], axis=-1)
        values[draft.input_ids != draft.original_ids] = 0.0
        return values

    def missing_data(self, name: str, corpus: Any) -> str | None:
        missing = [field_lacks(corpus, self.field or name, self.size, f"network.inputs.{name}.size"),
                   field_lacks(corpus, self.boxes, EDGES, None)]
        if missing[1] is None:
            lowest, highest = field_range(corpus, self.boxes)
            missing.append(None if lowest >= 0 and highest <= 1 else
                           f'the field "{self.boxes}" has values from {lowest:g} to {highest:g}: divide x by the '
                           "width of the image or page, and y by its height")
        return "; ".join(filter(None, missing)) or None


@register("input", "boxes", BoxSettings)
def boxes(settings: BoxSettings, network: NetworkSettings, width: int, vocab_size: int) -> nn.Module:
    from stemma.network.inputs.modules import Boxes

    return Boxes(settings.size, EDGES, settings.area, settings.norms, network, width)
