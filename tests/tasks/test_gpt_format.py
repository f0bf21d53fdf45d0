"""The GPT input format: new tokens, both text orders, and an auxiliary language modelling loss."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import toy_tasks
from safetensors.torch import load_file
from torch.nn import functional

import stemma
from stemma.errors import UserError
from stemma.exchange.default_heads import default_task_heads
from stemma.schema.task_options import parse_task_options
from stemma.task_config import TaskConfig
from stemma.tasks.data.examples import ChoiceExample, TextExample
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.finetune_run import input_encoder_for, predict_examples, read_split
from stemma.tasks.runs.gpt_format import (
    LM_TARGET,
    PAIR_TEMPLATE,
    SINGLE_TEMPLATE,
    gpt_task_options,
    uses_gpt_format,
    with_gpt_tokens,
)

TOKENS = ["_start_", "_delimiter_", "_classify_"]
PAIRS = [TextExample("1", ("the old clerk", "a letter by the window"), "yes"),
         TextExample("2", ("seven pages", "noon"), "no"),
         TextExample("3", ("every scribe repairs the margin notes", "one"), "yes")]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return toy_tasks.save_model(tmp_path_factory.mktemp("start") / "model", "gpt@tiny", "network.feedforward=128")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, start):
    folder = tmp_path_factory.mktemp("tuned")
    sets = toy_tasks.write_sets(folder, "pair", train=64, dev=16)
    result = finetune(TaskArguments("pair", sets), start, folder / "run", epochs=2, changes=toy_tasks.FAST)
    return folder / "run", result


def learner_of(model, **values):
    config = model.task_config()
    config = replace(config, values=parse_task_options(config.kind, {**config.values.to_json(), **values}))
    return build_task_objective(config, input_encoder_for(config, model.require_tokenizer()))


def test_three_new_tokens_are_added_and_trained(tuned, start):
    run, _ = tuned
    model, before = stemma.load(run), stemma.load(start)
    old, tokenizer = before.network.vocab_size, model.require_tokenizer()
    assert tokenizer.ids_to_tokens(range(old, old + 3)) == TOKENS and model.network.vocab_size == old + 3
    table = model.network.embedding.tokens.weight
    assert table.shape[0] == old + 3 and 0.005 < table[old:].std() < 1
    moved = (table[:old] - before.network.embedding.tokens.weight).abs().max()
    assert 0 < moved < 0.2  # the old ones are where they were, but for what they learnt
    card = model.task_config()
    row = input_encoder_for(card, tokenizer).encode_examples([("the old clerk", "a letter")])[0]
    words = tokenizer.ids_to_tokens(row.input_ids)
    assert words[0] == "_start_" and words[-1] == "_classify_" and words.count("_delimiter_") == 1
    assert tokenizer.encode("the old clerk", "a letter").ids == row.input_ids.tolist()  # so others lay it out as well
    config = json.loads((run / "model/config.json").read_text())
    assert config["architectures"] == ["OpenAIGPTForSequenceClassification"] and config["vocab_size"] == old + 3
    assert "lm_head.weight" not in load_file(run / "model/model.safetensors")


def test_a_saved_model_gives_the_same_predictions(tuned):
    run, result = tuned
    model = stemma.load(run)
    learner, config = learner_of(model), model.task_config()
    examples = read_split(run, "dev", config)
    lines = (run / "dev.jsonl").read_text().splitlines()
    predicted = [json.loads(line)["prediction"]["scores"]["yes"] for line in lines]
    again = [prediction["scores"]["yes"] for prediction in predict_examples(model, learner, examples)]
    assert again == pytest.approx(predicted, abs=1e-5)


def test_transformers_gives_the_same_outputs(tuned):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    run, _ = tuned
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    reference = AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    for line in map(json.loads, (run / "dev.jsonl").read_text().splitlines()[:5]):
        inputs = tokenizer(*line["texts"], return_tensors="pt")
        with torch.no_grad():
            chances = reference(input_ids=inputs["input_ids"]).logits.softmax(-1)[0]
        predicted = {reference.config.id2label[index]: float(chance) for index, chance in enumerate(chances)}
        assert predicted == pytest.approx(line["prediction"]["scores"], abs=1e-4)


def test_the_lm_loss_has_half_the_weight(tuned):
    """Computed row by row and token by token: the loss of the task, and half of the mean loss over all next tokens."""
    model = stemma.load(tuned[0])
    learner = learner_of(model)
    batch = learner.collate(model, learner.encode(PAIRS))
    with torch.no_grad():
        hidden = model.network(batch.streams)
        held_out = float(learner.loss(model.network, hidden, replace(batch, held_out=True))["task"])
        batch_loss = float(learner.loss(model.network, hidden, batch)["task"])
        parts = sum(float(learner.loss(model.network, model.network(piece.streams), piece)["task"])
                    for piece in batch.slices(2))
        guesses, tasks = [], []
        for item in learner.encode(PAIRS):
            ids = torch.from_numpy(item.sequences[0].input_ids)[None]
            alone = model.hidden(ids)
            logits = alone @ model.network.embedding.tokens.weight.T
            guesses += functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none").tolist()
            answer = model.network.heads["task"](alone, torch.tensor([ids.shape[1]]))
            tasks.append(float(functional.cross_entropy(answer, torch.tensor([item.target]))))
    assert held_out == pytest.approx(np.mean(tasks), rel=1e-4)
    assert batch_loss == pytest.approx(np.mean(tasks) + 0.5 * np.mean(guesses), rel=1e-4)
    assert parts == pytest.approx(batch_loss, rel=1e-4)
    assert len(batch.token_targets[LM_TARGET].index) == len(guesses)


@pytest.mark.parametrize("orders", [1, 2])
def test_symmetric_pairs_are_encoded_in_both_orders(tuned, orders):
    model = stemma.load(tuned[0])
    learner = learner_of(model, orders=orders)
    items = learner.encode(PAIRS)
    batch = replace(learner.collate(model, items), held_out=True)
    with torch.no_grad():
        hidden = model.network(batch.streams)
        answers = learner.outputs(model.network, hidden, batch)
        loss = float(learner.loss(model.network, hidden, batch)["task"])
        parts = sum(float(learner.loss(model.network, model.network(piece.streams), piece)["task"])
                    for piece in batch.slices(2))
        head = model.network.heads["task"]
        for item, answer in zip(items, answers, strict=True):
            vectors = [model.hidden(torch.from_numpy(row.input_ids)[None])[:, -1] for row in item.sequences]
            torch.testing.assert_close(torch.from_numpy(answer), head.output(sum(vectors))[0], atol=1e-4, rtol=1e-4)
    expected = functional.cross_entropy(torch.from_numpy(np.stack(answers)), torch.tensor([1, 0, 1]))
    assert loss == pytest.approx(float(expected), rel=1e-4) and parts == pytest.approx(loss, rel=1e-4)
    assert {len(item.sequences) for item in items} == {orders}
    turned = [replace(example, texts=example.texts[::-1]) for example in PAIRS]
    other = learner.collate(model, learner.encode(turned))
    with torch.no_grad():
        again = learner.outputs(model.network, model.network(other.streams), other)
    same = np.allclose(np.stack(again), np.stack(answers), atol=1e-4)
    assert same is (orders == 2)


def test_which_data_sets_are_symmetric():
    assert gpt_task_options("mrpc", PAIRS) == {"language": 0.5, "orders": 2}
    assert gpt_task_options("rte", PAIRS) == {"language": 0.5}


def test_a_model_with_both_orders_is_saved_as_a_stemma_model(tmp_path, start):
    folder = tmp_path / "mrpc"
    folder.mkdir()
    rows = [[row["label"] == "yes", index, index, row["text_a"], row["text_b"]]
            for index, row in enumerate(toy_tasks.rows("pair", 48))]
    for part, split_rows in (("train", rows[:32]), ("dev", rows[32:])):
        lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
                 *("\t".join(map(str, [int(row[0]), *row[1:]])) for row in split_rows)]
        (folder / f"{part}.tsv").write_text("\n".join(lines) + "\n")
    sets = {part: folder / f"{part}.tsv" for part in ("train", "dev")}
    finetune(TaskArguments("mrpc", sets), start, tmp_path / "run", epochs=1, changes=toy_tasks.FAST)
    model = stemma.load(tmp_path / "run")
    assert model.task_config().values.orders == 2
    assert json.loads((tmp_path / "run/model/config.json").read_text())["architectures"] == ["StemmaNetwork"]


def test_the_question_comes_before_the_delimiter(start):
    model = with_gpt_tokens(stemma.load(start))
    tokenizer = model.require_tokenizer()
    config = TaskConfig("task", "choice", (), default_task_heads(model, "choice", 1, "task"), SINGLE_TEMPLATE,
                      PAIR_TEMPLATE, 40, (),
                parse_task_options("choice", {"language": 0.5}))
    learner = build_task_objective(config, input_encoder_for(config, tokenizer))
    item = learner.encode([ChoiceExample("1", "a letter", "the old clerk", ("noon", "seven pages"), 1)])[0]
    halves = [tokenizer.decode(row.input_ids, skip_special=False).split("_delimiter_") for row in item.sequences]
    assert all("letter" in first and "clerk" in first for first, _ in halves)
    assert "noon" in halves[0][1] and "pages" in halves[1][1]


def test_which_models_use_the_gpt_format(start, tmp_path):
    gpt, bert = stemma.load(start), stemma.load(toy_tasks.save_model(tmp_path / "bert"))
    assert uses_gpt_format(gpt, "classify", None) and uses_gpt_format(gpt, "pair", "gpt")
    assert not any(uses_gpt_format(*arguments) for arguments in ((gpt, "classify", "plain"), (gpt, "tag", None),
                                                         (bert, "pair", None)))
    nanochat = stemma.build("nanochat@tiny", 300)  # its LM head has another matrix and a cap
    assert not uses_gpt_format(nanochat, "classify", None)
    for model, kind, style, message in ((nanochat, "classify", "gpt", "plain embedding matrix"),
                                        (bert, "pair", "gpt", "has bidirectional attention"),
                                        (gpt, "tag", "gpt", "not for tag"),
                                        (gpt, "pair", "gtp", "choose gpt or plain")):
        with pytest.raises(UserError, match=message):
            uses_gpt_format(model, kind, style)
