"""Base settings of network parts, with the properties that networks, recipes and the command line need before any
tensor exists. No other module has a list of kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from stemma.schema.base import BelowOne, Conflict, ConflictKey, Settings, Width, at_most_max, constraint

if TYPE_CHECKING:
    import numpy as np

    from stemma.schema.network import NetworkSettings

# Features that attention may support, with the text of the error if a kind does not.
FEATURES = {
    "causal": "cannot be causal",
    "masks": "takes no attention mask of its own for each position (permuted, prefix or mirrored text)",
    "windows": "has no windows",
    "cache": "keeps no cache of keys and values",
    "memory": "cannot look at a memory of earlier text",
    "score_bias": "has no scores to which a bias could be added",
    "relative": "has no relative scores",
    "disentangled": "has no scores of content against position",
    "rotation": "does not rotate queries and keys",
    "padding_free": "needs every row padded to one length",
    "narrowed": "computes all positions or none",
    "scores": "has no attention scores to show",
}

WindowSize = Annotated[int, constraint(lambda n: n >= 0, "a window must be 1 or more (0 = the whole text)"),
                       at_most_max]


class PositionSettings(Settings):
    kind: str

    required_features: ClassVar[frozenset[str]] = frozenset()  # features that attention must support
    structural_keys: ClassVar[tuple[str, ...]] = ("kind",)
    relative: ClassVar[bool] = False  # relative positions, as a memory needs them
    disentangled: ClassVar[bool] = False  # scores of content against position, with the layer's own projections
    addable_per_step: ClassVar[bool] = False  # can be added before each step of recurrent depth

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length; None: unlimited."""
        return None

    @property
    def skips_padding(self) -> bool:
        """Whether position ids do not count left padding."""
        return False

    def num_parameters(self, width: int) -> int:
        """Number of parameters in the embedding, at least."""
        return 0


class AttentionSettings(Settings):
    """Keys of every kind of attention; a kind adds its own."""

    kind: str
    dropout: BelowOne
    output_dropout: BelowOne | None = None  # of the attention output, before the residual sum; None = network.dropout
    head_width: Width | None = None  # None = width / heads
    bias: bool = True  # bias terms of the projections
    scale: bool = True  # divide scores by sqrt(head width); T5 initializes the queries smaller instead
    segments: bool = False  # relative segment encoding: whether query and key are in the same segment (XLNet)
    qk_norm: Literal["none", "before", "after"] = "none"  # RMSNorm of the queries and keys of each head
    #                                                       (arXiv:2010.04245), before or after they are rotated
    qk_norm_weight: bool = False  # with a learned scale of each dimension of a head
    # Cycled over the layers: number of tokens that a token attends to, itself included (GPT-3); with bidirectional
    # attention the number on either side (ModernBERT); 0 = all.
    windows: list[WindowSize] = []

    supports: ClassVar[frozenset[str]] = frozenset()  # of FEATURES
    size_keys: ClassVar[tuple[str, ...]] = ("head_width", "dropout", "windows")
    laptop_keys: ClassVar[tuple[str, ...]] = ("output_dropout",)
    structural_keys: ClassVar[tuple[str, ...]] = ("kind", "bias", "segments", "qk_norm", "qk_norm_weight")
    adjustable_keys: ClassVar[tuple[str, ...]] = ("dropout", "output_dropout")
    one_decision = (("qk_norm", "qk_norm_weight"),)

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.qk_norm_weight and self.qk_norm == "none":
            yield (ConflictKey("qk_norm_weight", "there is no norm to weight: set network.attention.qk_norm=before"),
                   ConflictKey("qk_norm", "with network.attention.qk_norm_weight it must be before or after"))


