"""ELECTRA runs: what they log, which models they save, and how training continues from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from commands import stemma as command
from conftest import captured_log_messages

import stemma
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.recipe_loading import recipe
from stemma.training.average import average
from stemma.training.corpus_cache import adopt_tokenizer
from stemma.training.init_from import init_from_model
from stemma.training.pretrain import pretrain, resume

SMALL = ["network.width=32", "network.heads=2", "network.layers=2", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=2", "training.threads=1",
         "training.log_every=1", "training.checkpoint_every=3"]
TEXT = "the old clerk [MASK] a letter"


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus_folder):
    run = tmp_path_factory.mktemp("finished") / "run"
    return run, pretrain("electra@tiny", corpus_folder, run, steps=6, changes=SMALL, seed=1)


def test_losses_and_measures_of_both_networks_are_logged(finished):
    run, result = finished
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert all({"masked_lm", "replaced_token"} == line["losses"].keys() for line in steps)
    measures = [line["measures"] for line in steps]
    assert all({"generator_accuracy", "replaced", "recall"} <= entry.keys() for entry in measures)
    assert all(0 <= value <= 1 for entry in measures for value in entry.values())
    assert all(0.1 < entry["replaced"] < 0.16 for entry in measures)
    assert result["validation_losses"].keys() == {"masked_lm", "replaced_token"} == result["baselines"].keys()


def test_the_discriminator_is_the_model_and_the_generator_is_saved_with_it(finished):
    run, result = finished
    model, generator = stemma.load(run), stemma.load(run / "model/generator")
    assert model.load_warnings == generator.load_warnings == []
    assert model.parameter_count() == result["parameters"]
    ids = torch.arange(2, 12)[None]
    assert model.logits(ids).shape == (1, 10) and generator.logits(ids).shape == (1, 10, model.network.vocab_size)
    assert torch.equal(model.network.embedding.tokens.weight, generator.network.embedding.tokens.weight)
    assert model.tokenizer.fingerprint == generator.tokenizer.fingerprint
    assert generator.network.settings.width == 8 and list(generator.recipe.settings.objective) == ["masked_lm"]


def test_a_damaged_generator_is_refused(finished, tmp_path):
    shutil.copytree(finished[0] / "model", tmp_path / "m")
    weights = tmp_path / "m/generator/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"oops")
    for folder in (tmp_path / "m", tmp_path / "m/generator"):
        with pytest.raises(UserError, match="damaged"):
            stemma.load(folder)


def test_fill_uses_the_generator(finished):
    run, _ = finished
    result = command("fill", run, TEXT, "--json")
    assert result.code == 0 and "generator" in result.err
    assert result.json["predictions"] == command("fill", run / "model/generator", TEXT, "--json").json["predictions"]


def test_perplexity_of_the_discriminator_is_refused_with_a_pointer_to_the_generator(finished, text_file):
    completed = command("perplexity", finished[0], text_file)
    assert completed.code == 2 and "generator" in completed.err


def initialize_from(where: Path, corpus_folder: Path, *changes: str, name: str = "electra@tiny"):
    corpus = Corpus.open(corpus_folder)
    resolved = adopt_tokenizer(recipe(name, [*SMALL, *changes]), corpus)
    with captured_log_messages() as messages:
        return *init_from_model(str(where), resolved, corpus), messages


def test_initializing_from_a_run_copies_discriminator_and_generator(finished, corpus_folder):
    run, _ = finished
    _, network, messages = initialize_from(run, corpus_folder)
    assert messages == []
    model, generator = stemma.load(run), stemma.load(run / "model/generator")
    for name, tensor in model.network.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor)
    for name, tensor in generator.network.state_dict().items():
        assert torch.equal(network.generator.state_dict()[name], tensor)


def test_the_size_of_a_saved_generator_cannot_be_changed(finished, corpus_folder):
    expected, network, _ = initialize_from(finished[0], corpus_folder)
    assert expected.settings.network.generator.multiplier == 0.25 and network.generator.settings.width == 8
    with pytest.raises(UserError, match="not the one you ask for"):
        initialize_from(finished[0], corpus_folder, "network.generator.multiplier=0.5")


def test_without_a_saved_generator_a_new_one_is_initialized(finished, corpus_folder, tmp_path):
    stemma.save(stemma.load(finished[0]), tmp_path / "alone")
    assert not (tmp_path / "alone/generator").exists()
    _, network, messages = initialize_from(tmp_path / "alone", corpus_folder, "network.generator.multiplier=0.5")
    assert network.generator.settings.width == 16
    assert messages == [f"not in {tmp_path / 'alone'}, so started at random: generator.embedding, generator.encoder, "
                        "generator.heads"]
    assert torch.equal(network.generator.embedding.tokens.weight,
                       stemma.load(finished[0]).network.embedding.tokens.weight)


def test_bert_can_be_initialized_from_a_discriminator(finished, corpus_folder):
    expected, network, messages = initialize_from(finished[0], corpus_folder, name="bert@tiny")
    assert expected.settings.network.generator is None and network.generator is None
    assert "heads.replaced_token" in messages[-1]


@pytest.mark.parametrize("lost", [["checkpoints/step-6", "model"], ["model"]], ids=["half-way", "after the last step"])
def test_an_interrupted_run_resumes_to_the_same_generator(finished, tmp_path, corpus_folder, lost):
    run, result = finished
    pretrain("electra@tiny", corpus_folder, tmp_path / "run", steps=6, changes=SMALL, seed=1)
    for folder in lost:
        shutil.rmtree(tmp_path / "run" / folder)
    (tmp_path / "run/result.json").unlink()
    resumed_result = resume(tmp_path / "run")
    for folder in ("model", "model/generator"):
        assert (tmp_path / "run" / folder / "model.safetensors").read_bytes() == \
            (run / folder / "model.safetensors").read_bytes()
    assert resumed_result["validation_losses"] == result["validation_losses"]


def test_averaged_checkpoints_have_discriminator_and_generator(finished, tmp_path):
    average(finished[0], last=2, out=tmp_path / "mean")
    assert stemma.load(tmp_path / "mean").is_discriminator
    assert stemma.load(tmp_path / "mean/generator").logits(torch.arange(5)[None]).dim() == 3
