"""Training by counting: count the n-grams of the training text once, then make a model of the counts.

A step counts a part of the text into a sorted run on disk, in `counts/` of the run folder. A run that is there is not
counted again, so a killed run goes on where it was. Validation and the end of training merge the runs and put the
tables into the network.
"""

from __future__ import annotations

import logging
import shutil
from abc import abstractmethod
from pathlib import Path

import numpy as np
import torch

from stemma.counts.document_stream import DocumentStream
from stemma.counts.kneser_ney import FALLBACK_DISCOUNTS, Discounts, estimate
from stemma.counts.packed_ngrams import NgramPacker, sort_and_sum
from stemma.counts.sorted_runs import MergedNgrams, sorting_bytes, write_run
from stemma.errors import UserError, join_names
from stemma.network.inputs_outputs import Stream
from stemma.network.ngram_tables import NgramTable
from stemma.objectives.base import LM_HEAD
from stemma.objectives.batch import Batch, Target
from stemma.text.tokenizer import Tokenizer
from stemma.training.loader import BatchLoader, PreparedBatch
from stemma.training.method import Method, MethodSetup, MethodState, StepMetrics
from stemma.training.method_kinds import CountingSettings
from stemma.training.pretrain_loader import PretrainLoader
from stemma.training.train_state import TrainState
from stemma.visibility import Causal

logger = logging.getLogger(__name__)

FOLDER = "counts"
LOSS_TOKENS = 65_536  # tokens of the last part whose loss is the training loss


