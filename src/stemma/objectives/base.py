"""The objective interface: make targets from a draft, declare requirements, compute losses and baselines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stemma.schema.objective import AttentionMaskKind

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.corpus import Corpus
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.heads import HeadSpec
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch

LM_HEAD = "vocabulary"  # name of the language-model head
# The command that adds each corpus annotation.
HOW_TO_ANNOTATE = {"phrases": "`stemma corpus annotate CORPUS --phrases mine`",
                   "entities": "`stemma corpus annotate CORPUS --entities FILE`",
                   "roles": "`stemma corpus build --dialogue FILE`",
                   "relevance": "`stemma corpus build --relevance FILE`", "capitals": "`stemma corpus build`"}


@dataclass(frozen=True)
class Requirements:
    """What an objective needs from the tokenizer, the corpus and the network; checked before training."""

    special_tokens: frozenset[str] = frozenset()
    annotations: frozenset[str] = frozenset()  # per-token arrays of the corpus
    heads: dict[str, HeadSpec] = field(default_factory=dict)


@dataclass(frozen=True)
class LossOutput:
    """Losses of one objective on a batch by name, with metrics for the log and the samples of a generator."""

    losses: dict[str, Tensor]
    ratio_metrics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # numerator and denominator
    generator_samples: Tensor | None = None  # (N,) tokens sampled by the generator at the scored positions (ELECTRA)

    @staticmethod
    def from_losses(losses: LossOutput | dict[str, Tensor]) -> LossOutput:
        """Wrap a plain dictionary of losses: objectives without metrics or samples return one."""
        return losses if isinstance(losses, LossOutput) else LossOutput(losses)

    def merge(self, other: LossOutput) -> LossOutput:
        return LossOutput({**self.losses, **other.losses}, {**self.ratio_metrics, **other.ratio_metrics})


class TrainableObjective(Protocol):
    """Interface that the trainer needs: pre-training objectives and fine-tuning tasks implement it."""

    name: str
    weight: float
    predicts_tokens: bool

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor] | LossOutput:
        """Losses by name, each already divided by the denominator of its target."""

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """Loss of predicting the label frequencies."""

    def mean_baseline(self, batches: Sequence[Batch], unigram: np.ndarray) -> float:
        """The baseline over several batches."""


class Objective(ABC):
    """One pre-training objective. Learned parameters belong to the heads of the network; an objective that adapts its
    targets returns its state for checkpoints."""

    predicts_tokens = False  # comparable with the unigram baseline; the headline loss is the mean of these
    predicts_next = False  # each position predicts the next token, not its own
    predicts_separators = False  # predicts the separators between documents, though not the next token
    labels_rows = False  # classifies whole rows, so other objectives must not rearrange its text
    needs_several_sentences = False  # needs documents of more than one sentence

    def __init__(self, name: str, settings: Any):
        self.name = name
        self.settings = settings
        self.weight: float = settings.weight

    @property
    def attention_mask_kind(self) -> AttentionMaskKind:
        """Objectives with the same packing and attention mask share a forward pass."""
        kind: AttentionMaskKind = self.settings.attention_mask_kind
        return kind

    def reversed_rows(self, rows: int) -> np.ndarray:
        """(rows,) True for rows whose text is reversed."""
        return np.zeros(rows, dtype=bool)

    @property
    def follows_schedule(self) -> bool:
        """Whether targets depend on the used fraction of the budget (`Draft.progress`)."""
        return False

    @property
    def num_static_copies(self) -> int | None:
        """Number of statically masked copies of the data; None: dynamic masking."""
        return None

    def raw_text_length(self, length: int, special: int) -> int:
        """Number of text tokens that fill a sequence of `length` after corruption, besides the special tokens."""
        return length - special

    def num_sentinels(self, length: int) -> int:
        """Largest number of sentinels that a sequence of this length needs."""
        return 0

    @abstractmethod
    def requirements(self) -> Requirements:
        """Special tokens, annotations and heads that the objective needs."""

    def missing_data(self, corpus: Corpus) -> str | None:
        """Why this corpus cannot serve the objective, as a sentence without its full stop; None if it can. The
        objective is then switched off with a warning."""
        if self.needs_several_sentences and not _has_neighboring_sentences(corpus):
            return ("every document of the corpus is a single sentence, so that no sentence follows another; read "
                    "longer documents (--documents blank or file), or split them with `stemma corpus build --sentences "
                    "split`")
        missing = sorted(self.requirements().annotations - set(corpus.annotations()))
        reasons = (f'the corpus has no "{name}"; {HOW_TO_ANNOTATE.get(name, "`stemma corpus annotate`")} makes them'
                   for name in missing)
        return "; ".join(reasons) or None

    def corpus_settings(self, corpus: Corpus) -> dict[str, Any]:
        """Settings that depend on the corpus; they are written to the recipe of the run and stay fixed."""
        return {}

    @abstractmethod
    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Edit the draft: rearrange its spans or mask its tokens, and add the targets."""

    def make_validation_targets(self, draft: Draft, rng: RNG) -> None:
        """Like `make_targets`, for validation data: it must not depend on what was learned."""
        self.make_targets(draft, rng)

    def start_step(self, step: int) -> None:  # noqa: B027 (most objectives learn nothing)
        """Called before the batch of a step is made, with all losses before it computed."""

    def changes_at(self, step: int) -> bool:
        """Whether `start_step` of this step changes the targets, so that its batch cannot be made earlier."""
        return False

    def state(self) -> dict[str, Tensor]:
        """State that a checkpoint must store; most objectives have none."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Restore what `state` returned."""

    @abstractmethod
    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor] | LossOutput:
        """Losses by name, each already divided by the denominator of its target."""

    @abstractmethod
    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """Loss of predicting the label frequencies; `unigram` holds the log-probabilities of the tokens."""

    def mean_baseline(self, batches: Sequence[Batch], unigram: np.ndarray) -> float:
        """The baseline over several batches, each of which has targets."""
        return float(np.mean([self.baseline(batch, unigram)[self.name] for batch in batches]))


def _has_neighboring_sentences(corpus: Corpus) -> bool:
    """Whether some document of running text has more than one sentence."""
    from stemma.corpus.subset import CorpusSubset

    first, last = np.searchsorted(corpus.sentence_starts,
                                  CorpusSubset.all_documents(corpus).documents_for("segment_pair").document_ranges).T
    return bool((last - first > 1).any())
