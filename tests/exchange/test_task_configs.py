"""The tasks of a model folder: from its tasks.json, inferred from config.json, or not supported."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from parity.reference import config_of, configure, perturb, random_reference
from safetensors.torch import load_file, save_file

import stemma
from stemma.errors import CorruptFileError, UserError
from stemma.exchange.default_heads import default_task_heads
from stemma.model import Model
from stemma.network.heads import ClassHead, Pooler
from stemma.network.network import Network
from stemma.network.task_heads import SentenceHead, SpanHead
from stemma.schema.task_options import parse_task_options
from stemma.task_config import DEFAULT_TASK, TaskConfig

SMALL = ["network.width=24", "network.layers=2", "network.heads=3", "network.feedforward=20"]


def finetuned(*tasks: tuple[str, str, int], recipe: str = "bert@tiny", changes: tuple[str, ...] = ()) -> Model:
    """A random model with heads for these tasks: (name, kind, number of classes)."""
    start = stemma.build(recipe, 60, [*SMALL, *changes])
    corpus = start.recipe.settings.corpus
    task_configs = {}
    for name, kind, classes in tasks:
        labels = tuple(f"{name}-{index}" for index in range(classes)) if kind in ("classify", "pair", "tag") else ()
        values = {"counts": [3] * classes} if labels else {"threshold": 0.25} if kind == "qa" else {}
        task_configs[name] = TaskConfig(name, kind, labels, default_task_heads(start, kind, classes, name),
                                        corpus.single, corpus.pair, 32, ("f1",), parse_task_options(kind, values))
    heads = {name: spec for task_config in task_configs.values() for name, spec in task_config.heads.items()}
    network = Network(start.recipe.settings.network, 60, heads).eval()
    perturb(network, 0)
    return Model(start.recipe, None, network, task_configs=task_configs)


def assert_same_model(model: Model, expected: Model) -> None:
    before, after = model.network.state_dict(), expected.network.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert model.task_configs == expected.task_configs and model.recipe == expected.recipe
    assert model.network.head_specs == expected.network.head_specs


def save_hf_model(folder, kind: str, family: str = "bert", **settings):
    model = random_reference(family, 2, kind, **settings)
    model.save_pretrained(folder)
    return model


def remove_tensors(folder, *substrings: str) -> None:
    """Remove the tensors whose names contain one of these."""
    file = folder / "model.safetensors"
    remaining = {name: tensor for name, tensor in load_file(file).items()
                 if not any(substring in name for substring in substrings)}
    save_file(remaining, file, {"format": "pt"})


# --- saved by Stemma --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "expected"), [
    ("classify", "BertForSequenceClassification"), ("pair", "BertForSequenceClassification"),
    ("regress", "BertForSequenceClassification"), ("rank", "BertForSequenceClassification"),
    ("choice", "BertForMultipleChoice"), ("tag", "BertForTokenClassification"), ("qa", "BertForQuestionAnswering")])
@pytest.mark.parametrize("name", [DEFAULT_TASK, "mood"])
def test_a_single_task_is_saved_as_its_hf_class(tmp_path, kind, expected, name):
    model = finetuned((name, kind, 5 if kind in ("classify", "pair", "tag") else 1))
    stemma.save(model, tmp_path / "m")
    assert (config_of(tmp_path / "m")["model_type"], config_of(tmp_path / "m")["architectures"]) == ("bert", [expected])
    again = stemma.load(tmp_path / "m")
    assert_same_model(again, model)
    assert again.load_warnings == []
    stemma.save(again, tmp_path / "again")
    for file in ("model.safetensors", "config.json", "tasks.json"):
        assert (tmp_path / "m" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


def test_several_tasks_are_saved_as_type_stemma(tmp_path):
    model = finetuned(("mood", "classify", 3), ("names", "tag", 5), ("answers", "qa", 1))
    stemma.save(model, tmp_path / "m")
    config = config_of(tmp_path / "m")
    assert (config["model_type"], config["architectures"]) == ("stemma", ["StemmaNetwork"])
    again = stemma.load(tmp_path / "m")
    assert_same_model(again, model)
    assert again.task_config("names").labels == tuple(f"names-{index}" for index in range(5))
    assert default_task_heads(again, "classify", 2, "new") == {"pooler": Pooler(), "new": ClassHead(2, 0.1)}
    with pytest.raises(UserError, match="answers 3 tasks; say which with --task: mood, names, answers"):
        again.task_config()
    with pytest.raises(UserError, match='no task "moods"; it answers mood, names, answers.*Did you mean "mood"'):
        again.task_config("moods")


@pytest.mark.parametrize(("recipe", "changes"), [("bert@tiny", ("network.norm.placement=pre",)), ("gpt@tiny", ())],
                         ids=["body of no family", "family without the class"])
def test_a_task_without_an_hf_class_is_saved_as_type_stemma(tmp_path, recipe, changes):
    model = finetuned((DEFAULT_TASK, "tag", 4), recipe=recipe, changes=(*changes, "network.feedforward=96"))
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    assert_same_model(stemma.load(tmp_path / "m"), model)


def test_a_task_with_another_head_is_saved_as_type_stemma(tmp_path):
    """BERT's class has a pooler, and no mean over the positions."""
    model = finetuned((DEFAULT_TASK, "classify", 3))
    heads = {DEFAULT_TASK: SentenceHead(3, "mean", None)}
    network = Network(model.recipe.settings.network, 60, heads).eval()
    task_config = replace(model.task_configs[DEFAULT_TASK], heads=heads)
    stemma.save(Model(model.recipe, None, network, task_configs={DEFAULT_TASK: task_config}), tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    assert stemma.load(tmp_path / "m").task_config().heads == heads


def test_a_model_without_tasks_has_no_tasks_file(tmp_path):
    model = stemma.build("bert@tiny", 60, SMALL)
    stemma.save(model, tmp_path / "m")
    assert not (tmp_path / "m/tasks.json").exists()
    with pytest.raises(UserError, match="BERT model answers no task; teach it one with `stemma finetune`"):
        stemma.load(tmp_path / "m").task_config()


def test_default_heads_are_those_of_the_family(tmp_path):
    changes = {"bert@tiny": [], "roberta@tiny": [], "albert@tiny": ["network.embedding.width=16"], "electra@tiny": [],
               "gpt2@tiny": [], "universal-transformer@tiny": []}
    heads = {name: default_task_heads(stemma.build(name, 60, [SMALL[0], SMALL[2], *extra]), "classify", 3, "it")
             for name, extra in changes.items()}
    pooled = {"pooler": Pooler(), "it": ClassHead(3, 0.1)}
    last = {"it": SentenceHead(3, "last", None, 0.1, bias=False)}
    assert heads == {"bert@tiny": pooled, "roberta@tiny": {"it": SentenceHead(3, "first", "tanh", 0.1, early=True)},
                     "albert@tiny": pooled, "electra@tiny": {"it": SentenceHead(3, "first", "gelu", 0.1, early=True)},
                     "gpt2@tiny": last, "universal-transformer@tiny": last}


# --- damaged folders --------------------------------------------------------------------------------------------------


def change_tasks_file(folder, change) -> None:
    (folder / "checksums.json").unlink()
    file = folder / "tasks.json"
    file.write_text(change(file.read_text()))


def test_a_damaged_tasks_file_is_reported(tmp_path):
    stemma.save(finetuned((DEFAULT_TASK, "tag", 3)), tmp_path / "m")
    change_tasks_file(tmp_path / "m", lambda text: text[:-20])
    with pytest.raises(CorruptFileError, match="tasks.json is damaged"):
        stemma.load(tmp_path / "m")


def test_the_tasks_file_of_another_model_is_reported(tmp_path):
    stemma.save(finetuned((DEFAULT_TASK, "tag", 3)), tmp_path / "m")
    stemma.save(finetuned(("a", "tag", 3), ("b", "qa", 1)), tmp_path / "other")
    change_tasks_file(tmp_path / "m", lambda text: (tmp_path / "other/tasks.json").read_text())
    with pytest.raises(CorruptFileError, match="has tasks that no model of the family bert answers"):
        stemma.load(tmp_path / "m")


def test_without_tasks_file_the_task_is_inferred_from_config(tmp_path):
    model = finetuned((DEFAULT_TASK, "pair", 3))
    stemma.save(model, tmp_path / "m")
    for name in ("tasks.json", "checksums.json"):
        (tmp_path / "m" / name).unlink()
    task_config = stemma.load(tmp_path / "m").task_config()
    assert (task_config.kind, task_config.labels, task_config.metrics) == ("classify", model.task_config().labels, ())
    assert task_config.heads == model.task_config().heads and task_config.pair == model.task_config().pair


def test_type_stemma_without_tasks_file_is_reported(tmp_path):
    stemma.save(finetuned((DEFAULT_TASK, "tag", 3), changes=("network.norm.placement=pre",)), tmp_path / "m")
    for name in ("tasks.json", "checksums.json"):
        (tmp_path / "m" / name).unlink()
    with pytest.raises(CorruptFileError, match="lists the head task, which no objective .* no task of a tasks.json"):
        stemma.load(tmp_path / "m")


# --- saved by transformers --------------------------------------------------------------------------------------------


def test_labels_are_ordered_by_their_ids(tmp_path):
    save_hf_model(tmp_path, "BertForSequenceClassification", num_labels=12)
    names = {str(index): f"class {index}" for index in reversed(range(12))}
    configure(tmp_path, id2label=names)
    assert stemma.load(tmp_path).task_config().labels == tuple(f"class {index}" for index in range(12))


def test_labels_without_names_are_numbered(tmp_path):
    save_hf_model(tmp_path, "BertForSequenceClassification")
    configure(tmp_path, id2label=..., label2id=...)
    assert stemma.load(tmp_path).task_config().labels == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize("table", [["a", "b"], {"first": "a", "second": "b"}, "ab"])
def test_labels_without_ids_are_reported(tmp_path, table):
    save_hf_model(tmp_path, "BertForSequenceClassification")
    configure(tmp_path, id2label=table)
    with pytest.raises(CorruptFileError, match="id2label that does not number its labels"):
        stemma.load(tmp_path)


def test_labels_that_do_not_fit_the_weights_are_reported(tmp_path):
    save_hf_model(tmp_path, "BertForTokenClassification", num_labels=4)
    configure(tmp_path, id2label={"0": "O", "1": "B-X"})
    with pytest.raises(CorruptFileError, match=r"classifier.weight +is 4x\d+ and should be 2x"):
        stemma.load(tmp_path)


def test_inferred_task_configs_have_default_options(tmp_path):
    expected = {"BertForSequenceClassification": ("classify", {"counts": [0, 0]}),
                "BertForMultipleChoice": ("choice", {}),
                "BertForQuestionAnswering": ("qa", {"silence": False, "stride": 128})}
    for index, (name, (kind, values)) in enumerate(expected.items()):
        hf_model = save_hf_model(tmp_path / str(index), name)
        task_config = stemma.load(tmp_path / str(index)).task_config()
        assert (task_config.kind, task_config.values.to_json()) == (kind, values)
        assert task_config.longest == hf_model.config.max_position_embeddings


@pytest.mark.parametrize(("kind", "family", "change"), [
    ("BertForSequenceClassification", "bert", {"problem_type": "multi_label_classification"}),
    ("BertForSequenceClassification", "bert", {"problem_type": "regression"}),
    ("XLNetForSequenceClassification", "xlnet", {"summary_type": "mean"}),
    ("ElectraForMultipleChoice", "electra", {"summary_activation": "tanh"})])
def test_a_head_without_a_kind_of_task_is_not_loaded_and_reported(tmp_path, kind, family, change):
    save_hf_model(tmp_path, kind, family, **change)
    model = stemma.load(tmp_path)
    ((name, value),) = change.items()
    assert f"answers as a {kind} with {name} = {value}" in model.load_warnings[0]
    assert "not used by this network" in model.load_warnings[1]
    assert model.task_configs == {} and DEFAULT_TASK not in model.network.heads


@pytest.mark.parametrize(("kind", "family", "parts"), [
    ("BertForSequenceClassification", "bert", ("classifier",)), ("BertForSequenceClassification", "bert", ("pooler",)),
    ("BertForQuestionAnswering", "bert", ("qa_outputs",)),
    ("RobertaForSequenceClassification", "roberta", ("classifier",)),
    ("GPT2ForSequenceClassification", "gpt2", ("score",))])
def test_a_task_head_without_weights_is_reported_when_the_task_is_used(tmp_path, kind, family, parts):
    save_hf_model(tmp_path, kind, family)
    remove_tensors(tmp_path, *parts)
    model = stemma.load(tmp_path)
    assert model.hidden(torch.tensor([[5, 3, 1]])).shape[1] == 3
    with pytest.raises(UserError, match="weights of the head that answers .* are not in this model's folder"):
        model.task_config()
    stemma.save(model, tmp_path / "again")
    assert not (tmp_path / "again/tasks.json").exists()
    assert stemma.load(tmp_path / "again").task_configs == {}


def test_a_head_with_missing_tensors_is_reported(tmp_path):
    save_hf_model(tmp_path, "RobertaForSequenceClassification", "roberta")
    remove_tensors(tmp_path, "out_proj")
    with pytest.raises(CorruptFileError, match="2 tensors missing .*classifier.out_proj"):
        stemma.load(tmp_path)


def test_an_unused_pooler_is_not_loaded(tmp_path):
    """Early releases of transformers stored one."""
    hf_model = save_hf_model(tmp_path, "BertForTokenClassification")
    width = hf_model.config.hidden_size
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "bert.pooler.dense.weight": torch.ones(width, width),
               "bert.pooler.dense.bias": torch.ones(width)}, tmp_path / "model.safetensors", {"format": "pt"})
    model = stemma.load(tmp_path)
    assert set(model.network.heads) == {DEFAULT_TASK} and "bert.pooler.dense.bias" in model.load_warnings[0]
    stemma.save(model, tmp_path / "stemma")
    assert config_of(tmp_path / "stemma")["architectures"] == ["BertForTokenClassification"]


