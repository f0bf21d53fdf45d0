"""Extractive question answering: predict the start and end of the answer in a text (SQuAD, arXiv:1606.05250).

A long document is split into overlapping windows, each preceded by the question. "No answer" is the position of the
start token (arXiv:1810.04805, section 4.3). It is predicted if its probability against the best span exceeds a
threshold, which is tuned on the dev set. The answer text is taken from the original characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stemma.network.heads import HeadSpec
from stemma.network.inputs_outputs import NetworkOutput
from stemma.network.network import Network
from stemma.objectives.batch import Batch, Target
from stemma.tasks.data.examples import Example, QuestionExample
from stemma.tasks.objectives.base import EncodedExample, TaskObjective
from stemma.tasks.objectives.input_encoder import InputEncoder
from stemma.tasks.objectives.sliding_windows import max_context_window, split_windows

MAX_QUERY_LENGTH = 64  # tokens, and at most half of a sequence; the rest is for the text
WINDOW_OVERLAP = 128  # tokens shared by adjacent windows; default for models whose task config states none
MAX_ANSWER_LENGTH = 30  # tokens
NO_ANSWER: dict[str, Any] = {"text": "", "start": None, "end": None, "score": None}
N_BEST_SIZE = 20  # start and end positions considered, each


class QAWindow(NamedTuple):
    """What decoding an answer needs: position and character offsets of the text, the tokens that have their maximal
    context in this window, and the no-answer position."""

    text_start: int
    offsets: np.ndarray  # (n, 2)
    is_max_context: np.ndarray  # (n,) bool
    no_answer_position: int


class QuestionAnsweringObjective(TaskObjective):
    """`allow_no_answer`: questions may be unanswerable; `no_answer_threshold`: the probability above which no answer is
    predicted. Windows start `stride` tokens apart, or share `overlap` tokens."""

    def __init__(self, name: str, input_encoder: InputEncoder, head_specs: dict[str, HeadSpec],
                 allow_no_answer: bool = False, no_answer_threshold: float = 0.5, weight: float = 1.0,
                 stride: int | None = None, overlap: int = WINDOW_OVERLAP):
        super().__init__(name, input_encoder, weight)
        self._head_specs = head_specs
        self.allow_no_answer, self.no_answer_threshold = allow_no_answer, no_answer_threshold
        self.stride, self.overlap = stride, overlap

    def heads(self) -> dict[str, HeadSpec]:
        return self._head_specs

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        questions = [example for example in examples if isinstance(example, QuestionExample)]
        question_ids = self.input_encoder.encode_texts([example.question for example in questions])
        contexts = list(dict.fromkeys(example.context for example in questions))  # many questions share a text
        texts = dict(zip(contexts, self.input_encoder.encode_with_offsets(contexts), strict=True))
        start_id = self.input_encoder.tokenizer.special_token_ids.get("start")
        max_question = min(MAX_QUERY_LENGTH, self.input_encoder.text_capacity(2) // 2)
        encoded = []
        for index, (example, question) in enumerate(zip(questions, question_ids, strict=True)):
            question = question[:max_question]
            ids, offsets = texts[example.context]
            window_size = self.input_encoder.text_capacity(2) - len(question)
            window_bounds = split_windows(len(ids), window_size, self.window_stride(window_size))
            best_window = max_context_window(len(ids), window_bounds)
            span = answer_tokens(example, offsets)
            for window, (begin, end) in enumerate(window_bounds):
                sequence = self.input_encoder.build_sequence([question, ids[begin:end].tolist()])
                text_start = sequence.text_spans[1][0]
                no_answer_position = int(np.argmax(sequence.input_ids == start_id)) if start_id is not None else 0
                target = None
                if has_gold(example):
                    inside = span is not None and begin <= span[0] and span[1] < end
                    shift = text_start - begin
                    target = (span[0] + shift, span[1] + shift) if inside and span else (no_answer_position,) * 2
                info = QAWindow(text_start, offsets[begin:end], best_window[begin:end] == window, no_answer_position)
                encoded.append(EncodedExample((sequence,), target, index, info))
        return encoded

    def window_stride(self, window_size: int) -> int:
        """Tokens between the starts of two windows. Windows always overlap, by half if the stride is too large."""
        if self.stride is not None and self.stride < window_size:
            return self.stride
        overlap = window_size // 2 if self.stride is not None else min(self.overlap, window_size // 2)
        return max(1, window_size - overlap)

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        labelled = [row for row, item in enumerate(items) if item.target is not None]
        index = torch.tensor(labelled, dtype=torch.int64)
        spans = torch.tensor([items[row].target for row in labelled], dtype=torch.int64).reshape(-1, 2)
        total = max(1.0, float(len(labelled)))
        return {}, {f"{self.name}/start": Target(index, spans[:, 0], total),
                    f"{self.name}/end": Target(index, spans[:, 1], total)}

    def output_positions(self, lengths: Tensor, length: int) -> Tensor | None:
        return None

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        logits = self._span_logits(network, output, batch)
        losses = []
        for channel, name in enumerate(("start", "end")):
            target = batch.row_targets[f"{self.name}/{name}"]
            losses.append(functional.cross_entropy(logits[target.index, :, channel], target.labels, reduction="sum")
                          / target.denominator)
        return {self.name: torch.stack(losses).mean()}

    def _span_logits(self, network: Network, output: NetworkOutput, batch: Batch) -> Tensor:
        """(rows, L, 2) start and end logits, masked at padding."""
        assert batch.lengths is not None
        logits = network.head(self.name)(output[self.stack]).float()
        non_pad = torch.arange(logits.shape[1], device=logits.device) < batch.lengths[:, None]
        return logits.masked_fill(~non_pad[..., None], -1e9)

    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        return list(self._span_logits(network, output, batch).cpu().numpy())

    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray], examples: Sequence[Example],
                    n_best: int = 5) -> list[Any]:
        spans_by_example: list[list[tuple[float, int, int]]] = [[] for _ in examples]
        no_answer_scores = np.full(len(examples), np.inf)
        for item, scores in zip(items, outputs, strict=True):
            spans_by_example[item.example_index] += candidate_spans(scores, item.decode_info)
            no_answer_score = float(scores[item.decode_info.no_answer_position].sum())
            no_answer_scores[item.example_index] = min(no_answer_scores[item.example_index], no_answer_score)
        return [self._n_best(example, sorted(spans, reverse=True)[:n_best], float(no_answer_score))
                for example, spans, no_answer_score in zip(examples, spans_by_example, no_answer_scores, strict=True)
                if isinstance(example, QuestionExample)]

    def _n_best(self, example: QuestionExample, spans: list[tuple[float, int, int]],
                no_answer_score: float) -> dict[str, Any]:
        """The best spans as text, and the probability of no answer against the best span."""
        best = spans[0][0] if spans else -1e9
        no_answer = float(1 / (1 + np.exp(np.clip(best - no_answer_score, -60, 60)))) if self.allow_no_answer else 0.0
        weights = np.exp([score - best for score, _, _ in spans])
        candidates = []
        for (_, start, end), probability in zip(spans, weights / max(weights.sum(), 1e-9), strict=True):
            text = example.context[start:end]
            start += len(text) - len(text.lstrip())  # some tokens include the space before their word
            candidates.append({"text": text.strip(), "start": start, "end": start + len(text.strip()),
                               "score": float(probability)})
        prediction = {"no_answer": no_answer, "candidates": candidates}
        return apply_no_answer_threshold(prediction, self.no_answer_threshold)

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        assert batch.lengths is not None
        target = batch.row_targets[f"{self.name}/start"]
        return {self.name: float(torch.log(batch.lengths[target.index].float()).sum()) / target.denominator}


def apply_no_answer_threshold(prediction: dict[str, Any], threshold: float) -> dict[str, Any]:
    """The best candidate as the answer, or no answer if its probability exceeds the threshold."""
    answer = prediction["candidates"][0] if prediction["candidates"] else NO_ANSWER
    answer = NO_ANSWER if prediction["no_answer"] > threshold else answer
    return {"answer": answer["text"], **{key: answer[key] for key in ("start", "end", "score")},
            **{key: prediction[key] for key in ("no_answer", "candidates")}}


def has_gold(example: QuestionExample) -> bool:
    return bool(example.answers) or example.impossible is True


def answer_tokens(example: QuestionExample, offsets: np.ndarray) -> tuple[int, int] | None:
    """First and last token of the first gold answer; None if there is no answer or no token covers it."""
    if not example.answers or not len(offsets):
        return None
    start = example.answers[0].start
    end = start + len(example.answers[0].text)
    first = int(np.searchsorted(offsets[:, 1], start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
    return (first, last) if first <= last < len(offsets) else None


def candidate_spans(scores: np.ndarray, window: QAWindow) -> list[tuple[float, int, int]]:
    """(score, start, end) in characters of the best spans of a window; a span must start at a token that has its
    maximal context there."""
    logits = scores[window.text_start:window.text_start + len(window.offsets)]
    if not len(logits):
        return []
    starts = np.argsort(-np.where(window.is_max_context, logits[:, 0], -np.inf))[:N_BEST_SIZE]
    starts = starts[window.is_max_context[starts]]
    ends = np.argsort(-logits[:, 1])[:N_BEST_SIZE]
    length = ends[None, :] - starts[:, None]
    row, column = np.nonzero((length >= 0) & (length < MAX_ANSWER_LENGTH))
    first, last = starts[row], ends[column]
    return [(float(logits[a, 0] + logits[b, 1]), int(window.offsets[a, 0]), int(window.offsets[b, 1]))
            for a, b in zip(first, last, strict=True)]
