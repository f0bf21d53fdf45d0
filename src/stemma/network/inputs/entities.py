"""Pre-trained embeddings of the entities that tokens belong to (ERNIE of Tsinghua, arXiv:1905.07129; E-BERT,
arXiv:1911.03681)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from stemma.errors import UserError
from stemma.network.inputs.fields import field_lacks, field_range
from stemma.registry import register
from stemma.schema.base import Count, Width
from stemma.schema.parts import InputSettings

if TYPE_CHECKING:  # recipes are checked without importing torch
    import numpy as np
    from torch import nn

    from stemma.schema.network import NetworkSettings


class EntitySettings(InputSettings):
    """A field of the corpus with one entity id per token; 0 means no entity."""

    kind: Literal["entities"]
    count: Count  # rows of the matrix; entity ids start at 1, row 0 means no entity
    size: Width  # dimension of a vector
    field: str | None = None  # field in the corpus; None = the name of the input
    file: str | None = None  # a .npy file, (count, size): the initial matrix; None = random
    trained: bool = False  # train the vectors too, not only the projection to the network's width
    keep_masked: bool = False  # keep the entity of masked and replaced tokens, so that it helps to predict them

    structural_keys = ("kind", "trained")

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def most(self) -> int:
        return self.count - 1

    def fields(self, name: str) -> tuple[str, ...]:
        return (self.field or name,)

    def from_draft(self, name: str, draft: Any) -> np.ndarray:
        values: np.ndarray = draft.field(self.field or name)[..., 0].round().astype("int64")
        if not self.keep_masked:
            values[draft.input_ids != draft.original_ids] = 0
        return values

    def missing_data(self, name: str, corpus: Any) -> str | None:
        field = self.field or name
        if (problem := field_lacks(corpus, field, 1, None)) is not None:
            return problem
        lowest, highest = field_range(corpus, field)
        if lowest < 0:
            return f'the field "{field}" goes down to {lowest:g}: number entities from 1 on, and tokens of none by 0'
        return None if highest <= self.most else f'the field "{field}" goes up to {highest:g}: set ' \
                                              f"network.inputs.{name}.count={int(highest) + 1}, with as many vectors"

    def start(self, name: str, module: Any, tokenizer: Any) -> None:
        if self.file is None:
            return
        import numpy as np

        key = f"network.inputs.{name}.file = {self.file}"
        try:
            vectors = np.load(self.file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError("the entity vectors cannot be read", [(key, str(error))]) from error
        if vectors.shape != (self.count, self.size) or vectors.dtype.kind not in "fiu" or \
                not np.isfinite(vectors).all():
            raise UserError("the entity vectors do not fit", [(key, f"must hold finite numbers of the shape "
                            f"{(self.count, self.size)}, and has {vectors.dtype} of the shape {vectors.shape}")])
        module.fill(vectors)

    def num_parameters(self, width: int, vocab_size: int) -> int:
        return self.count * self.size


@register("input", "entities", EntitySettings)
def entities(settings: EntitySettings, network: NetworkSettings, width: int, vocab_size: int) -> nn.Module:
    from stemma.network.inputs.modules import Entities

    return Entities(settings.count, settings.size, settings.trained, network, width)
