"""Every kind of task with every structure: encoders, decoders, encoder-decoders, prefix and permutation models.

`benchmarks/structures_table.py` trains each of them long enough to see whether it learns.
"""

from __future__ import annotations

import json
import math

import pytest
import toy_tasks

import stemma
from stemma.errors import UserError
from stemma.network.heads import ClassHead
from stemma.network.task_heads import SentenceHead
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.multitask import multitask

STRUCTURES = ("bert", "gpt2", "xlnet", "t5", "bart", "mass", "transformer", "unilm", "prefix-lm",
              "universal-transformer", "transformer-xl")
TWO_STACKS = ("t5", "bart", "mass", "transformer")
ASKED = {"classify": "the old clerk reads a letter", "regress": "the old clerk reads a letter",
         "tag": "the old clerk reads a letter",
         "pair": {"text_a": "the clerk reads", "text_b": "a letter"}, "rank": {"text_a": "clerk", "text_b": "a letter"},
         "choice": {"context": "the clerk", "question": "what then?", "options": ["he reads", "he forgets"]},
         "qa": {"question": "what?", "context": "the clerk reads one missing leaf."}}
ANSWER = {"classify": "label", "pair": "label", "regress": "score", "rank": "score", "choice": "label", "tag": "tags",
          "qa": "answer"}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A model of each structure, built on first use."""
    folder, models_by_name = tmp_path_factory.mktemp("structures"), {}

    def of(name: str):
        if name not in models_by_name:
            more = ["network.decoder.layers=1"] if name in TWO_STACKS else []
            models_by_name[name] = toy_tasks.save_model(folder / name, f"{name}@tiny", "network.layers=1", *more)
        return models_by_name[name]

    return of


@pytest.mark.parametrize("kind", toy_tasks.MAKERS)
@pytest.mark.parametrize("name", STRUCTURES)
def test_every_structure_trains_saves_and_predicts(tmp_path, start, name, kind):
    files = toy_tasks.write_sets(tmp_path, kind, train=8, dev=4)
    result = finetune(TaskArguments(kind, files), start(name), tmp_path / "run", steps=1,
                      changes=["training.batch_size=4"])
    assert math.isfinite(result["validation_loss"]) and result["metrics"]["dev"]["examples"] == 4
    model = stemma.load(tmp_path / "run")
    assert model.task_config().kind == kind
    (said,) = stemma.predict(model, ASKED[kind])
    assert ANSWER[kind] in said


@pytest.mark.parametrize(("name", "kind", "saved"), [
    ("bart", "pair", "BartForSequenceClassification"), ("t5", "regress", "T5ForSequenceClassification"),
    ("t5", "tag", "T5ForTokenClassification"), ("bart", "tag", "StemmaNetwork"), ("mass", "qa", "StemmaNetwork")])
def test_models_are_saved_as_the_matching_transformers_class(tmp_path, start, name, kind, saved):
    files = toy_tasks.write_sets(tmp_path, kind, train=8, dev=4)
    finetune(TaskArguments(kind, files), start(name), tmp_path / "run", steps=1, changes=["training.batch_size=4"])
    assert json.loads((tmp_path / "run/model/config.json").read_text())["architectures"] == [saved]
    model = stemma.load(tmp_path / "run")
    assert model.is_encoder_decoder == (saved != "T5ForTokenClassification")
    assert model.task_config().values.stack == ("decoder" if model.is_encoder_decoder else "encoder")


def test_the_encoder_of_an_encoder_decoder_can_be_used_alone(tmp_path, start):
    """The decoder and its objectives are dropped; the head reads the mean of the encoder's output."""
    files = toy_tasks.write_sets(tmp_path, "classify", train=8, dev=4)
    finetune(TaskArguments("classify", files), start("bart"), tmp_path / "run", steps=1,
             changes=["training.batch_size=4", "finetuning.stack=encoder"])
    model = stemma.load(tmp_path / "run")
    assert not model.is_encoder_decoder and not model.recipe.settings.objective
    assert model.task_config().heads == {"task": SentenceHead(2, "mean", None, 0.1)}
    finetune(TaskArguments("tag", toy_tasks.write_sets(tmp_path, "tag", train=8, dev=4)), tmp_path / "run",
             tmp_path / "again",
             steps=1, changes=["training.batch_size=4"])  # and it goes on as any encoder
    assert isinstance(stemma.load(tmp_path / "again").task_config().heads["task"], ClassHead)


def test_requesting_the_decoder_of_a_single_stack_is_rejected(tmp_path, start):
    files = toy_tasks.write_sets(tmp_path, "classify", train=8, dev=4)
    with pytest.raises(UserError, match="finetuning.stack is decoder, and this BERT model has no decoder; leave it"):
        finetune(TaskArguments("classify", files), start("bert"), tmp_path / "run",
                 changes=["finetuning.stack=decoder"])


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_features_come_from_the_layers_of_either_stack(tmp_path, start, stack):
    files = toy_tasks.write_sets(tmp_path, "classify", train=8, dev=4)
    finetune(TaskArguments("classify", files, features="all"), start("bart"), tmp_path / "run", steps=1,
             changes=["training.batch_size=4", f"finetuning.stack={stack}"])
    assert stemma.predict(stemma.load(tmp_path / "run"), ASKED["classify"])[0]["label"] in ("good", "bad")


def test_several_tasks_may_read_different_stacks(tmp_path, start):
    """T5 classifies with its decoder and tags with its encoder, so a model for both tasks keeps both."""
    lines = []
    for kind in ("classify", "tag"):
        files = toy_tasks.write_sets(tmp_path, kind, train=8, dev=4)
        lines += [f'[tasks.{kind}]\nkind = "{kind}"', *(f'{part} = "{file}"' for part, file in files.items())]
    (tmp_path / "plan.toml").write_text("\n".join(lines) + "\n")
    multitask(tmp_path / "plan.toml", start("t5"), tmp_path / "run", steps=1)
    model = stemma.load(tmp_path / "run")
    assert {name: config.values.stack for name, config in model.task_configs.items()} == {"classify": "decoder",
                                                                                      "tag": "encoder"}
    assert all(ANSWER[kind] in stemma.predict(model, ASKED[kind], task=kind)[0] for kind in model.task_configs)
