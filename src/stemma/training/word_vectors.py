"""What the training methods of word vectors share: the words of the text, and sentences or documents in order.

Words are the tokens of the vocabulary that occur often enough in the training text. All others are left out before
windows are taken, as in the authors' code.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from stemma.errors import UserError, pluralize
from stemma.network.context_head import ContextHead
from stemma.network.initialization import LookupEmbedding
from stemma.network.inputs_outputs import Stream
from stemma.objectives.batch import Batch
from stemma.objectives.word_context import CONTEXT_HEAD, WordContextSettings
from stemma.training.loader import PreparedBatch
from stemma.training.method import Method, MethodSetup
from stemma.training.pretrain_loader import PretrainLoader
from stemma.training.train_state import TrainState
from stemma.training.vector_method_kinds import VectorMethodSettings
from stemma.visibility import Bidirectional

LOSS_TOKENS = 16_384  # of the training text, for the training loss
COUNTED_AT_ONCE = 1 << 22
Integers = NDArray[np.int64]


class WordVectorMethod(Method):
    def __init__(self, settings: VectorMethodSettings, setup: MethodSetup):
        super().__init__(setup)
        loader = setup.loader
        if not isinstance(loader, PretrainLoader) or setup.run is None:
            raise UserError(f"training.method.kind={settings.kind} learns word vectors from a text and cannot "
                            "fine-tune; leave training.method out.")
        (task,) = setup.settings.objective.values()
        assert isinstance(task, WordContextSettings)  # a conflict of the recipe otherwise
        head, embedding = self.network.heads[CONTEXT_HEAD], self.network.embedding.tokens
        assert isinstance(head, ContextHead) and isinstance(embedding, LookupEmbedding)
        self.loader, self.run, self.task, self.head, self.embedding = loader, setup.run, task, head, embedding
        self.epochs, self.step_tokens = settings.epochs, \
            setup.settings.training.batch_size * setup.settings.corpus.sequence_length
        self.spans = self._spans(settings.unit)
        self.counts = self._counts()
        self._check_text(settings)
        self.counts[self.counts < settings.min_count] = 0
        self.word_ids = np.flatnonzero(self.counts)
        self.total_tokens = int((self.spans[:, 1] - self.spans[:, 0]).sum())
        with torch.no_grad():
            self.head.counts.copy_(torch.from_numpy(self.counts))
            self.embedding.weight[torch.from_numpy(self.counts == 0)] = 0.0  # no word: no vector

    def _spans(self, unit: str) -> Integers:
        """(number, 2) token offsets of the sentences or documents of the training text."""
        ranges = np.asarray(self.loader.training.document_ranges, np.int64)
        if unit == "document":
            return ranges
        bounds = np.union1d(np.asarray(self.loader.corpus.sentence_starts, np.int64), ranges.ravel())
        spans = np.column_stack([bounds[:-1], bounds[1:]])
        starts = np.sort(ranges, axis=0)
        inside = np.searchsorted(starts[:, 0], spans[:, 0], side="right") - 1
        inner: Integers = spans[(inside >= 0) & (spans[:, 1] <= starts[np.maximum(inside, 0), 1])]
        return inner

    def _counts(self) -> Integers:
        """Occurrences of each token in the training text; 0 for special tokens."""
        corpus = self.loader.corpus
        counts = np.zeros(self.network.vocab_size, np.int64)
        for start, stop in self.loader.training.document_ranges:
            for part in range(int(start), int(stop), COUNTED_AT_ONCE):
                tokens = corpus.values_between("tokens", part, min(int(stop), part + COUNTED_AT_ONCE))
                counts += np.bincount(tokens, minlength=len(counts))
        counts[corpus.tokenizer.special_ids] = 0
        return counts

    def _check_text(self, settings: VectorMethodSettings) -> None:
        words, window = int(self.counts.sum()), self.task.window
        if words <= window:
            raise UserError(f"the training text has {pluralize(words, 'word')}, and objective.word_context.window = "
                            f"{window} takes {window} on each side; give a longer text.")
        if int((self.counts >= settings.min_count).sum()) < 2:
            raise UserError(f"fewer than two words occur at least training.method.min_count = {settings.min_count} "
                            "times in the training text; lower it, or give a longer text.")

    def tokens(self, start: int, stop: int) -> Integers:
        """The tokens of the spans `start` to `stop`, as one array."""
        corpus, spans = self.loader.corpus, self.spans[start:stop]
        breaks = np.flatnonzero(spans[1:, 0] != spans[:-1, 1]) + 1
        groups = zip(np.append(0, breaks), np.append(breaks, len(spans)), strict=True)
        return np.concatenate([corpus.values_between("tokens", int(spans[first, 0]), int(spans[last - 1, 1]))
                               for first, last in groups]).astype(np.int64)

    def as_batch(self, tokens: Integers, name: str) -> PreparedBatch:
        """These tokens as the batch of a step; no objective computes a loss for them."""
        stream = Stream(torch.from_numpy(tokens[None]), Bidirectional())
        return PreparedBatch((), Batch({"encoder": stream}, num_tokens=len(tokens), num_rows=1), {}, name)

    @property
    def folder(self) -> Path:
        return self.run / "counts"

    # ---- the network ----

    @abstractmethod
    def to_network(self) -> None:
        """Put the vectors into the network."""

    def finish_network(self, state: TrainState) -> None:
        self.to_network()
        self._set_loss(state)

    @torch.no_grad()
    def _set_loss(self, state: TrainState) -> None:
        """The training loss, measured as the validation loss, on the beginning of the training text."""
        lengths = np.cumsum(self.spans[:, 1] - self.spans[:, 0])
        tokens = self.tokens(0, int(np.searchsorted(lengths, LOSS_TOKENS)) + 1)[:LOSS_TOKENS]
        batch = self.as_batch(tokens, "").batch.to(self.forward_backward.device)
        self.network.eval()
        losses = self.forward_backward.compute_losses(tuple(self.loader.objectives), batch, None).losses
        self.set_train_mode()
        state.losses = {name: float(loss) for name, loss in losses.items()}
        state.loss = sum(state.losses.values())
