"""Runs of recurrent and windowed language models: exact resume, each token read once, and that they learn."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch
from commands import stemma_unreported as run
from safetensors.torch import load_file
from torch import nn

import stemma
from stemma.errors import UserError
from stemma.evaluation.lm_scorer import LMScorer
from stemma.network.inputs_outputs import Stream
from stemma.training.pretrain import pretrain, resume
from stemma.training.schedules import lr_factor
from stemma.training.weight_average import TriggeredAverage
from stemma.visibility import Causal

SMALL = ["corpus.sequence_length=16", "training.batch_size=4", "training.warmup_steps=2", "training.checkpoint_every=1",
         "training.keep_checkpoints=100", "training.log_every=1", "training.validate_every=2"]
# Every mask is drawn, and steps are so large that a validation is soon worse and averaging begins.
AWD = ["network.depth.weight_dropout=0.5", "network.depth.activation_penalty=2.0", "network.depth.temporal_penalty=1.0",
       "network.embedding.word_dropout=0.1", "network.embedding.dropout=0.4", "network.dropout=0.3",
       "training.average_after=1", "training.validate_every=1", "training.learning_rate=10000.0",
       "training.optimizer={kind='sgd'}", "training.schedule={kind='constant'}", "network.depth.hidden=24",
       "network.embedding.scale=false", "network.width=16"]
RUNS = {"lstm-lm": ["network.width=16"],
        "projected": ["network.width=16", "network.depth.hidden=24", "network.depth.projection=true",
                      "network.depth.residual=true", "network.depth.cell_clip=1.0"],
        "awd-lstm": AWD, "nnlm": ["network.width=16", "network.embedding.width=8"]}
STEPS = 6


@pytest.fixture(scope="module", params=RUNS)
def finished(request, tmp_path_factory, corpus_folder):
    folder = tmp_path_factory.mktemp("lstm") / "run"
    name = request.param if request.param != "projected" else "lstm-lm"
    pretrain(f"{name}@tiny", corpus_folder, folder, steps=STEPS, changes=[*SMALL, *RUNS[request.param]])
    return folder


@pytest.mark.parametrize("step", [0, 1, 4])
def test_a_resumed_run_ends_with_the_same_bytes(finished, tmp_path, step):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "model")
    (folder / "result.json").unlink()
    for later in range(step + 1, STEPS + 1):
        shutil.rmtree(folder / f"checkpoints/step-{later}")
    if step:
        assert (folder / f"checkpoints/step-{step}/memory.safetensors").exists()
    resume(folder)
    for file in ("model/model.safetensors", f"checkpoints/step-{STEPS}/optimizer.safetensors",
                 f"checkpoints/step-{STEPS}/memory.safetensors"):
        assert (folder / file).read_bytes() == (finished / file).read_bytes(), file


def test_a_saved_model_has_the_same_logits(finished, tmp_path):
    model = stemma.load(finished)
    stemma.save(model, tmp_path / "again")
    ids = torch.arange(12)[None]
    torch.testing.assert_close(stemma.load(tmp_path / "again").logits(ids), model.logits(ids), rtol=0, atol=0)


def test_perplexity_reads_a_text_once_however_it_is_cut(finished, text_file):
    """One pass over the whole text and segments of five tokens give the same losses."""
    model = stemma.load(finished)
    text = " ".join(text_file.read_text()[:400].split())
    (tokens,) = (encoding.ids for encoding in model.require_tokenizer().encode_batch([text], special=False))
    ids = torch.tensor([[model.document_separator_id, *tokens]])
    with torch.no_grad():
        hidden = model.network({"encoder": Stream(ids[:, :-1], Causal())})["encoder"][0]
        logits = model.network.heads["vocabulary"](hidden)
    expected = float(nn.functional.cross_entropy(logits, ids[0, 1:]))
    file = finished.parent / "one.txt"
    file.write_text(text)
    for length in (5, 1000):
        result = stemma.perplexity(finished, str(file), length=length)
        assert result["tokens"] == len(tokens) and "stride" not in result and "memory" not in result
        assert math.log(result["perplexity"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("options", "expected"), [
    ({"stride": 4}, "has no meaning with a memory"), ({"memory": 4}, "its state has a fixed size")])
def test_a_recurrent_state_has_neither_stride_nor_length(finished, options, expected):
    with pytest.raises(UserError) as refused:
        LMScorer(stemma.load(finished), **options)
    assert expected in refused.value.problems[0][1]


def test_the_state_is_carried_in_training_and_validation(corpus_folder, tmp_path):
    """A checkpoint has the state after the last row, and the second row of a run begins with it."""
    pretrain("lstm-lm@tiny", corpus_folder, tmp_path / "run", steps=2, changes=[*SMALL, "network.width=16"])
    first, second = (load_file(tmp_path / f"run/checkpoints/step-{step}/memory.safetensors") for step in (1, 2))
    assert [tuple(tensor.shape) for tensor in first.values()] == [(4, 1, 16)] * 4
    assert all(not torch.equal(first[name], second[name]) for name in first)


def test_generation_with_the_cache_equals_generation_without(finished):
    """Of prompts of different lengths, which a recurrent state cannot pad."""
    model = stemma.load(finished)
    prompts = ["the old clerk", "a"]
    with_cache, without = ([completion.text for completion in model.generate(prompts, tokens=8, greedy=True, **options)]
                           for options in ({}, {"cache": False}))
    assert with_cache == without and all(with_cache)


def test_the_verbs_that_score_and_generate_take_the_models(finished, tmp_path):
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps({
        "sentence_good": "the old clerk reads", "sentence_bad": "the old clerk read reads", "UID": "made",
        "field": "syntax", "linguistics_term": "agreement"}) for _ in range(3)))
    pairs = run("pairs", finished, tmp_path, "--json", folder=tmp_path)
    assert pairs.code == 0 and 0 <= pairs.json["accuracy"] <= 1, pairs.err
    written = run("generate", finished, "the old", "--tokens", "5", "--json", folder=tmp_path)
    assert written.code == 0 and len(written.json["completions"][0]["tokens"]) == 5, written.err


@pytest.mark.parametrize("name", ["lstm-lm", "awd-lstm", "nnlm"])
def test_tiny_sizes_learn(corpus_folder, tmp_path, name):
    result = pretrain(f"{name}@tiny", corpus_folder, tmp_path / "run", steps=60,
                      changes=["training.batch_size=8", "corpus.sequence_length=32"])
    assert result["validation_loss"] < result["unigram_loss"] - 0.5


def test_characters_are_read_through_the_convolution_and_the_highway(corpus_folder, tmp_path):
    """The input of ELMo and of "Exploring the limits of language modeling", as a key."""
    result = pretrain("lstm-lm@tiny", corpus_folder, tmp_path / "run", steps=2, changes=[
        *SMALL, "network.width=16", "network.inputs.characters={kind='characters', size=4, widths=[1, 2], "
        "filters=[4, 6], highway=2}"])
    assert math.isfinite(result["validation_loss"])
    assert any("highway" in name for name in load_file(tmp_path / "run/model/model.safetensors"))


def test_averaging_begins_after_a_validation_without_progress():
    """The rule and the mean of NT-ASGD, step by step."""
    torch.manual_seed(0)
    network = nn.Linear(2, 1)
    average, losses, kept = TriggeredAverage(network, 2), [5.0, 4.0, 4.5, 4.2, 4.6, 3.0, 3.1], []
    for step, loss in enumerate(losses):
        with torch.no_grad():
            network.weight.add_(torch.randn(1, 2))
        average.update()
        kept += [network.weight.detach().clone()] if step > 4 else []
        with average.applied():  # 4.6 is worse than 4.0, three validations before; the next steps count
            expected = sum(kept) / len(kept) if kept else network.weight.detach().clone()
            torch.testing.assert_close(network.weight.detach(), expected)
        average.after_validation(loss)
        assert average.active == (step >= 4)
    again = TriggeredAverage(network, 2)
    again.restore(average.tensors(), average.num_updates)
    again.restore_losses(average.losses)
    assert again.active and torch.equal(again.averages["weight"], average.averages["weight"])


def test_a_run_uses_the_average(finished):
    """Of the run with averaging the saved weights are not those of the last checkpoint."""
    saved = load_file(finished / "model/model.safetensors")
    live = load_file(finished / f"checkpoints/step-{STEPS}/weights.safetensors")
    state = json.loads((finished / f"checkpoints/step-{STEPS}/state.json").read_text())["optimizer"]
    differs = not all(np.array_equal(saved[name], live[name]) for name in saved if name in live)
    assert differs == (state.get("average_updates", 0) > 1)
    assert "awd" not in (finished / "recipe.toml").read_text().splitlines()[0] or state["average_updates"] > 1


def test_the_exponential_schedule_divides_by_a_constant_per_epoch():
    """Zaremba et al. (2014): constant for 6 of 39 epochs, then divided by 1.2 after each."""
    settings = stemma.recipe("lstm-lm@medium").settings.training.schedule
    for epoch in (0, 3, 6, 7, 20, 39):
        factor = lr_factor(settings, 1 + epoch, 0, epoch / 39, 0.0)
        assert factor == pytest.approx(1.2 ** -max(0, epoch - 6), rel=0.02)
