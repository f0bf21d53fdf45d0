"""The entity that a token is part of, by a vector that was learned elsewhere (ERNIE of Tsinghua, arXiv:1905.07129;
E-BERT, arXiv:1911.03681)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from stemma.errors import UserError
from stemma.network.inputs.fields import field_lacks, field_range
from stemma.registry import register
from stemma.schema.base import Count, Width
from stemma.schema.parts import InputSettings

if TYPE_CHECKING:  # settings are read before torch is imported
    import numpy as np
    from torch import nn

    from stemma.schema.network import NetworkSettings


class EntitySettings(InputSettings):
    """A field of the corpus with one number a token: which entity it is part of, 0 for none."""

    kind: Literal["entities"]
    count: Count  # rows of the matrix; entities are numbered from 1 on, and row 0 stands for none
    size: Width  # numbers of a vector
    field: str | None = None  # its name in the corpus; None = as the input
    file: str | None = None  # a .npy file, (count, size): the matrix that a new network starts with; None = random
    trained: bool = False  # the vectors are trained too, and not just the map to the network's width
    keep_masked: bool = False  # known also where an objective has put another token: its words are guessed from it

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
        if (lacking := field_lacks(corpus, field, 1, None)) is not None:
            return lacking
        least, most = field_range(corpus, field)
        if least < 0:
            return f'the field "{field}" goes down to {least:g}: number entities from 1 on, and tokens of none by 0'
        return None if most <= self.most else f'the field "{field}" goes up to {most:g}: set ' \
                                              f"network.inputs.{name}.count={int(most) + 1}, with as many vectors"

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

    def parameters(self, width: int, vocabulary: int) -> int:
        return self.count * self.size


@register("input", "entities", EntitySettings)
def entities(chosen: EntitySettings, network: NetworkSettings, width: int, vocabulary: int) -> nn.Module:
    from stemma.network.inputs.modules import Entities

    return Entities(chosen.count, chosen.size, chosen.trained, network, width)
