"""word2vec (arXiv:1301.3781, arXiv:1310.4546) and fastText (arXiv:1607.04606), trained by gensim.

A step trains on some sentences; the learning rate falls linearly over the budget to 1/10,000 of what it was. gensim
draws windows, negatives and omitted words from a generator that each step seeds, so a run with one thread that is
killed and resumed ends with the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from stemma.training.loader import BatchLoader, PreparedBatch
from stemma.training.method import MethodSetup, MethodState, StepMetrics
from stemma.training.train_state import TrainState
from stemma.training.vector_method_kinds import Word2vecSettings
from stemma.training.word_vectors import WordVectorMethod
from stemma.vectors.optional_library import optional_library
from stemma.vectors.subwords import Subwords

MIN_LEARNING_RATE = 1e-4  # of the first learning rate
MAX_SENTENCE = 1000  # words; a longer sentence is cut, as in the authors' code


class GensimVectors(WordVectorMethod):
    def __init__(self, settings: Word2vecSettings, setup: MethodSetup):
        gensim = optional_library("gensim.models")
        super().__init__(settings, setup)
        logging.getLogger("gensim").setLevel(logging.ERROR)  # its notes are about how it is called here
        self.learning_rate = setup.settings.training.learning_rate
        self.span_tokens = np.concatenate([[0], np.cumsum(self.spans[:, 1] - self.spans[:, 0])])
        self.epoch, self.next_span, self.subsample = 0, 0, settings.subsample
        self._pending = (0, 0)
        self._stale = False  # whether gensim's vectors are newer than those of the network
        tokenizer, task = self.loader.corpus.tokenizer, self.task
        self.spelling = np.array([tokenizer.backend.id_to_token(token_id) for token_id in
                                  range(self.network.vocab_size)], object)
        options: dict[str, Any] = {
            "vector_size": setup.settings.network.width, "window": task.window, "sg": int(task.architecture ==
                                                                                        "skip_gram"),
            "hs": int(task.hierarchical_softmax), "negative": task.negatives, "ns_exponent": task.power,
            "sample": settings.subsample, "min_count": 1, "workers": settings.workers, "sorted_vocab": 0, "seed": 1,
            "alpha": self.learning_rate, "min_alpha": 0.0}
        if task.buckets:
            self.model = gensim.FastText(**options, min_n=task.min_n, max_n=task.max_n, bucket=task.buckets)
        else:
            self.model = gensim.Word2Vec(**options)
        self.model.lifecycle_events = None  # a list that grows with every step
        words = dict(zip(self.spelling[self.word_ids], self.counts[self.word_ids].tolist(), strict=True))
        self.model.build_vocab_from_freq(words, corpus_count=len(self.spans))
        if task.buckets:
            self.model.wv.adjust_vectors = lambda: None  # composed below, when they are needed
            self.model.wv.vectors_ngrams = self.head.buckets.detach().numpy()  # the same memory
        self._from_network()

    # ---- vectors: gensim's have a row for each word, those of the network one for each token ----

    def _arrays(self) -> Iterator[tuple[torch.Tensor, np.ndarray, bool]]:
        """(tensor of the network, array of gensim, whether its rows are words and not inner nodes)"""
        model, head = self.model, self.head
        yield (head.own, model.wv.vectors_vocab, True) if self.task.buckets else \
            (self.embedding.weight, model.wv.vectors, True)
        if head.weight is not None:
            yield head.weight, model.syn1neg, True
        if self.task.hierarchical_softmax:
            yield head.inner, model.syn1, False

    @torch.no_grad()
    def _from_network(self) -> None:
        for tensor, array, by_word in self._arrays():
            values = tensor.detach().cpu().numpy()
            array[:] = values[self.word_ids] if by_word else values[:len(array)]

    @torch.no_grad()
    def to_network(self) -> None:
        if not self._stale:
            return
        self._stale = False
        ids = torch.from_numpy(self.word_ids)
        for tensor, array, by_word in self._arrays():
            values = torch.from_numpy(array)
            tensor[ids if by_word else torch.arange(len(array))] = values.to(tensor.device)
        if self.head.weight is not None:
            self.head.bias[ids] = torch.from_numpy(self._log_noise()).to(self.head.bias)
        if self.task.buckets:
            subwords = Subwords(self.head.buckets.detach().numpy(), self.task.min_n, self.task.max_n)
            words = self.spelling[self.word_ids].tolist()
            self.embedding.weight[ids] = torch.from_numpy(subwords.compose(words, self.model.wv.vectors_vocab))

    def _log_noise(self) -> np.ndarray:
        """What turns learned products into probabilities: they are log-odds against the distribution of negatives, in a
        text from which frequent words were omitted."""
        counts = self.counts[self.word_ids].astype(np.float64)
        noise = counts ** self.task.power
        bias: np.ndarray = np.log(noise / noise.sum())
        if self.subsample:
            ratio = self.subsample * counts.sum() / counts
            bias -= np.log(np.minimum(1.0, np.sqrt(ratio) + ratio))
        return bias

    @contextmanager
    def live_weights(self) -> Iterator[None]:
        """A checkpoint is about to be written."""
        self.to_network()
        yield

    # ---- steps ----

    def next_batch(self, loader: BatchLoader, state: TrainState, length: int, progress: float) -> PreparedBatch:
        start = self.next_span
        stop = int(np.searchsorted(self.span_tokens, self.span_tokens[start] + self.step_tokens, side="right")) - 1
        self._pending = start, min(max(stop, start + 1), len(self.spans))
        return self.as_batch(self.tokens(*self._pending), self.task.kind)

    def train_step(self, prepared: PreparedBatch, state: TrainState, progress: float) -> StepMetrics:
        start, stop = self._pending
        tokens = prepared.batch.streams["encoder"].input_ids
        assert tokens is not None
        rate = self.learning_rate * max(1 - progress, MIN_LEARNING_RATE)
        # torch is seeded by seed and step; gensim draws the seed of each 10,000 words from this generator
        self.model.random = np.random.RandomState(int(torch.randint(2**31, ())))
        self.model.alpha = self.model.min_alpha = self.model.min_alpha_yet_reached = rate
        sentences = list(self._sentences(tokens[0].numpy(), self.span_tokens[start:stop + 1]))
        self.model.train(sentences, total_words=max(1, tokens.shape[1]), epochs=1, start_alpha=rate, end_alpha=rate)
        self._stale = True
        self.next_span = stop
        if stop == len(self.spans):
            self.epoch, self.next_span = self.epoch + 1, 0
        return StepMetrics({}, {}, {"learning_rate": rate, "epoch": self.epoch})

    def _sentences(self, tokens: np.ndarray, bounds: np.ndarray) -> Iterator[list[str]]:
        """The words of each sentence; other tokens are left out."""
        known = self.counts[tokens] > 0
        words = self.spelling[tokens[known]].tolist()
        ends = np.concatenate([[0], np.cumsum(known)])[bounds - bounds[0]].tolist()
        for first, last in zip(ends, ends[1:], strict=False):
            for part in range(first, last, MAX_SENTENCE):
                yield words[part:min(last, part + MAX_SENTENCE)]

    def completed_fraction(self, state: TrainState) -> float:
        done = self.epoch * self.total_tokens + int(self.span_tokens[self.next_span])
        return done / (self.epochs * self.total_tokens)

    def state(self) -> MethodState:
        return MethodState({}, {**super().state().values, "epoch": self.epoch, "next_span": self.next_span})

    def restore(self, state: MethodState) -> None:
        self.epoch, self.next_span = state.values["epoch"], state.values["next_span"]
        self._from_network()
