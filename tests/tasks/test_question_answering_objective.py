"""Question answering: targets, losses, best span and no-answer, each against a slow reference."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import toy_tasks
from conftest import small_text
from torch.nn import functional

import stemma
from stemma.exchange.default_heads import default_task_heads
from stemma.network.network import Network
from stemma.schema.task_options import parse_task_options
from stemma.task_config import TaskConfig
from stemma.tasks.data.examples import Answer, QuestionExample
from stemma.tasks.kinds import head_task
from stemma.tasks.objectives import question_answering
from stemma.tasks.objectives.question_answering import (
    QAWindow,
    answer_tokens,
    apply_no_answer_threshold,
    candidate_spans,
)
from stemma.tasks.objectives.sliding_windows import split_windows
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.compute_metrics import compute_metrics
from stemma.tasks.runs.finetune_run import input_encoder_for, predict_examples, task_head_specs
from stemma.text.train_tokenizer import train_tokenizer

CONTEXT = "The old clerk reads a letter. Our neighbour, without a lamp, forgets one missing leaf at the river."


def asked(answer: str | None, context: str = CONTEXT, question: str = "who reads?") -> QuestionExample:
    answers = (Answer(answer, context.index(answer)),) if answer else ()
    return QuestionExample("", "1", context, question, answers, not answers)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> stemma.Model:
    body = stemma.load(toy_tasks.save_model(tmp_path_factory.mktemp("reader") / "model", vocabulary=200, length=64))
    corpus = body.recipe.settings.corpus
    config = TaskConfig("task", "qa", (), default_task_heads(body, "qa", 1, "task"), corpus.single, corpus.pair, 64,
                      ("f1",),
                parse_task_options("qa", {"silence": True}))
    torch.manual_seed(1)
    network = Network(body.recipe.settings.network, body.network.vocab_size, task_head_specs({"task": config})).eval()
    network.load_state_dict(body.network.state_dict(), strict=False)
    return replace(body, network=network, task_configs={"task": config})


def learner_of(model, longest: int = 64, **values):
    config = replace(model.task_config(), longest=longest, values=parse_task_options("qa", {"silence": True, **values}))
    return build_task_objective(config, input_encoder_for(config, model.require_tokenizer()))


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "unigram", "word"])
def test_the_target_of_an_answer_is_its_first_and_last_token(kind):
    tokenizer = train_tokenizer(iter([small_text()]), kind, 400, lowercase=True, roles={"padding", "unknown"})
    offsets = tokenizer.encode(CONTEXT, special=False).offsets
    for answer in ("The old clerk", "letter", "lamp", "one missing leaf", "river.", "without a lamp", "eighbou"):
        begin, end = CONTEXT.index(answer), CONTEXT.index(answer) + len(answer)
        touched = [item_index for item_index, (a, b) in enumerate(offsets) if a < end and b > begin]
        assert answer_tokens(asked(answer), np.array(offsets)) == (touched[0], touched[-1])
    assert answer_tokens(asked(None), np.array(offsets)) is None


@torch.no_grad()
def test_the_loss_is_the_mean_of_both_ends(model):
    learner, tokenizer = learner_of(model), model.require_tokenizer()
    examples = [asked("a letter"), asked(None), asked("the river", "at the river", "where is it?")]
    items = learner.encode(examples)
    batch = learner.collate(model, items)
    losses = []
    for example in examples:
        encoding = tokenizer.encode(example.question, example.context)
        scores = model.network.heads["task"](model.hidden(torch.tensor([encoding.ids]), None,
                                                          torch.tensor([encoding.type_ids])))[0]
        ends = (0, 0)  # the start token says that there is none
        if example.answers:
            begin, end = example.answers[0].start, example.answers[0].start + len(example.answers[0].text)
            placed = enumerate(zip(encoding.offsets, encoding.sequence_ids, strict=True))
            inside = [position for position, ((a, b), text) in placed if text == 1 and a < end and b > begin]
            ends = (inside[0], inside[-1])
        losses += [functional.cross_entropy(scores[None, :, side], torch.tensor([ends[side]])) for side in (0, 1)]
    expected = float(torch.stack(losses).mean())
    for parts in ([batch], batch.slices(2)):
        result = sum(float(learner.loss(model.network, model.network(part.streams), part)["task"]) for part in parts)
        assert result == pytest.approx(expected, abs=1e-5)
    rows = [math.log(len(item.sequences[0].input_ids)) for item in items]
    assert learner.baseline(batch, np.zeros(0))["task"] == pytest.approx(np.mean(rows), abs=1e-5)


def test_the_best_span_equals_exhaustive_search():
    rng = np.random.default_rng(0)
    for _ in range(50):
        length, first = int(rng.integers(1, 19)), int(rng.integers(0, 5))
        offsets = np.stack([np.arange(length) * 3, np.arange(length) * 3 + 2], 1)
        own = rng.random(length) < 0.7
        scores = rng.normal(size=(first + length + 2, 2))
        result = candidate_spans(scores, QAWindow(first, offsets, own, 0))
        every = {(a * 3, b * 3 + 2): scores[first + a, 0] + scores[first + b, 1]
                 for a in range(length) for b in range(a, length) if own[a]}
        assert {(begin, end): pytest.approx(score) for score, begin, end in result} == every


def test_an_answer_is_never_too_long():
    scores = np.zeros((60, 2))
    scores[0, 0] = scores[59, 1] = 9
    offsets = np.stack([np.arange(60), np.arange(60) + 1], 1)
    result = candidate_spans(scores, QAWindow(0, offsets, np.ones(60, bool), 0))
    assert max(end - begin for _, begin, end in result) <= question_answering.MAX_ANSWER_LENGTH


@pytest.mark.parametrize(("tokens", "allowed"), [(29, True), (30, True), (31, False)])
def test_an_answer_of_thirty_tokens_is_the_longest(tokens, allowed):
    """max_answer_length of BERT's run_squad.py."""
    scores = np.zeros((60, 2))
    scores[5, 0] = scores[5 + tokens - 1, 1] = 9
    offsets = np.stack([np.arange(60), np.arange(60) + 1], 1)
    result = candidate_spans(scores, QAWindow(0, offsets, np.ones(60, bool), 0))
    assert ((5, 5 + tokens) in {(begin, end) for _, begin, end in result}) == allowed


