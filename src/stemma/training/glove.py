"""GloVe (Pennington, Socher & Manning 2014, https://aclanthology.org/D14-1162): count neighbours, then factorize the
logarithms of the counts.

**Counting** is out of core: each step counts a part of the text into a sorted run in `counts/` of the run folder; a run
that is there is not counted again. **Training** goes through all pairs in the same random order in each pass. The
authors' code updates after each pair. Here the pairs are ordered by the diagonals of the (words x words) matrix with
shuffled rows and columns. On a diagonal no word occurs twice on the same side, so all its pairs are computed at once
with exactly the results of one after the other. The runs are sorted by (diagonal, row), so merging them is the shuffle.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from stemma.counts.packed_ngrams import sort_and_sum
from stemma.counts.sorted_runs import MergedNgrams, open_run, sorting_bytes, write_run
from stemma.training.loader import BatchLoader, PreparedBatch
from stemma.training.method import MethodSetup, MethodState, StepMetrics
from stemma.training.train_state import TrainState
from stemma.training.vector_method_kinds import GloveSettings
from stemma.training.word_vectors import Integers, WordVectorMethod

ORDER_SEED = 20_140_614
COUNTING_SHARE = 0.1  # of the progress, for counting
PAIRS_AT_ONCE = 1 << 20  # pairs of a step of training, at most
SCALES = ("left", "right")
Floats = NDArray[np.float32]


class Glove(WordVectorMethod):
    def __init__(self, settings: GloveSettings, setup: MethodSetup):
        super().__init__(settings, setup)
        self.settings, self.learning_rate = settings, setup.settings.training.learning_rate
        self.memory = settings.memory * 2**20
        window, words = self.task.window, len(self.word_ids)
        # counts are sums of 1 / distance; multiplied by this they are whole numbers, which add up in any order
        self.unit = math.lcm(*range(1, window + 1)) if window <= 20 else 2**32
        rng = np.random.default_rng(ORDER_SEED)
        self.row_of, self.column_of = rng.permutation(words), rng.permutation(words)
        self.word_at_row, self.word_at_column = np.argsort(self.row_of), np.argsort(self.column_of)
        self.word_number = np.full(len(self.counts), -1, np.int64)
        self.word_number[self.word_ids] = np.arange(words)
        self.starts = np.concatenate([[0], np.cumsum(self.spans[:, 1] - self.spans[:, 0])])  # positions in the text
        self.part_tokens = max(1, min(self.step_tokens, self.memory // (4 * window * sorting_bytes(1))))
        self.parts: list[tuple[int, int]] = []
        self.epoch, self.next_pair, self.cost = 0, 0, 0.0
        self._pairs: np.ndarray | None = None
        self.left, self.right = self._initial(), self._initial()  # (words, width + 2): vector, bias, 1 and the reverse
        self.left_squares, self.right_squares = np.ones_like(self.left), np.ones_like(self.right)
        self.left[:, -1], self.right[:, -2] = 1.0, 1.0
        self.left_squares[:, -1] = self.right_squares[:, -2] = np.inf  # so the 1 never changes
        self._from_network()

    def _initial(self) -> Floats:
        return np.zeros((len(self.word_ids), self.embedding.embedding_dim + 2), np.float32)

    # ---- network ----

    @torch.no_grad()
    def _from_network(self) -> None:
        ids, weight = torch.from_numpy(self.word_ids), self.head.weight
        assert weight is not None
        if not weight[ids].any():  # new: both sides start alike
            weight[ids] = self.embedding.weight[ids[torch.randperm(len(ids))]]
            self.embedding.weight[ids] += weight[ids]
        self.left[:, :-2] = (self.embedding.weight[ids] - weight[ids]).cpu().numpy()
        self.right[:, :-2] = weight[ids].cpu().numpy()
        self.left[:, -2], self.right[:, -1] = self.head.word_bias[ids].cpu().numpy(), self.head.bias[ids].cpu().numpy()

    @torch.no_grad()
    def to_network(self) -> None:
        ids, weight = torch.from_numpy(self.word_ids), self.head.weight
        assert weight is not None
        left, right = torch.from_numpy(self.left), torch.from_numpy(self.right)
        weight[ids] = right[:, :-2].to(weight.device)
        self.embedding.weight[ids] = (left + right)[:, :-2].to(weight.device)
        self.head.word_bias[ids], self.head.bias[ids] = left[:, -2].to(weight.device), right[:, -1].to(weight.device)

    @contextmanager
    def live_weights(self) -> Iterator[None]:
        """A checkpoint is about to be written."""
        self.to_network()
        yield

    def state(self) -> MethodState:
        """The vectors too: the network stores the sum of both, which is rounded."""
        tensors = {"left": self.left, "right": self.right, "left_squares": self.left_squares,
                   "right_squares": self.right_squares}
        return MethodState({name: torch.from_numpy(array) for name, array in tensors.items()},
                           {**super().state().values, "parts": self.parts, "epoch": self.epoch,
                            "next_pair": self.next_pair, "cost": self.cost})

    def restore(self, state: MethodState) -> None:
        self.parts = [(start, stop) for start, stop in state.values["parts"]]
        self.epoch, self.next_pair = state.values["epoch"], state.values["next_pair"]
        self.cost = state.values["cost"]
        for name, tensor in state.tensors.items():
            getattr(self, name)[:] = tensor.numpy()

    # ---- counting ----

    @property
    def counted(self) -> int:
        """Number of positions of the text that are counted."""
        return self.parts[-1][1] if self.parts else 0

    def next_batch(self, loader: BatchLoader, state: TrainState, length: int, progress: float) -> PreparedBatch:
        start = self.counted
        if start < self.total_tokens:
            return self.as_batch(self._read(start, min(self.total_tokens, start + self.part_tokens))[0], "counts")
        return self.as_batch(np.zeros(0, np.int64), "pairs")  # no text is read any more

    def train_step(self, prepared: PreparedBatch, state: TrainState, progress: float) -> StepMetrics:
        if self.counted < self.total_tokens:
            start = self.counted
            self.parts.append((start, min(self.total_tokens, start + self.part_tokens)))
            self._count(*self.parts[-1])
            return StepMetrics({}, {}, {"counted": self.counted / self.total_tokens})
        cost = self._train()
        return StepMetrics({}, {}, {"epoch": self.epoch, "cost": cost})

    def _read(self, start: int, stop: int) -> tuple[Integers, Integers]:
        """(tokens, number of the span of each) of these positions of the text."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, stop, side="left"))
        tokens = self.tokens(first, last)[start - self.starts[first]:stop - self.starts[first]]
        spans = np.repeat(np.arange(first, last), np.diff(self.starts[first:last + 1]))
        return tokens, spans[start - self.starts[first]:stop - self.starts[first]]

    def _count(self, start: int, stop: int) -> None:
        """The run of these positions; it is written unless it is there."""
        path = self.folder / f"run-{start:015d}-{stop:015d}.npy"
        if path.exists():
            return
        window = self.task.window
        before = max(0, start - 4 * window)
        while True:  # back to `window` known words before the part: other tokens do not count
            tokens, spans = self._read(before, stop)
            known = self.word_number[tokens] >= 0
            if not before or known[:start - before].sum() >= window:
                break
            before = max(0, start - 2 * (start - before))
        words, spans = self.word_number[tokens[known]], spans[known]
        new = int(known[:start - before].sum())  # pairs whose second word is before this are counted already
        keys, weights = [], []
        for distance in range(1, window + 1):
            second = np.arange(max(new, distance), len(words))
            second = second[spans[second] == spans[second - distance]]
            one, other = words[second - distance], words[second]
            for row, column in ((one, other), (other, one)):
                keys.append(self._keys(row, column))
                weights.append(np.full(len(row), round(self.unit / distance), np.int64))
        packed = np.concatenate(keys).astype(np.uint64)[:, None]
        self.folder.mkdir(parents=True, exist_ok=True)
        write_run(path, *sort_and_sum(packed, np.concatenate(weights)))

    def _keys(self, row: Integers, column: Integers) -> Integers:
        """diagonal x words + row, both of the shuffled matrix"""
        size, shuffled = len(self.word_ids), self.row_of[row]
        keys: Integers = (self.column_of[column] - shuffled) % size * size + shuffled
        return keys

    def merged(self) -> np.ndarray:
        """(pairs, 2) keys and counts of all runs, on disk."""
        if self._pairs is None:
            for part in self.parts:
                self._count(*part)  # those deleted by hand are counted again
            runs = [self.folder / f"run-{start:015d}-{stop:015d}.npy" for start, stop in self.parts]
            path = self.folder / f"merged-{len(runs):09d}-{self.counted:015d}.npy"
            MergedNgrams.merge(runs, path, self.memory)
            self._pairs = open_run(path)
        return self._pairs

    # ---- training ----

    def _train(self) -> float:
        """The next pairs, in whole diagonals; returns their mean cost."""
        rows, size = self.merged(), np.uint64(len(self.word_ids))
        stop = min(len(rows), self.next_pair + PAIRS_AT_ONCE)
        part = np.array(rows[self.next_pair:stop])
        diagonal = part[:, 0] // size
        if stop < len(rows) and diagonal[0] != diagonal[-1]:  # the last diagonal may go on
            part = part[:np.searchsorted(diagonal, diagonal[-1])]
            diagonal = diagonal[:len(part)]
        shuffled = (part[:, 0] % size).astype(np.int64)
        columns = self.word_at_column[(shuffled + diagonal.astype(np.int64)) % len(self.word_ids)]
        counts = part[:, 1] / self.unit
        cost = train_pairs(self, self.word_at_row[shuffled], columns, counts, self._cuts(diagonal))
        self.next_pair += len(part)
        self.cost += cost
        if self.next_pair == len(rows):
            self.epoch, self.next_pair, self.cost = self.epoch + 1, 0, 0.0
        return cost / len(part)

    def _cuts(self, diagonal: NDArray[np.uint64]) -> Integers:
        """Where one update ends and the next begins: several small diagonals together, `diagonals` of them."""
        ends = np.append(np.flatnonzero(np.diff(diagonal)) + 1, len(diagonal))
        return np.append(0, np.unique(np.append(ends[self.settings.diagonals - 1::self.settings.diagonals],
                                                len(diagonal))))

    def completed_fraction(self, state: TrainState) -> float:
        if self.counted < self.total_tokens:
            return COUNTING_SHARE * self.counted / self.total_tokens
        done = 0.0 if self._pairs is None and not self.next_pair else self.next_pair / len(self.merged())
        return COUNTING_SHARE + (1 - COUNTING_SHARE) * (self.epoch + done) / self.epochs

    def remove_files(self) -> None:
        self._pairs = None
        shutil.rmtree(self.folder, ignore_errors=True)