def test_default_heads_for_a_model_that_was_finetuned(tmp_path):
    save_hf_model(tmp_path, "BertForQuestionAnswering")
    assert default_task_heads(stemma.load(tmp_path), "qa", 1, "again") == {"again": SpanHead()}
    assert default_task_heads(stemma.load(tmp_path), "tag", 4, "next") == {"next": ClassHead(4, 0.1)}


def test_pretraining_starts_from_a_finetuned_model(tmp_path, corpus_folder, tokenizer_folder, caplog):
    from stemma.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(tokenizer_folder)
    start = stemma.build("bert@tiny", tokenizer.vocab_size, SMALL)
    heads = default_task_heads(start, "classify", 3, DEFAULT_TASK)
    corpus = start.recipe.settings.corpus
    network = Network(start.recipe.settings.network, tokenizer.vocab_size, heads).eval()
    task_config = TaskConfig(DEFAULT_TASK, "classify", ("a", "b", "c"), heads, corpus.single, corpus.pair, 64, ("f1",),
                             parse_task_options("classify", {}))
    stemma.save(Model(start.recipe, tokenizer, network, task_configs={DEFAULT_TASK: task_config}), tmp_path / "m")
    stemma.pretrain("bert@tiny", corpus=corpus_folder, out=tmp_path / "run", steps=1, init_from=tmp_path / "m",
                    changes=["training.batch_size=2", "corpus.sequence_length=32"])
    assert any("not needed by bert@tiny: heads.task" in text for text in caplog.messages)
    assert json.loads((tmp_path / "run/model/config.json").read_text())["architectures"] == ["BertForPreTraining"]