def run_squad_starts(length: int, room: int, stride: int) -> list[int]:
    """The starts of the windows of a document, as in BERT's convert_examples_to_features."""
    starts = []
    start_offset = 0
    while start_offset < length:
        rest = length - start_offset
        if rest > room:
            rest = room
        starts.append(start_offset)
        if start_offset + rest == length:
            break
        start_offset += min(rest, stride)
    return starts


def test_windows_start_where_berts_do(model):
    def starts(length: int, room: int, **values: int) -> list[int]:
        return [begin for begin, _ in split_windows(length, room, learner_of(model, **values).window_stride(room))]

    assert starts(700, 369, stride=128) == run_squad_starts(700, 369, 128) == [0, 128, 256, 384]
    assert starts(700, 369, overlap=128) == starts(700, 369) == [0, 241, 482]  # a card from before there was a stride
    assert starts(700, 369, overlap=0) == [0, 369]
    rng = np.random.default_rng(0)
    for _ in range(200):
        length, room, stride = int(rng.integers(1, 900)), int(rng.integers(20, 400)), int(rng.integers(1, 200))
        if stride < room:
            assert starts(length, room, stride=stride) == run_squad_starts(length, room, stride)
    assert starts(100, 40, stride=128) == [0, 20, 40, 60]  # theirs would not overlap at all


def test_long_documents_are_split_and_answers_come_from_the_original_text(model):
    learner = learner_of(model, 40)
    context = " ".join(small_text().split()[:400])
    answer = context[900:930].strip()
    example = replace(asked(None, context), answers=(Answer(answer, context.index(answer)),), impossible=False)
    items = learner.encode([asked("a letter"), example])[1:]
    assert len(items) > 20 and {len(item.sequences[0].input_ids) for item in items[:-1]} == {40}
    owned = np.concatenate([item.decode_info.offsets[item.decode_info.is_max_context] for item in items])
    ids, offsets = learner.input_encoder.encode_with_offsets([context])[0]
    assert np.array_equal(owned, offsets)  # every token begins an answer in one window
    holding = [item for item in items if item.target != (0, 0)]
    assert holding
    for item in holding:
        begin, end = (item.decode_info.offsets[position - item.decode_info.text_start] for position in item.target)
        assert context[begin[0]:end[1]] == answer or answer in context[begin[0]:end[1]]
    (predictions,) = predict_examples(model, learner, [example])
    for one in predictions["candidates"]:
        assert context[one["start"]:one["end"]] == one["text"] and one["text"]
    shares = [one["score"] for one in predictions["candidates"]]
    assert sum(shares) == pytest.approx(1) and shares == sorted(shares, reverse=True)


