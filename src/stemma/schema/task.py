"""What every pre-training task says of itself, whatever it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from stemma.schema import base
from stemma.schema.base import BelowOne, Blame, Conflict, Natural, Positive, Settings
from stemma.schema.corpus import Packing, PairTemplate, SingleTemplate

Sees = Literal["full", "causal", "permuted", "prefix", "later"]
Part = Annotated[float, base.limit(lambda x: 0 < x <= 1, "must be greater than 0 and at most 1")]


class BaseObjective(Settings):
    """Each task also says what it `sees` while it is learned: a constant of its class, or a key."""

    kind: str
    weight: Positive = 1.0  # of its loss
    turns: Positive = 1.0  # how often it takes its turn beside tasks that need a batch of their own
    packing: Packing | None = None  # None = the corpus's, as with the two templates
    single: SingleTemplate | None = None
    pair: PairTemplate | None = None
    start_step: Natural = 0  # a curriculum: the task joins at this step,
    starts: BelowOne = 0.0  # and when this share of the budget is used, whatever the budget is;
    stops: Part = 1.0  # it leaves at this one (ERNIE's stages)
    task_id: Natural | None = None  # which task vector its inputs carry (ERNIE 2.0): one batch serves one task

    roles: ClassVar[frozenset[str]] = frozenset()  # special tokens the task writes itself
    rearranges: ClassVar[bool] = False  # moves text about, so it must act before tokens are hidden
    needs_query: ClassVar[bool] = False  # guesses through a second stream, which does not see its own token
    needs_decoder: ClassVar[bool] = False  # reads one text with the encoder and writes another with the decoder
    needs_generator: ClassVar[bool] = False  # judges what a second, smaller network wrote

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        """The packings that the task can work with; empty = any."""
        return ()

    def conflicts(self) -> Iterator[Conflict]:
        if self.starts >= self.stops:
            what = f"starts {self.starts:g} is not before stops {self.stops:g}, so the task is never trained"
            yield (Blame("starts", what), Blame("stops", what))
