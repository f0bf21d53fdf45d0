"""Fine-tuning of every kind: it learns, stores its predictions, and the saved model reproduces them."""

from __future__ import annotations

import json

import pytest
import toy_tasks
from closeness import assert_close
from commands import stemma as command
from conftest import SEED

import stemma
from stemma.errors import UserError
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.finetune_run import input_encoder_for, predict_examples, read_split

LEARNT = {"classify": ("accuracy", 0.9), "pair": ("accuracy", 0.8), "regress": ("pearson", 0.8),
          "choice": ("accuracy", 0.8), "qa": ("f1", 80), "tag": ("f1", 0.8), "rank": ("map", 0.8)}
LONGER = {"classify": 8, "pair": 10, "regress": 8, "rank": 8, "tag": 6}  # epochs
CHANGES = toy_tasks.FAST


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return toy_tasks.save_model(tmp_path_factory.mktemp("start") / "model", vocabulary=320)


@pytest.mark.parametrize("kind", LEARNT)
def test_every_kind_trains_and_saves(tmp_path, start, kind):
    sets = toy_tasks.write_sets(tmp_path, kind, 200, 40, 20)
    result = finetune(TaskArguments(kind, sets), start, tmp_path / "run", epochs=LONGER.get(kind, 4), changes=CHANGES,
                      seed=SEED)
    metric, least = LEARNT[kind]
    assert result["metrics"]["dev"][metric] >= least, result["metrics"]
    assert result["validation_loss"] < result["unigram_loss"] and result["examples_per_second"] > 0
    assert result["metrics"]["test"]["examples"] == 20 and result["task"] == kind
    model = stemma.load(tmp_path / "run")
    config = model.task_config()
    assert config.kind == kind and config.metrics[0] == metric
    learner = build_task_objective(config, input_encoder_for(config, model.require_tokenizer()))
    for part in ("dev", "test"):
        stored = [json.loads(line)["prediction"] for line in (tmp_path / "run" / f"{part}.jsonl").open()]
        again = predict_examples(model, learner, read_split(tmp_path / "run", part, config))
        assert_close(json.loads(json.dumps(again)), stored)  # batches need not be the same
    resumed = command("resume", tmp_path / "run", "--json")
    assert resumed.code == 0 and resumed.json == json.loads((tmp_path / "run" / "result.json").read_text())


def test_a_head_of_another_task_is_not_reused(tmp_path, start):
    two, three = (toy_tasks.rows("classify", 40, seed) for seed in (0, 1))
    for index, row in enumerate(three):
        row["label"] = "abc"[index % 3]
    files = [{part: toy_tasks.write_rows(tmp_path / f"{name}-{part}.jsonl", rows) for part in ("train", "dev")}
             for name, rows in (("two", two), ("three", three))]
    finetune(TaskArguments("classify", files[0]), start, tmp_path / "first", epochs=16, changes=CHANGES, seed=SEED)
    other = finetune(TaskArguments("classify", files[1]), tmp_path / "first", tmp_path / "second", steps=1, seed=SEED)
    assert other["loss"] == pytest.approx(1.1, abs=0.4)  # as good as guessing among three
    same = finetune(TaskArguments("classify", files[0]), tmp_path / "first", tmp_path / "third", steps=1, seed=SEED)
    assert same["loss"] < 0.3  # the same task goes on where it stopped


def test_dev_overlap_with_train_is_reported(tmp_path, start, caplog):
    sets = toy_tasks.write_sets(tmp_path, "classify", 20)
    finetune(TaskArguments("classify", {"train": sets["train"], "dev": sets["train"]}), start, tmp_path / "run",
             steps=1)
    assert any(text.startswith("100% of the examples") for text in caplog.messages)


def test_no_answer_is_learned(tmp_path, start):
    sets = toy_tasks.write_sets(tmp_path, "qa", 200, 40)
    finetune(TaskArguments("qa", sets), start, tmp_path / "run", epochs=4, changes=CHANGES, seed=SEED)
    model = stemma.load(tmp_path / "run")
    assert model.task_config().values.silence and 0 < model.task_config().values.threshold < 1
    stored = [json.loads(line) for line in (tmp_path / "run" / "dev.jsonl").open()]
    quiet = [line["impossible"] for line in stored if line["prediction"]["answer"] == ""]
    assert len(quiet) >= 5 and sum(quiet) / len(quiet) > 0.7