class InputSettings(Settings):
    """An input of each position: tokens, segments, tasks ([network.embedding]), or one of [network.inputs.NAME]."""

    kind: str
    decoder: bool | None = None  # whether the decoder also gets it, with the encoder's module; None = no

    structural_keys: ClassVar[tuple[str, ...]] = ("kind",)
    enabled_by: ClassVar[str | None] = None  # the key that enables it, if not [network.inputs.NAME]
    from_ids: ClassVar[bool] = False  # computed from token ids, so it is available for any text, also the decoder's
    always: ClassVar[bool] = False  # if a stream does not have it, the module is called with None
    fused: ClassVar[bool] = True  # combined by the fusion; otherwise added to its output

    @property
    def reads_text(self) -> bool:
        """Whether an input that is computed from token ids also reads the text of words outside of the vocabulary. A
        stream may then have an array of its name, which the module gets besides the ids."""
        return False

    def from_texts(self, tokenizer: Any, ids: np.ndarray, words: Sequence[str]) -> np.ndarray:
        """(n, ...) values of such an input for the token ids of one text and the part of the text that each was made
        from; "" for special tokens."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the value of one position, such as (size,) for a vector; None: any."""
        return None

    @property
    def most(self) -> int | None:
        """The highest value, if values are whole numbers from 0; None: any numbers."""
        return None

    def fields(self, name: str) -> tuple[str, ...]:
        """Arrays and float fields of the corpus that it uses; a resumed run must have the same ones."""
        return ()

    def from_draft(self, name: str, draft: Any) -> np.ndarray:
        """(rows, length, ...) values for a Draft that all objectives have edited, or for its encoder rows
        (EncoderDraft). Must not reveal masked tokens. Not called if `from_ids`."""
        raise NotImplementedError

    def missing_data(self, name: str, corpus: Any) -> str | None:
        """What the corpus lacks for this input; None: nothing."""
        return None

    def start(self, name: str, module: Any, tokenizer: Any) -> None:
        """Initialize a new module with known values, such as the spelling of each token."""

    def num_parameters(self, width: int, vocab_size: int) -> int:
        """Number of parameters of its module, at least."""
        return 0


class FusionKind(Settings):
    """Properties of a kind of fusion. `network.embedding.fusion` names the kind; it has no keys."""

    kind: str


class FeedForwardKind(Settings):
    """Properties of a kind of feed-forward layer. `network.transition` names the kind; it has no keys."""

    kind: str

    position_wise: ClassVar[bool] = True  # positions are independent, so padding and unused positions can be left out
    matrices: ClassVar[int] = 2  # number of matrices of width x inner width, at least


class NormKind(Settings):
    """Properties of a kind of norm; all kinds have the keys of [network.norm]."""

    kind: str

    has_bias: ClassVar[bool] = True


class NoAttention(AttentionSettings):
    """Placeholder of [network.attention] if no body uses attention."""

    kind: Literal["none"] = "none"
    dropout: BelowOne = 0.0


# Keys of [network] that configure bodies. A recipe leaves out those that no body of its network needs.
BODY_KEYS = ("layers", "heads", "feedforward", "attention")


class BodySettings(Settings):
    """The body of a part, which turns embeddings into hidden states: [network.depth], [network.decoder.depth]."""

    kind: str

    structural_keys: ClassVar[tuple[str, ...]] = ("kind",)
    required_keys: ClassVar[frozenset[str]] = frozenset((*BODY_KEYS, "position"))  # required keys of [network]
    supports: ClassVar[frozenset[str]] = frozenset()  # of FEATURES; for a body with attention, the attention's count
    causal_only: ClassVar[bool] = False  # always causal, regardless of the objective
    cross_attends: ClassVar[bool] = False  # supports cross-attention, as a decoder needs it
    has_blocks: ClassVar[bool] = False  # one block per layer, stored as blocks.0, blocks.1, ...
    shares_one_block: ClassVar[bool] = False  # all layers share one block, so layers cannot be treated differently
    adds_positions: ClassVar[bool] = False  # the body adds positions; the embedding does not
    carries_state: ClassVar[bool] = False  # a state of fixed size is its context: it continues from call to call
    reads_embedding: ClassVar[bool] = False  # its first layer reads the embedding's width; no projection before it
    unused_keys: ClassVar[tuple[str, ...]] = ()  # patterns of keys of the recipe that have no effect with it
    opposite_directions: ClassVar[bool] = False  # a network for each direction: a row may be read in one of them
    excludes_token: ClassVar[bool] = False  # the output at a position does not depend on the token there
    counts: ClassVar[bool] = False  # no vectors: hidden states are token ids, and what is learnt are counts
    static: ClassVar[bool] = False  # hidden states are the vectors of the tokens alone: static word vectors
    sentence_scores: ClassVar[tuple[str, ...]] = ()  # how it scores sentences, if not as its objectives declare

    @property
    def uses_attention(self) -> bool:
        """Whether it uses [network.attention]."""
        return "attention" in self.required_keys

    def output_width(self, width: int) -> int:
        """The width of its output, for a network of this width."""
        return width

    def network_conflicts(self, network: NetworkSettings) -> Iterator[Conflict]:
        """Conflicts with the rest of [network]; keys are relative to it."""
        yield from ()

    def num_parameters(self, network: NetworkSettings, layers: int) -> int:
        """Number of parameters besides feed-forward layers, at least."""
        return 0


@dataclass(frozen=True)
class NetworkPart:
    """One part of a network, encoder or decoder: a body with its own input."""

    name: str
    body: BodySettings
    layers: int
    attends_to: str | None = None  # the part it cross-attends to, which comes before it
    key: str = "depth"  # key of its body in [network]