def train_pairs(model: Glove, rows: Integers, columns: Integers, counts: NDArray[np.float64], cuts: Integers) -> float:
    """AdaGrad steps for these pairs, those between two cuts at once; returns the sum of their costs. As in the authors'
    code the sums of squares start at 1 and hold gradients multiplied by the learning rate."""
    left, right, left_squares, right_squares = model.left, model.right, model.left_squares, model.right_squares
    settings, alone = model.settings, model.settings.diagonals == 1
    logs = np.log(counts).astype(np.float32)
    weights = np.minimum(1.0, (counts / settings.x_max) ** settings.alpha).astype(np.float32)
    rates = weights * np.float32(model.learning_rate)
    cost = 0.0
    for start, stop in zip(cuts.tolist(), cuts[1:].tolist(), strict=False):
        row, column = rows[start:stop], columns[start:stop]
        one, other = left.take(row, 0), right.take(column, 0)
        difference = np.einsum("nw,nw->n", one, other) - logs[start:stop]
        cost += 0.5 * float(np.dot(weights[start:stop] * difference, difference))
        scaled = (rates[start:stop] * difference)[:, None]
        if alone:
            other *= scaled  # the gradient of `one`, times the learning rate
            gradient = left.take(row, 0)
            gradient *= scaled
            update(left, left_squares, row, one, other)
            update(right, right_squares, column, right.take(column, 0), gradient)
        else:
            words, inverse = np.unique(row, return_inverse=True)
            others, inverse_other = np.unique(column, return_inverse=True)
            sums, sums_other = np.zeros((len(words), left.shape[1]), np.float32), \
                np.zeros((len(others), left.shape[1]), np.float32)
            np.add.at(sums, inverse, other * scaled)
            np.add.at(sums_other, inverse_other, one * scaled)
            update(left, left_squares, words, left.take(words, 0), sums)
            update(right, right_squares, others, right.take(others, 0), sums_other)
    return cost


def update(vectors: Floats, squares: Floats, rows: Integers, values: Floats, gradients: Floats) -> None:
    """One AdaGrad step for different rows, with their present values; overwrites both last arguments."""
    sums = squares.take(rows, 0)
    root = np.sqrt(sums)
    np.divide(gradients, root, out=root)
    values -= root
    vectors[rows] = values
    gradients *= gradients
    sums += gradients
    squares[rows] = sums
