"""Base settings of pre-training objectives. Each kind is in its own file in `objectives/`, with its settings.
Properties that other modules need are class attributes here, so that no module tests for a kind.
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
DecodingMode = Literal["decoder", "permuted", "prefix", "next", "cloze", "diffusion"]  # most direct first: it is
#                                                                                        used if a model has several
Fraction = Annotated[float, base.constraint(lambda x: 0 < x <= 1, "must be greater than 0 and at most 1")]
MeanSpan = Annotated[float, base.constraint(lambda x: x >= 1, "must be 1 or more: a span has at least one token")]


class GapPrompt(NamedTuple):
    """How a denoising encoder-decoder continues a text: the source gets a gap at its end."""

    special_token: str  # role of the token for the gap, in the source
    repeats_text: bool = False  # the target repeats the whole text; otherwise it is the gap token and the continuation


class GenerationCapability(NamedTuple):
    """How a model with this objective generates text (`generation/decoding_mode.py`)."""

    mode: DecodingMode
    paired: bool = False  # the input is A of a pair, the output is B
    gap: GapPrompt | None = None  # how to ask for a continuation; None: the text alone


class ObjectiveSettings(Settings):
    """Keys of every objective. A kind may also have an `attention_mask`: a class constant or a key."""

    kind: str
    weight: Positive = 1.0  # of its loss
    sampling_weight: Positive = 1.0  # relative frequency among objectives that need separate batches
    packing: PackingKind | None = None  # None = the corpus's, as with the two templates
    single: SingleTemplate | None = None
    pair: PairTemplate | None = None
    start_step: Natural = 0  # curriculum: the objective starts at this step,
    start_fraction: BelowOne = 0.0  # and after this fraction of the budget;
    end_fraction: Fraction = 1.0  # it stops after this fraction (ERNIE's stages)
    task_id: Natural | None = None  # task embedding of its inputs (ERNIE 2.0); a batch has one task id

    special_tokens: ClassVar[frozenset[str]] = frozenset()  # roles of special tokens that the objective inserts
    rearranges_text: ClassVar[bool] = False  # rearranges text, so it runs before tokens are masked
    needs_query_stream: ClassVar[bool] = False  # predicts from the query stream (XLNet)
    needs_decoder: ClassVar[bool] = False  # needs an encoder-decoder
    needs_generator: ClassVar[bool] = False  # classifies tokens that a generator sampled (ELECTRA)
    needs_masked_tokens: ClassVar[bool] = False  # uses the tokens that another objective of the same pass masks
    masks_tokens: ClassVar[bool] = False  # masks tokens and predicts them
    predicts_mask_token: ClassVar[bool] = True  # False: the mask token itself has probability 0 in the output
    reads_relevance: ClassVar[bool] = False  # uses labelled queries and titles, besides plain text

    @property
    def attention_mask_kind(self) -> AttentionMaskKind:
        """Attention mask of this objective."""
        mask: AttentionMaskKind = getattr(self, "attention_mask", getattr(self, "sees", "full"))  # sees: 0.1
        return mask

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        """Packings that the objective supports; empty = any."""
        return ()

    @property
    def generation(self) -> GenerationCapability | None:
        """How a model with this objective generates text; None: it cannot."""
        return None

    @property
    def sentence_scores(self) -> tuple[str, ...]:
        """How a model with this objective scores a sentence: kinds of the slot `sentence_score`, the one that is
        closest to its training first (`evaluation/sentence_scores/`). Empty: a sentence alone has no score."""
        return ()

    @property
    def predicts_bidirectionally(self) -> bool:
        """Whether a model with this objective predicts a token from both sides."""
        return False

    @property
    def target_shift(self) -> int:
        """How many positions before a masked token it is predicted: 0, or 1 for masked next-token prediction."""
        return 0

    @property
    def has_head_layer(self) -> bool:
        """Whether the LM head has a dense layer and a norm before the output matrix."""
        return bool(getattr(self, "transform", False))

    @property
    def pair_finetuning_keys(self) -> dict[str, Any] | None:
        """Keys for fine-tuning on pairs of source and target; None: not possible."""
        return None

    def conflicts(self) -> Iterator[Conflict]:
        if self.start_fraction >= self.end_fraction:
            what = f"{self.start_fraction:g} is not before end_fraction {self.end_fraction:g}, so it is never trained"
            yield (ConflictKey("start_fraction", what), ConflictKey("end_fraction", what))

    def recipe_conflicts(self, name: str, recipe: RecipeSettings) -> Iterator[Conflict]:
        """Conflicts with the rest of the recipe, in which the objective has this name; keys are absolute."""
        yield from ()


AnyObjective = Annotated[ObjectiveSettings, KindField("objective")]