def test_parts_of_speech_are_scored_by_accuracy(tmp_path, start):
    rows = toy_tasks.rows("tag", 40)
    for row in rows:
        row["tags"] = ["NOUN" if len(word) > 3 else "OTHER" for word in row["words"]]
    file = toy_tasks.write_rows(tmp_path / "pos.jsonl", rows)
    result = finetune(TaskArguments("tag", {"train": file, "dev": file}), start, tmp_path / "run", steps=2)
    assert set(result["metrics"]["dev"]) == {"accuracy", "examples"}


def rows_of(kind: str, **changes) -> list[dict]:
    return [{**row, **changes} for row in toy_tasks.rows(kind, 6)]


BAD = {
    "one label": ("classify", rows_of("classify", label="good"), None, "has one label only"),
    "an unseen label": ("classify", None, rows_of("classify", label="godo"), 'did you mean "good"'),
    "no label in dev": ("classify", None, [{"text": "the clerk"}], "has no label"),
    "an empty text": ("classify", rows_of("classify", text=" "), None, 'nothing in column "text"'),
    "no number": ("regress", rows_of("regress", score="many"), None, '"many" is no number'),
    "one number": ("regress", rows_of("regress", score=2), None, "the same number on every row"),
    "no grade": ("rank", rows_of("rank", label="yes"), None, '"yes" is not a relevance grade'),
    "nothing to rank": ("rank", rows_of("rank", label=1), None, "teaches no order"),
    "an answer elsewhere": ("qa", rows_of("qa", answers=[{"text": "gold", "answer_start": 0}]), None,
                            'the answer "gold" is nowhere'),
    "tags that do not fit": ("tag", rows_of("tag", tags=["O"]), None, "words and 1 tags"),
    "an unseen tag": ("tag", None, [{"words": ["noon"], "tags": ["B-TIME"]}], '"B-TIME" does not occur'),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_examples_are_reported_before_training(tmp_path, start, name):
    kind, train, dev, expected = BAD[name]
    files = {part: toy_tasks.write_rows(tmp_path / f"{part}.jsonl", rows or toy_tasks.rows(kind, 30))
             for part, rows in (("train", train), ("dev", dev))}
    with pytest.raises(UserError) as error:
        finetune(TaskArguments(kind, files), start, tmp_path / "run", steps=1)
    assert expected in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("kind", "metrics", "expected"), [
    ("classify", ("f1",), "f1 is that of one class"), ("classify", ("bleu",), "no such metric"),
    ("tag", ("f1",), "mark no entities")])
def test_an_unsuitable_metric_is_reported_before_training(tmp_path, start, kind, metrics, expected):
    rows = toy_tasks.rows(kind, 30)
    for index, row in enumerate(rows):
        row |= {"label": "abc"[index % 3]} if kind == "classify" else {"tags": [word[:1] for word in row["words"]]}
    file = toy_tasks.write_rows(tmp_path / "data.jsonl", rows)
    with pytest.raises(UserError, match=expected):
        finetune(TaskArguments(kind, {"train": file, "dev": file}, metrics=metrics), start, tmp_path / "run", steps=1)
    assert not (tmp_path / "run").exists()


def test_unanswerable_questions_are_rejected_by_squad_1(tmp_path, start):
    def squad(*answers: str) -> str:
        questions = [{"id": str(index), "question": "what?", "answers": [{"text": answer, "answer_start": 0}]
                      if answer else [], "is_impossible": not answer} for index, answer in enumerate(answers)]
        return json.dumps({"data": [{"paragraphs": [{"context": "the old clerk reads", "qas": questions}]}]})

    for name, answers in (("train", ["the old"] * 3), ("dev", ["the", ""])):
        (tmp_path / f"{name}.json").write_text(squad(*answers))
    files = {name: tmp_path / f"{name}.json" for name in ("train", "dev")}
    with pytest.raises(UserError, match="SQuAD 1.1 does not know"):
        finetune(TaskArguments("squad", files), start, tmp_path / "run", steps=1)
