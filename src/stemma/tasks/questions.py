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
from stemma.network.network import Network
from stemma.network.streams import Hidden
from stemma.objectives.batch import Batch, Target
from stemma.tasks.data.examples import Example, QuestionExample
from stemma.tasks.layout import RowLayout
from stemma.tasks.learner import Item, Learner
from stemma.tasks.windows import owners, windows

LONGEST_QUESTION = 64  # tokens, and at most half of what a row holds; the rest is for the text
OVERLAP = 128  # tokens that two neighbouring windows share, where nothing else is said: older models were trained so
LONGEST_ANSWER = 30  # tokens
NOTHING: dict[str, Any] = {"text": "", "start": None, "end": None, "score": None}
CANDIDATES = 20  # beginnings and ends that are tried, each


class Window(NamedTuple):
    """What reading an answer takes: where in the row the text stands, its tokens' characters, which of them this window
    is the best judge of, and the place that means no answer."""

    first: int
    offsets: np.ndarray  # (n, 2)
    own: np.ndarray  # (n,) bool
    nothing: int


class SpanLearner(Learner):
    """`silence`: whether a question may have no answer; `threshold`: how likely that must be before it is said.
    Windows begin `stride` tokens apart, or share `overlap` tokens."""

    def __init__(self, name: str, layout: RowLayout, specs: dict[str, HeadSpec], silence: bool = False,
                 threshold: float = 0.5, weight: float = 1.0, stride: int | None = None, overlap: int = OVERLAP):
        super().__init__(name, layout, weight)
        self._specs, self.silence, self.threshold = specs, silence, threshold
        self.stride, self.overlap = stride, overlap

    def heads(self) -> dict[str, HeadSpec]:
        return self._specs

    def items(self, examples: Sequence[Example]) -> list[Item]:
        told = [example for example in examples if isinstance(example, QuestionExample)]
        asked = self.layout.encode([example.question for example in told])
        contexts = list(dict.fromkeys(example.context for example in told))  # many questions are about one text
        texts = dict(zip(contexts, self.layout.placed(contexts), strict=True))
        start = self.layout.tokenizer.roles.get("start")
        longest = min(LONGEST_QUESTION, self.layout.room(2) // 2)
        made = []
        for number, (example, question) in enumerate(zip(told, asked, strict=True)):
            question = question[:longest]
            ids, offsets = texts[example.context]
            room = self.layout.room(2) - len(question)
            cut = windows(len(ids), room, self.step(room))
            owner = owners(len(ids), cut)
            span = answer_tokens(example, offsets)
            for window, (begin, end) in enumerate(cut):
                row = self.layout.row([question, ids[begin:end].tolist()])
                first = row.parts[1][0]
                nothing = int(np.argmax(row.ids == start)) if start is not None else 0
                answer = None
                if is_answered(example):
                    inside = span is not None and begin <= span[0] and span[1] < end
                    answer = (span[0] - begin + first, span[1] - begin + first) if inside and span else (nothing,) * 2
                made.append(Item((row,), answer, number,
                                 Window(first, offsets[begin:end], owner[begin:end] == window, nothing)))
        return made

    def step(self, room: int) -> int:
        """How far a window of so many tokens stands from the next. Two always overlap, by half where less is asked."""
        if self.stride is not None and self.stride < room:
            return self.stride
        overlap = room // 2 if self.stride is not None else min(self.overlap, room // 2)
        return max(1, room - overlap)

    def targets(self, items: Sequence[Item], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        known = [number for number, item in enumerate(items) if item.answer is not None]
        index = torch.tensor(known, dtype=torch.int64)
        ends = torch.tensor([items[number].answer for number in known], dtype=torch.int64).reshape(-1, 2)
        total = max(1.0, float(len(known)))
        return {}, {f"{self.name}/start": Target(index, ends[:, 0], total),
                    f"{self.name}/end": Target(index, ends[:, 1], total)}

    def wanted(self, lengths: Tensor, length: int) -> Tensor | None:
        return None

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        scores = self._scores(network, hidden, batch)
        losses = []
        for number, end in enumerate(("start", "end")):
            target = batch.labels[f"{self.name}/{end}"]
            losses.append(functional.cross_entropy(scores[target.index, :, number], target.labels, reduction="sum")
                          / target.total)
        return {self.name: torch.stack(losses).mean()}

    def _scores(self, network: Network, hidden: Hidden, batch: Batch) -> Tensor:
        """(rows, L, 2); filling scores nothing."""
        assert batch.lengths is not None
        scores = network.head(self.name)(hidden[self.stack]).float()
        used = torch.arange(scores.shape[1], device=scores.device) < batch.lengths[:, None]
        return scores.masked_fill(~used[..., None], -1e9)

    def answers(self, network: Network, hidden: Hidden, batch: Batch) -> list[np.ndarray]:
        return list(self._scores(network, hidden, batch).cpu().numpy())

    def decide(self, items: Sequence[Item], answers: Sequence[np.ndarray], examples: Sequence[Example],
               best: int = 5) -> list[Any]:
        found: list[list[tuple[float, int, int]]] = [[] for _ in examples]
        nothing = np.full(len(examples), np.inf)
        for item, scores in zip(items, answers, strict=True):
            found[item.number] += stretches(scores, item.extra)
            silent = float(scores[item.extra.nothing].sum())
            nothing[item.number] = min(nothing[item.number], silent)
        return [self._told(example, sorted(spans, reverse=True)[:best], float(silent))
                for example, spans, silent in zip(examples, found, nothing, strict=True)
                if isinstance(example, QuestionExample)]

    def _told(self, example: QuestionExample, spans: list[tuple[float, int, int]], silent: float) -> dict[str, Any]:
        """The best stretches as text; how likely it is that there is no answer at all, as against the best of them."""
        top = spans[0][0] if spans else -1e9
        chance = float(1 / (1 + np.exp(np.clip(top - silent, -60, 60)))) if self.silence else 0.0
        shares = np.exp([score - top for score, _, _ in spans])
        listed = []
        for (_, start, end), share in zip(spans, shares / max(shares.sum(), 1e-9), strict=True):
            text = example.context[start:end]
            start += len(text) - len(text.lstrip())  # some tokens hold the blank before their word
            listed.append({"text": text.strip(), "start": start, "end": start + len(text.strip()),
                           "score": float(share)})
        return settled({"no_answer": chance, "candidates": listed}, self.threshold)

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        assert batch.lengths is not None
        target = batch.labels[f"{self.name}/start"]
        return {self.name: float(torch.log(batch.lengths[target.index].float()).sum()) / target.total}


def settled(prediction: dict[str, Any], threshold: float) -> dict[str, Any]:
    """The best candidate as the answer, or none where that is likelier than the threshold."""
    said = prediction["candidates"][0] if prediction["candidates"] else NOTHING
    said = NOTHING if prediction["no_answer"] > threshold else said
    return {"answer": said["text"], **{key: said[key] for key in ("start", "end", "score")}, **{
        key: prediction[key] for key in ("no_answer", "candidates")}}


def is_answered(example: QuestionExample) -> bool:
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


def stretches(scores: np.ndarray, window: Window) -> list[tuple[float, int, int]]:
    """(score, first character, character behind the last) of the best stretches of one window that begin where the
    window is the best judge."""
    text = scores[window.first:window.first + len(window.offsets)]
    if not len(text):
        return []
    begins = np.argsort(-np.where(window.own, text[:, 0], -np.inf))[:CANDIDATES]
    begins = begins[window.own[begins]]
    ends = np.argsort(-text[:, 1])[:CANDIDATES]
    length = ends[None, :] - begins[:, None]
    row, column = np.nonzero((length >= 0) & (length < LONGEST_ANSWER))
    first, last = begins[row], ends[column]
    return [(float(text[a, 0] + text[b, 1]), int(window.offsets[a, 0]), int(window.offsets[b, 1]))
            for a, b in zip(first, last, strict=True)]