def test_scores_decide_between_windows_and_no_answer(model):
    """The best span over all windows wins; the no-answer score is the lowest over the windows."""
    learner = learner_of(model, 40)
    example = asked(None, " ".join(small_text().split()[:60]))
    items = learner.encode([example])
    answers = [np.zeros((len(item.sequences[0].input_ids), 2), np.float32) for item in items]
    best_item = items[2]
    token = int(np.flatnonzero(best_item.decode_info.is_max_context)[0])
    position = best_item.decode_info.text_start + token
    answers[2][position, 0] = answers[2][position + 1, 1] = 5.0
    for index, silent in enumerate([9.0, 3.0, 7.0]):
        answers[index][0] = silent / 2
    for index in range(3, len(items)):
        answers[index][0] = 10.0
    begin, end = int(best_item.decode_info.offsets[token, 0]), int(best_item.decode_info.offsets[token + 1, 1])
    (predictions,) = learner.postprocess(items, answers, [example])
    assert (predictions["answer"], predictions["start"], predictions["end"]) == (example.context[begin:end], begin, end)
    assert predictions["no_answer"] == pytest.approx(1 / (1 + math.exp(10 - 3)))
    quiet = apply_no_answer_threshold(predictions, predictions["no_answer"] / 2)
    assert (quiet["answer"], quiet["start"], quiet["end"]) == ("", None, None)
    assert apply_no_answer_threshold(quiet, 1.0) == predictions
    sure = build_task_objective(replace(model.task_config(), longest=40,
                                        values=parse_task_options("qa", {"silence": False})), learner.input_encoder)
    assert sure.postprocess(items, answers, [example])[0]["no_answer"] == 0


def test_spaces_inside_tokens_are_stripped_from_answers(tmp_path):
    body = stemma.load(toy_tasks.save_model(tmp_path / "model", "gpt2@tiny"))
    learner = learner_of(replace(body, task_configs={"task": TaskConfig("task", "qa", (), {}, "A", "A B", 40, (),
                                                           parse_task_options("qa", {}))}), 40)
    example = asked(None, "the clerk reads")
    (item,) = learner.encode([example])
    scores = np.zeros((len(item.sequences[0].input_ids), 2), np.float32)
    position = int(np.searchsorted(item.decode_info.offsets[:, 1], 4, side="right"))  # the first token of "clerk"
    scores[item.decode_info.text_start + position, 0] = 5
    predictions = learner.postprocess([item], [scores], [example])[0]
    assert all(one["text"] == one["text"].strip() == example.context[one["start"]:one["end"]]
               for one in predictions["candidates"])
    assert predictions["start"] == 4


def test_the_tuned_threshold_gives_the_best_score(model):
    """Compared with trying every threshold."""
    rng = np.random.default_rng(4)
    examples, predictions = [], []
    for _ in range(40):
        right = bool(rng.random() < 0.5)
        examples.append(asked("a letter" if right else None))
        text = "a letter" if rng.random() < 0.7 else "river"
        candidate = {"text": text, "start": CONTEXT.index(text), "end": CONTEXT.index(text) + len(text), "score": 1.0}
        predictions.append({"no_answer": float(rng.random() * (0.8 if right else 1.0)), "candidates": [candidate]})
    kind, config = head_task("qa"), model.task_config()
    threshold = kind.tune(config, examples, predictions).threshold

    def scored(limit: float) -> float:
        values = config.values.model_copy(update={"threshold": limit})
        return compute_metrics(config, examples, kind.apply_options(values, predictions))["f1"]

    assert scored(threshold) == max(scored(limit) for limit in [0.0, 1.0, *(one["no_answer"] for one in predictions)])
    assert scored(threshold) > scored(1.0)


def test_a_long_question_is_truncated_to_leave_room_for_the_text(model):
    learner = learner_of(model, 24)
    items = learner.encode([asked("a letter", question="who reads the letter by the window? " * 20)])
    assert all(len(item.sequences[0].input_ids) == 24 and len(item.decode_info.offsets) == 11
               for item in items[:-1]) and len(items) > 1
    assert any(item.target != (0, 0) for item in items)


def test_a_document_of_100_000_tokens_is_encoded_in_seconds(model):
    learner = learner_of(model, 64)
    items = learner.encode([asked("the river", "a letter. " * 40_000 + "at the river.")])
    assert sum(int(item.decode_info.is_max_context.sum()) for item in items) > 100_000
    assert sum(item.target != (0, 0) for item in items) >= 1