class CountingMethod(Method):
    """Counts n-grams of the training text in parts, and makes a model of the merged counts."""

    def __init__(self, settings: CountingSettings, setup: MethodSetup, order: int):
        """`order`: tokens of an n-gram."""
        super().__init__(setup)
        recipe, loader = setup.settings, setup.loader
        if not isinstance(loader, PretrainLoader) or setup.run is None:
            raise UserError(f"training.method.kind={settings.kind} counts a text and has no weights to fine-tune; "
                            "fine-tune a network, such as gpt2@tiny.")
        self.loader, self.folder = loader, setup.run / FOLDER
        self.memory = settings.memory * 2**20
        self.packer = NgramPacker(order, self.network.vocab_size)
        self.stream = DocumentStream(loader.training.document_ranges,
                                     lambda offsets: loader.corpus.values_at("tokens", offsets),
                                     self.document_end(loader.corpus.tokenizer, recipe.corpus.boundary))
        wanted = recipe.training.batch_size * recipe.corpus.sequence_length
        self.part_positions = int(max(1, min(wanted, self.memory // (2 * sorting_bytes(self.packer.num_words)))))
        self.parts: list[tuple[int, int]] = []  # the positions of the text that are counted, one for each run on disk
        self.estimated: int | None = None  # number of counted positions that the tables of the network are made from
        self.warnings: list[str] = []  # about these tables; shown at the end of training

    @property
    def counted(self) -> int:
        """Number of positions of the text that are counted."""
        return self.parts[-1][1] if self.parts else 0

    def state(self) -> MethodState:
        return MethodState({}, {**super().state().values, "parts": self.parts, "estimated": self.estimated,
                                "warnings": self.warnings})

    def restore(self, state: MethodState) -> None:
        self.parts = [(start, stop) for start, stop in state.values["parts"]]
        self.estimated = state.values["estimated"]
        self.warnings = state.values.get("warnings", [])

    @abstractmethod
    def document_end(self, tokenizer: Tokenizer, boundary: str) -> int:
        """The token that stands before and after each document."""

    @abstractmethod
    def estimate(self, runs: list[Path]) -> None:
        """Put the model of the counts in these runs into the network, and set `warnings`."""

    @abstractmethod
    def make_batch(self, start: int, stop: int) -> Batch:
        """These positions of the text as one row."""

    # ---- counting ----

    def part_end(self, start: int) -> int:
        """The end of the part that begins at this position."""
        return min(self.stream.num_positions, start + self.part_positions)

    def next_batch(self, loader: BatchLoader, state: TrainState, length: int, progress: float) -> PreparedBatch:
        """The next part of the text as one row."""
        stop = self.part_end(self.counted)
        if self.setup.budget.unit == "tokens":
            stop = min(stop, self.counted + max(1, int(self.setup.budget.amount) - state.tokens))
        return PreparedBatch(tuple(loader.objectives), self.make_batch(self.counted, stop), {}, FOLDER)

    def train_step(self, prepared: PreparedBatch, state: TrainState, progress: float) -> StepMetrics:
        input_ids = prepared.batch.streams["encoder"].input_ids
        assert input_ids is not None
        self.parts.append((self.counted, self.counted + input_ids.shape[1]))
        self._count(*self.parts[-1])
        return StepMetrics({}, {}, {"counted": self.completed_fraction(state)})

    def _count(self, start: int, stop: int) -> Path:
        """The run of these positions; it is written unless it is there."""
        path = self.folder / f"run-{start:015d}-{stop:015d}.npy"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_run(path, *sort_and_sum(self.stream.ngrams(start, stop, self.packer)[0]))
        return path

    def completed_fraction(self, state: TrainState) -> float:
        return self.counted / self.stream.num_positions

    # ---- smoothing ----

    def finish_network(self, state: TrainState) -> None:
        if self.estimated == self.counted:
            return
        runs = [self._count(start, stop) for start, stop in self.parts]  # those deleted by hand are counted again
        self.estimate(runs)
        self.estimated = self.counted
        self._set_loss(state)

    def finish(self) -> None:
        for text in self.warnings:
            logger.warning(text)

    def merge(self, runs: list[Path]) -> MergedNgrams:
        """The counts of these runs in one file; other merged files are deleted."""
        merged = self.folder / f"merged-{len(runs):09d}-{self.counted:015d}.npy"
        for older in self.folder.glob("merged-*.npy"):
            if older != merged:
                older.unlink()
        return MergedNgrams.merge(runs, merged, self.memory)

    @torch.no_grad()
    def _set_loss(self, state: TrainState) -> None:
        """The training loss, which a step of counting cannot know: of the last part of the text."""
        start, stop = self.parts[-1]
        start = max(0, min(start, stop - 2))  # a token alone has no context
        batch = self.make_batch(start, min(stop, start + LOSS_TOKENS)).to(self.forward_backward.device)
        losses = self.forward_backward.compute_losses(tuple(self.loader.objectives), batch, None).losses
        state.losses = {name: float(loss) for name, loss in losses.items()}
        state.loss = sum(state.losses.values())

    def remove_files(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class CountNgrams(CountingMethod):
    """Modified Kneser-Ney smoothing."""

    def __init__(self, settings: CountingSettings, setup: MethodSetup):
        table = setup.network.embedding.tokens
        assert isinstance(table, NgramTable)  # a conflict of the recipe otherwise
        super().__init__(settings, setup, table.order)
        self.table = table

    def document_end(self, tokenizer: Tokenizer, boundary: str) -> int:
        end = tokenizer.document_separator_id(boundary)
        if end is None:
            raise UserError("an n-gram model needs a token that ends a document, and this vocabulary has none; train "
                            "a tokenizer with `stemma tokenizer train --for ngram`.")
        return end

    def make_batch(self, start: int, stop: int) -> Batch:
        tokens, depth = self.stream.read(start, stop)
        ids = torch.from_numpy(tokens[None])
        index = torch.from_numpy(np.flatnonzero(depth[1:] > 0))
        target = Target(index, ids[0, 1:][index], max(1.0, len(index)), len(tokens))
        return Batch({"encoder": Stream(ids, Causal())}, {LM_HEAD: target}, num_tokens=int((depth > 0).sum()),
                     num_rows=1)

    def estimate(self, runs: list[Path]) -> None:
        tables, discounts = estimate(self.merge(runs), self.packer)
        self.table.assign(tables)
        self.warnings = _discount_warnings(discounts)


def _discount_warnings(discounts: list[Discounts]) -> list[str]:
    missing = [str(length) for length, discount in enumerate(discounts, 1) if not discount.estimated]
    if not missing:
        return []
    return [f"the text is too small to estimate the discounts of the n-grams of {join_names(missing)} "
            f"{'token' if missing == ['1'] else 'tokens'} (its counts of counts give none); they are "
            f"{join_names(f'{value:g}' for value in FALLBACK_DISCOUNTS)}. Use more text, or a lower "
            "network.depth.order."]
