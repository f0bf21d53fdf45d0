"""What every pre-training objective says of itself, whatever it is. Each kind stands in its own file of `objectives/`,
settings and all; what other modules must know of it is stated here as plain data, so that none of them asks for a kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from stemma.schema import base
from stemma.schema.base import BelowOne, Conflict, ConflictKey, KindField, Natural, Positive, Settings
from stemma.schema.corpus import PackingKind, PairTemplate, SingleTemplate

if TYPE_CHECKING:
    from stemma.schema.recipe import RecipeSettings

AttentionMaskKind = Literal["full", "causal", "permuted", "prefix", "later"]
DecodingMode = Literal["decoder", "permuted", "prefix", "next", "cloze"]  # of several, the first: it was learned most
#                                                                           directly
Fraction = Annotated[float, base.constraint(lambda x: 0 < x <= 1, "must be greater than 0 and at most 1")]
MeanSpan = Annotated[float, base.constraint(lambda x: x >= 1, "must be 1 or more: a span hides at least one token")]


class GapPrompt(NamedTuple):
    """How a decoder that was pre-trained to fill gaps is asked to go on with a text: by a gap behind it."""

    special_token: str  # the special token that stands for what is missing, in the source
    repeats_text: bool = False  # the whole text is written, beginning with what was given; otherwise the token and the
    #                             rest


class GenerationCapability(NamedTuple):
    """How a model that has learned an objective writes (`generation/decoding_mode.py`)."""

    mode: DecodingMode
    paired: bool = False  # it is given A of a pair, and writes B
    gap: GapPrompt | None = None  # what asks for the rest of a text; None: nothing but the text


class ObjectiveSettings(Settings):
    """A kind may also say what a position `sees` while it is learned: a constant of its class, or a key."""

    kind: str
    weight: Positive = 1.0  # of its loss
    turns: Positive = 1.0  # how often it takes its turn beside tasks that need a batch of their own
    packing: PackingKind | None = None  # None = the corpus's, as with the two templates
    single: SingleTemplate | None = None
    pair: PairTemplate | None = None
    start_step: Natural = 0  # a curriculum: the task joins at this step,
    starts: BelowOne = 0.0  # and when this share of the budget is used, whatever the budget is;
    stops: Fraction = 1.0  # it leaves at this one (ERNIE's stages)
    task_id: Natural | None = None  # which task vector its inputs carry (ERNIE 2.0): one batch serves one task

    special_tokens: ClassVar[frozenset[str]] = frozenset()  # special tokens the task writes itself
    rearranges_text: ClassVar[bool] = False  # moves text about, so it must act before tokens are hidden
    needs_query_stream: ClassVar[bool] = False  # guesses through a second stream, which does not see its own token
    needs_decoder: ClassVar[bool] = False  # reads one text with the encoder and writes another with the decoder
    needs_generator: ClassVar[bool] = False  # judges what a second, smaller network wrote
    needs_masked_tokens: ClassVar[bool] = False  # asks about the tokens that another task of the same pass has masked
    masks_tokens: ClassVar[bool] = False  # puts mask tokens into the text and guesses what stood there
    reads_relevance: ClassVar[bool] = False  # its pairs are graded queries and titles, which stand beside running text

    @property
    def attention_mask_kind(self) -> AttentionMaskKind:
        """What a position may attend to while this is learned."""
        sees: AttentionMaskKind = getattr(self, "sees", "full")
        return sees

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        """The packings that the task can work with; empty = any."""
        return ()

    @property
    def generation(self) -> GenerationCapability | None:
        """How a model that has learned this writes; None: it only reads."""
        return None

    @property
    def predicts_bidirectionally(self) -> bool:
        """Whether a model that has learned this can be asked for one token of a text, given all the others."""
        return False

    @property
    def pair_finetuning_keys(self) -> dict[str, Any] | None:
        """The keys with which it learns to write the target of a pair from its source; None: it cannot."""
        return None

    def conflicts(self) -> Iterator[Conflict]:
        if self.starts >= self.stops:
            what = f"starts {self.starts:g} is not before stops {self.stops:g}, so the task is never trained"
            yield (ConflictKey("starts", what), ConflictKey("stops", what))

    def recipe_conflicts(self, name: str, recipe: RecipeSettings) -> Iterator[Conflict]:
        """Conflicts with the rest of the recipe, in which the objective has this name; keys are whole ones."""
        yield from ()


AnyObjective = Annotated[ObjectiveSettings, KindField("objective")]
