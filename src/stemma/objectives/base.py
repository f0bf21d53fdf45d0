"""What an objective is: it hides something in a draft, says what a network must offer, and scores the guess."""

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

LM_HEAD = "vocabulary"  # the head that guesses tokens
# How a corpus comes by each side array that it may lack.
HOW_TO_ANNOTATE = {"phrases": "`stemma corpus annotate CORPUS --phrases mine`",
          "entities": "`stemma corpus annotate CORPUS --entities FILE`",
          "roles": "`stemma corpus build --dialogue FILE`", "relevance": "`stemma corpus build --relevance FILE`",
          "capitals": "`stemma corpus build`"}


@dataclass(frozen=True)
class Requirements:
    """What an objective asks of the tokenizer, the corpus and the network; checked before anything is trained."""

    special_tokens: frozenset[str] = frozenset()
    annotations: frozenset[str] = frozenset()  # side arrays of the corpus
    heads: dict[str, HeadSpec] = field(default_factory=dict)


@dataclass(frozen=True)
class LossOutput:
    """What an objective found in a batch: its losses by name, and what others may want to know besides."""

    losses: dict[str, Tensor]
    ratio_metrics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # so many of so many, for the log
    generator_samples: Tensor | None = None  # (N,) what a generator wrote at the scored positions, for a task that
    #                                          judges it

    @staticmethod
    def from_losses(losses: LossOutput | dict[str, Tensor]) -> LossOutput:
        """An objective that has losses only gives back these."""
        return losses if isinstance(losses, LossOutput) else LossOutput(losses)

    def merge(self, other: LossOutput) -> LossOutput:
        return LossOutput({**self.losses, **other.losses}, {**self.ratio_metrics, **other.ratio_metrics})


class TrainableObjective(Protocol):
    """What the training loop asks of whatever is learnt: an objective of pre-training, or a task of fine-tuning."""

    name: str
    weight: float
    predicts_tokens: bool

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor] | LossOutput:
        """The losses by name, each already divided by its target's total."""

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """What one who knows only how often each answer occurs would lose."""

    def mean_baseline(self, batches: Sequence[Batch], unigram: np.ndarray) -> float:
        """The same over several batches."""


class Objective(ABC):
    """One pre-training task. Stateless: what it learns stands in the network's heads."""

    predicts_tokens = False  # its loss is comparable with a unigram model's, and is what people watch
    predicts_next = False  # a place guesses the token after it, not the one that stands there
    labels_rows = False  # asks about a whole row, so its texts must stand as it laid them out
    needs_several_sentences = False  # asks how sentences follow one another, so that some document must have several

    def __init__(self, name: str, settings: Any):
        self.name = name
        self.settings = settings
        self.weight: float = settings.weight

    @property
    def attention_mask_kind(self) -> AttentionMaskKind:
        """Objectives of one packing and one visibility share a forward pass."""
        sees: AttentionMaskKind = self.settings.attention_mask_kind
        return sees

    def reversed_rows(self, rows: int) -> np.ndarray:
        """(rows,) which rows of a batch are to be read from their text's end."""
        return np.zeros(rows, dtype=bool)

    @property
    def num_static_copies(self) -> int | None:
        """How many fixed copies of the data this objective wants to be drawn; None: new ones every time."""
        return None

    def raw_text_length(self, length: int, special: int) -> int:
        """How many tokens of text fill a window of this length, once corrupted, beside so many special tokens."""
        return length - special

    def num_sentinels(self, length: int) -> int:
        """How many different sentinels a row of a window of this length may need."""
        return 0

    @abstractmethod
    def requirements(self) -> Requirements:
        """What must be there before the objective can work."""

    def missing_data(self, corpus: Corpus) -> str | None:
        """What the task needs of the text and this corpus does not hold: a sentence without its full stop, for a notice
        that the task is switched off; None: it lacks nothing."""
        if self.needs_several_sentences and not _has_neighboring_sentences(corpus):
            return ("every document of the corpus is a single sentence, so that no sentence follows another; read "
                    "longer documents (--documents blank or file), or split them with `stemma corpus build --sentences "
                    "split`")
        missing = sorted(self.requirements().annotations - set(corpus.annotations()))
        told = (f'the corpus has no "{name}"; {HOW_TO_ANNOTATE.get(name, "`stemma corpus annotate`")} makes them'
                for name in missing)
        return "; ".join(told) or None

    def corpus_settings(self, corpus: Corpus) -> dict[str, Any]:
        """Keys of its own that this corpus decides: they are written into the run's recipe, and hold ever after."""
        return {}

    @abstractmethod
    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Edit the draft: rearrange its pieces or hide its tokens, and note what is to be guessed."""

    @abstractmethod
    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor] | LossOutput:
        """The losses by name, each already divided by its target's total."""

    @abstractmethod
    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """What one who knows only how often each answer occurs (log-probabilities `unigram`) would lose here."""

    def mean_baseline(self, batches: Sequence[Batch], unigram: np.ndarray) -> float:
        """The same over several batches, all of which have something to guess."""
        return float(np.mean([self.baseline(batch, unigram)[self.name] for batch in batches]))


def _has_neighboring_sentences(corpus: Corpus) -> bool:
    """Whether some document of running text has more than one sentence."""

    from stemma.corpus.subset import CorpusSubset

    first, last = np.searchsorted(corpus.sentence_starts,
                                  CorpusSubset.all_documents(corpus).documents_for("segment_pair").document_ranges).T
    return bool((last - first > 1).any())
