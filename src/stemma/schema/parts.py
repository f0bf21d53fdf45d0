"""What the parts of a network say of themselves before any tensor exists, whatever their kind: the base classes of
their settings. Networks, recipes and the command line ask these and keep no lists of kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from stemma.schema.base import BelowOne, Settings, Width, at_most_max, constraint

if TYPE_CHECKING:
    import numpy as np

# What attention may be asked for, and how a sentence says that a kind cannot do it.
FEATURES = {
    "causal": "cannot be causal",
    "masks": "takes no attention mask of its own for each position (permuted, prefix or mirrored text)",
    "windows": "has no windows",
    "cache": "keeps no cache of keys and values",
    "memory": "cannot look at a memory of earlier text",
    "score_bias": "has no scores to which something could be added",
    "relative": "has no relative scores",
    "rotation": "does not rotate queries and keys",
    "padding_free": "needs every row padded to one length",
    "narrowed": "computes all positions or none",
    "scores": "has no attention scores to show",
}

WindowSize = Annotated[int, constraint(lambda n: n >= 0, "a window must be 1 or more (0 = the whole text)"),
                       at_most_max]


class PositionSettings(Settings):
    kind: str

    required_features: ClassVar[frozenset[str]] = frozenset()  # features that attention must have
    structural_keys: ClassVar[tuple[str, ...]] = ("kind",)
    relative: ClassVar[bool] = False  # distances only: text of a memory needs no position of its own
    addable_per_step: ClassVar[bool] = False  # can be added again before each step of recurrent depth

    @property
    def max_length(self) -> int | None:
        """How many tokens can be read at once; None: any number."""
        return None

    @property
    def skips_padding(self) -> bool:
        """Whether padding in front of a text is not counted."""
        return False

    def num_parameters(self, width: int) -> int:
        """Of the embedding's part of it, at least."""
        return 0


class AttentionSettings(Settings):
    """The keys that attention of any kind has; a kind adds its own."""

    kind: str
    dropout: BelowOne
    output_dropout: BelowOne | None = None  # of what attention adds to the residual; None = network.dropout
    head_width: Width | None = None  # None = width / heads
    bias: bool = True  # constants beside the matrices
    scale: bool = True  # divide scores by the square root of the heads' width; T5 starts with smaller queries instead
    segments: bool = False  # score whether query and key belong to the same segment (XLNet)
    windows: list[WindowSize] = []  # taken in turn by the layers: how many tokens each token sees, itself the last of
    #                             them (GPT-3), or on either side of it where both sides are read (ModernBERT); 0 = all

    supports: ClassVar[frozenset[str]] = frozenset()  # of FEATURES
    size_keys: ClassVar[tuple[str, ...]] = ("head_width", "dropout", "windows")
    laptop_keys: ClassVar[tuple[str, ...]] = ("output_dropout",)
    structural_keys: ClassVar[tuple[str, ...]] = ("kind", "bias", "segments")
    adjustable_keys: ClassVar[tuple[str, ...]] = ("dropout", "output_dropout")


class InputSettings(Settings):
    """What a network reads of each position: tokens, segments and tasks, as [network.embedding] says, and whatever
    stands in [network.inputs.NAME]."""

    kind: str
    decoder: bool | None = None  # whether a decoder reads it as well, with the encoder's module; None = no

    structural_keys: ClassVar[tuple[str, ...]] = ("kind",)
    told_by: ClassVar[str | None] = None  # the key by which a network reads it, if that is not [network.inputs.NAME]
    from_ids: ClassVar[bool] = False  # its module is called with the token ids: any text has it, also a decoder's
    always: ClassVar[bool] = False  # where a stream does not have it, its module is called with None
    fused: ClassVar[bool] = True  # one of those that a fusion combines; otherwise it is added to what that makes

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of what a stream has for one position, such as (size,) of a vector; None: any."""
        return None

    @property
    def most(self) -> int | None:
        """The highest number, where a stream has whole numbers from 0 on; None: it has any numbers."""
        return None

    def fields(self, name: str) -> tuple[str, ...]:
        """The arrays and float fields of the corpus that it is made from: a run goes on with the same ones."""
        return ()

    def from_draft(self, name: str, draft: Any) -> np.ndarray:
        """(rows, length, ...) of a Draft that all objectives have edited, or of an encoder's side of it (EncoderDraft); it
        must not tell what they hid. Not asked of what is made from token ids."""
        raise NotImplementedError

    def missing_data(self, name: str, corpus: Any) -> str | None:
        """What a corpus does not have for it; None: nothing is missing."""
        return None

    def start(self, name: str, module: Any, tokenizer: Any) -> None:
        """Fill a module that is new with what is known before training, such as the spelling of each token."""

    def parameters(self, width: int, vocabulary: int) -> int:
        """Numbers of its module, at least."""
        return 0


class FusionKind(Settings):
    """What is known of a way to combine inputs; `network.embedding.fusion` names the kind, and it has no keys."""

    kind: str


class FeedForwardKind(Settings):
    """What is known of a kind of feed-forward layer; `network.transition` names the kind, and it has no keys."""

    kind: str

    position_wise: ClassVar[bool] = True  # each position by itself: padding and unread positions can be left out
    matrices: ClassVar[int] = 2  # of width x inner width, at least


class NormKind(Settings):
    """What is known of a kind of norm; the keys of [network.norm] are those of all kinds."""

    kind: str

    has_bias: ClassVar[bool] = True


class NoAttention(AttentionSettings):
    """What stands for [network.attention] where no body attends."""

    kind: Literal["none"] = "none"
    dropout: BelowOne = 0.0


# Keys of [network] that bodies are made by. One that no body of a network needs is not part of its recipe.
BODY_KEYS = ("layers", "heads", "feedforward", "attention")


class BodySettings(Settings):
    """What turns the embedded input of a part into hidden states: [network.depth], [network.decoder.depth]."""

    kind: str

    structural_keys: ClassVar[tuple[str, ...]] = ("kind",)
    required_keys: ClassVar[frozenset[str]] = frozenset((*BODY_KEYS, "position"))  # keys of [network] that must be
    #                                                                                stated
    supports: ClassVar[frozenset[str]] = frozenset()  # of FEATURES; of a body with attention, its attention says it
    causal_only: ClassVar[bool] = False  # it reads from left to right, whatever an objective wants to look at
    cross_attends: ClassVar[bool] = False  # can attend to another part's output, as a decoder does
    has_blocks: ClassVar[bool] = False  # one block for each layer, stored as blocks.0, blocks.1, ...
    shares_one_block: ClassVar[bool] = False  # all layers are one: what treats layers differently has no meaning
    adds_positions: ClassVar[bool] = False  # itself: the embedding does not

    @property
    def uses_attention(self) -> bool:
        """Whether it is made with [network.attention]."""
        return "attention" in self.required_keys


@dataclass(frozen=True)
class NetworkPart:
    """One part of a network: a body with an input of its own."""

    name: str
    body: BodySettings
    layers: int
    attends_to: str | None = None  # the part whose output it attends to, which comes before it
    key: str = "depth"  # where [network] states its body
