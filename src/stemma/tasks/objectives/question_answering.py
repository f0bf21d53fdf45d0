"""Questions whose answer stands in a text: guess where it begins and where it ends (SQuAD, arXiv:1606.05250).

A long document is read in windows that overlap, the question before each. "No answer" is the place of the start token
(arXiv:1810.04805, section 4.3): it wins where it scores higher than the best stretch of text by more than a threshold,
which is tuned on held-out questions. A stretch never ends before it begins, and is cut out of the original characters.
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

MAX_QUERY_LENGTH = 64  # tokens, and at most half of what a row holds; the rest is for the text
WINDOW_OVERLAP = 128  # tokens that two neighbouring windows share, where nothing else is said: older models were
#                       trained so
MAX_ANSWER_LENGTH = 30  # tokens
NO_ANSWER: dict[str, Any] = {"text": "", "start": None, "end": None, "score": None}
N_BEST_SIZE = 20  # beginnings and ends that are tried, each


class QAWindow(NamedTuple):
    """What reading an answer takes: where in the row the text stands, its tokens' characters, which of them this window
    is the best judge of, and the place that means no answer."""

    text_start: int
    offsets: np.ndarray  # (n, 2)
    is_max_context: np.ndarray  # (n,) bool
    no_answer_position: int


class QuestionAnsweringObjective(TaskObjective):
    """`silence`: whether a question may have no answer; `threshold`: how likely that must be before it is said.
    Windows begin `stride` tokens apart, or share `overlap` tokens."""

    def __init__(self, name: str, input_encoder: InputEncoder, head_specs: dict[str, HeadSpec],
                 allow_no_answer: bool = False,
                 no_answer_threshold: float = 0.5, weight: float = 1.0, stride: int | None = None,
                 overlap: int = WINDOW_OVERLAP):
        super().__init__(name, input_encoder, weight)
        self._head_specs, self.allow_no_answer, self.no_answer_threshold = head_specs, allow_no_answer, no_answer_threshold
        self.stride, self.overlap = stride, overlap

    def heads(self) -> dict[str, HeadSpec]:
        return self._head_specs

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        questions = [example for example in examples if isinstance(example, QuestionExample)]
        question_ids = self.input_encoder.encode_texts([example.question for example in questions])
        contexts = list(dict.fromkeys(example.context for example in questions))  # many questions are about one text
        texts = dict(zip(contexts, self.input_encoder.encode_with_offsets(contexts), strict=True))
        start = self.input_encoder.tokenizer.special_token_ids.get("start")
        longest = min(MAX_QUERY_LENGTH, self.input_encoder.text_capacity(2) // 2)
        encoded = []
        for number, (example, question) in enumerate(zip(questions, question_ids, strict=True)):
            question = question[:longest]
            ids, offsets = texts[example.context]
            window_size = self.input_encoder.text_capacity(2) - len(question)
            window_bounds = split_windows(len(ids), window_size, self.window_stride(window_size))
            owner = max_context_window(len(ids), window_bounds)
            span = answer_tokens(example, offsets)
            for window, (begin, end) in enumerate(window_bounds):
                row = self.input_encoder.build_sequence([question, ids[begin:end].tolist()])
                first = row.text_spans[1][0]
                no_answer_position = int(np.argmax(row.input_ids == start)) if start is not None else 0
                answer = None
                if has_gold(example):
                    inside = span is not None and begin <= span[0] and span[1] < end
                    answer = (span[0] - begin + first, span[1] - begin
                              + first) if inside and span else (no_answer_position,) * 2
                encoded.append(EncodedExample((row,), answer, number,
                                 QAWindow(first, offsets[begin:end], owner[begin:end] == window, no_answer_position)))
        return encoded

    def window_stride(self, window_size: int) -> int:
        """How far a window of so many tokens stands from the next. Two always overlap, by half where less is asked."""
        if self.stride is not None and self.stride < window_size:
            return self.stride
        overlap = window_size // 2 if self.stride is not None else min(self.overlap, window_size // 2)
        return max(1, window_size - overlap)

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        known = [number for number, item in enumerate(items) if item.target is not None]
        index = torch.tensor(known, dtype=torch.int64)
        ends = torch.tensor([items[number].target for number in known], dtype=torch.int64).reshape(-1, 2)
        total = max(1.0, float(len(known)))
        return {}, {f"{self.name}/start": Target(index, ends[:, 0], total),
                    f"{self.name}/end": Target(index, ends[:, 1], total)}

    def output_positions(self, lengths: Tensor, length: int) -> Tensor | None:
        return None

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        scores = self._span_logits(network, output, batch)
        losses = []
        for number, end in enumerate(("start", "end")):
            target = batch.row_targets[f"{self.name}/{end}"]
            losses.append(functional.cross_entropy(scores[target.index, :, number], target.labels, reduction="sum")
                          / target.denominator)
        return {self.name: torch.stack(losses).mean()}

    def _span_logits(self, network: Network, output: NetworkOutput, batch: Batch) -> Tensor:
        """(rows, L, 2); filling scores nothing."""
        assert batch.lengths is not None
        scores = network.head(self.name)(output[self.stack]).float()
        used = torch.arange(scores.shape[1], device=scores.device) < batch.lengths[:, None]
        return scores.masked_fill(~used[..., None], -1e9)

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
        return [self._n_best(example, sorted(spans, reverse=True)[:n_best], float(silent))
                for example, spans, silent in zip(examples, spans_by_example, no_answer_scores, strict=True)
                if isinstance(example, QuestionExample)]

    def _n_best(self, example: QuestionExample, spans: list[tuple[float, int, int]],
                no_answer_score: float) -> dict[str, Any]:
        """The best stretches as text; how likely it is that there is no answer at all, as against the best of them."""
        top = spans[0][0] if spans else -1e9
        chance = float(1 / (1 + np.exp(np.clip(top - no_answer_score, -60, 60)))) if self.allow_no_answer else 0.0
        shares = np.exp([score - top for score, _, _ in spans])
        listed = []
        for (_, start, end), share in zip(spans, shares / max(shares.sum(), 1e-9), strict=True):
            text = example.context[start:end]
            start += len(text) - len(text.lstrip())  # some tokens hold the blank before their word
            listed.append({"text": text.strip(), "start": start, "end": start + len(text.strip()),
                           "score": float(share)})
        return apply_no_answer_threshold({"no_answer": chance, "candidates": listed}, self.no_answer_threshold)

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        assert batch.lengths is not None
        target = batch.row_targets[f"{self.name}/start"]
        return {self.name: float(torch.log(batch.lengths[target.index].float()).sum()) / target.denominator}


def apply_no_answer_threshold(prediction: dict[str, Any], threshold: float) -> dict[str, Any]:
    """The best candidate as the answer, or none where that is likelier than the threshold."""
    answer = prediction["candidates"][0] if prediction["candidates"] else NO_ANSWER
    answer = NO_ANSWER if prediction["no_answer"] > threshold else answer
    return {"answer": answer["text"], **{key: answer[key] for key in ("start", "end", "score")}, **{
        key: prediction[key] for key in ("no_answer", "candidates")}}


def has_gold(example: QuestionExample) -> bool:
    return bool(example.answers) or example.impossible is True


def answer_tokens(example: QuestionExample, offsets: np.ndarray) -> tuple[int, int] | None:
    """First and last token of the first answer; None where there is none, or no token of it."""
    if not example.answers or not len(offsets):
        return None
    start = example.answers[0].start
    end = start + len(example.answers[0].text)
    first = int(np.searchsorted(offsets[:, 1], start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
    return (first, last) if first <= last < len(offsets) else None


def candidate_spans(scores: np.ndarray, window: QAWindow) -> list[tuple[float, int, int]]:
    """(score, first character, character behind the last) of the best stretches of one window that begin where the
    window is the best judge."""
    text = scores[window.text_start:window.text_start + len(window.offsets)]
    if not len(text):
        return []
    begins = np.argsort(-np.where(window.is_max_context, text[:, 0], -np.inf))[:N_BEST_SIZE]
    begins = begins[window.is_max_context[begins]]
    ends = np.argsort(-text[:, 1])[:N_BEST_SIZE]
    length = ends[None, :] - begins[:, None]
    row, column = np.nonzero((length >= 0) & (length < MAX_ANSWER_LENGTH))
    first, last = begins[row], ends[column]
    return [(float(text[a, 0] + text[b, 1]), int(window.offsets[a, 0]), int(window.offsets[b, 1]))
            for a, b in zip(first, last, strict=True)]
