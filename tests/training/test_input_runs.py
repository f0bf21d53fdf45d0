"""Models with inputs other than token ids: exact resume, save and load, and inputs that users pass."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_close
from safetensors.torch import load_file

import stemma
from stemma.corpus.annotate import annotate
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.exchange.save import save
from stemma.network.inputs.characters import CharacterSettings, token_symbols
from stemma.training.checkpoints import WEIGHTS
from stemma.training.pretrain import pretrain, resume
from stemma.training.run_folder import read_run

SMALL = ["network.width=16", "network.heads=2", "network.layers=1", "network.feedforward=24",
         "corpus.sequence_length=24", "training.batch_size=4", "training.warmup_steps=1",
         "training.checkpoint_every=2", "training.keep_checkpoints=9", "training.log_every=1"]
INPUTS = {
    "vectors": ["hint.kind=vectors", "hint.size=2"],
    "boxes": ["hint.kind=boxes", "hint.size=2"],
    "characters": ["letters.kind=characters", "letters.filters=[4, 4]", "letters.widths=[1, 3]"],
    "frozen": ["entity.kind=entities", "entity.size=3", "entity.count=5", "entity.file=VECTORS"],
    "trained": ["entity.kind=entities", "entity.size=3", "entity.count=5", "entity.trained=true"],
}
# each kind once; with a decoder, with a generator, with a gate
RUNS = {"vectors": ("bert@tiny", ["network.embedding.fusion=gate"]), "boxes": ("bert@tiny", []),
        "characters": ("electra@tiny", ["network.generator.multiplier=0.5"]), "frozen": ("gpt2@tiny", []),
        "trained": ("bart@tiny", ["network.decoder.layers=1"]),
        "written": ("t5@tiny", ["network.decoder.layers=1", "network.inputs.letters.decoder=true"])}
INPUTS["written"] = [*INPUTS["characters"], *INPUTS["vectors"]]


@pytest.fixture(scope="module")
def annotated(tmp_path_factory, corpus_folder) -> Path:
    """A folder with a corpus that has a field for each kind of input."""
    folder = tmp_path_factory.mktemp("annotated")
    shutil.copytree(corpus_folder, folder / "corpus")
    tokens = Corpus.open(folder / "corpus").num_tokens
    draw = np.random.default_rng(0)
    np.save(folder / "vectors.npy", draw.standard_normal((5, 3)))
    fields = {"hint": draw.standard_normal((tokens, 2)), "boxes": draw.random((tokens, 4)),
              "entity": draw.integers(0, 5, tokens)}
    annotate(folder / "corpus", token_fields=fields)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory, annotated):
    """Runs of four steps, each trained once."""
    runs: dict[str, Path] = {}

    def run_of(kind: str) -> Path:
        if kind not in runs:
            runs[kind] = tmp_path_factory.mktemp(kind) / "run"
            name, more = RUNS[kind]
            vectors = str(annotated / "vectors.npy")
            inputs = [f"network.inputs.{key}".replace("VECTORS", vectors) for key in INPUTS[kind]]
            pretrain(name, annotated / "corpus", runs[kind], steps=4, changes=[*SMALL, *inputs, *more])
        return runs[kind]

    return run_of


@pytest.mark.parametrize("kind", RUNS)
def test_runs_with_inputs_resume_exactly_and_their_models_save_and_load(trained, annotated, tmp_path, kind):
    uninterrupted, run = trained(kind), tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    shutil.rmtree(run / "model")
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints/step-4")
    (annotated / "vectors.npy").rename(annotated / "moved.npy")  # a started run has its own copy of the vectors
    try:
        resume(run)
    finally:
        (annotated / "moved.npy").rename(annotated / "vectors.npy")
    first, second = ((folder / "model/model.safetensors").read_bytes() for folder in (uninterrupted, run))
    assert first == second
    model = stemma.load(uninterrupted)
    again = tmp_path / "again"
    save(model, again)
    assert (again / "model.safetensors").read_bytes() == first
    name, module = next(iter(model.network.embedding.inputs.items()))
    before = load_file(uninterrupted / "checkpoints/step-2" / WEIGHTS)  # only parameters have changed since then
    parameter_names = {key for key, _ in module.named_parameters()}
    assert {key for key, value in module.state_dict().items()
            if not torch.equal(value, before[f"embedding.inputs.{name}.{key}"])} == parameter_names
    if kind == "frozen":
        assert_close(module.vectors, torch.from_numpy(np.load(annotated / "vectors.npy")).float())
    if kind in ("characters", "written"):
        expected = torch.from_numpy(token_symbols(model.tokenizer, CharacterSettings(kind="characters")))
        assert torch.equal(module.spelling[:len(expected)], expected) and expected.any()


def test_resuming_with_another_field_is_refused(trained, annotated, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained("vectors"), run)
    (run / "result.json").unlink()
    other = tmp_path / "corpus"
    shutil.copytree(annotated / "corpus", other)
    tokens = Corpus.open(other).num_tokens
    annotate(other, token_fields={"hint": np.zeros((tokens, 2))}, overwrite=True)
    plan = json.loads((run / "run.json").read_text())
    assert set(plan["marks"]) == {"hint"}
    replace(read_run(run)[1], corpus=str(other)).write(run)
    with pytest.raises(UserError, match="the hint of .* are not those that"):
        resume(run)


def test_inputs_can_be_passed_as_arrays_tensors_or_lists(trained):
    model = stemma.load(trained("vectors"))
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    hints = np.random.default_rng(1).standard_normal((2, 3, 2))
    with_hints, plain = model.hidden(ids, inputs={"hint": hints}), model.hidden(ids)
    assert with_hints.shape == plain.shape and not torch.allclose(with_hints, plain)
    assert_close(model.hidden(ids, inputs={"hint": torch.from_numpy(hints)}), with_hints)
    assert_close(model.hidden(ids[1:], inputs={"hint": hints[1:].tolist()}), with_hints[1:])
    assert_close(model.logits(ids, inputs={"hint": hints}), model.lm_head()(with_hints))
    assert not torch.allclose(model.attentions(ids, inputs={"hint": hints})["encoder"][0],
                              model.attentions(ids)["encoder"][0])
    texts = ["the old", "the old and the new river", "a"]
    encodings = model.tokenizer.with_template(model.recipe.settings.corpus.single, model.recipe.settings.corpus.pair
                                         ).encode_batch(texts)
    hints_by_text = [np.full((len(encoding.ids), 2), index + 1.0) for index, encoding in enumerate(encodings)]
    result = model.embed(texts, inputs={"hint": hints_by_text})
    for index, text in enumerate(texts):
        assert_close(model.embed(text, inputs={"hint": [hints_by_text[index]]})[0], result[index])
    assert not np.allclose(result, model.embed(texts))
    assert_close(stemma.embed(model, texts, inputs={"hint": hints_by_text}), result)


@pytest.mark.parametrize(("kind", "inputs", "messages"), [
    ("vectors", {"hnt": np.zeros((2, 3, 2)), "hint": np.zeros((2, 3))},
     ['inputs["hnt"]', 'it has hint. Did you mean "hint"?', "has the shape (2, 3), and must have (2, 3, 2)"]),
    ("vectors", {"hint": np.full((2, 3, 2), np.nan)}, ["not finite"]),
    ("vectors", {"hint": [["a"]]}, ["must be an array of numbers"]),
    ("trained", {"entity": np.array([[0, 1, 5], [0, 0, 0]])}, ["whole numbers from 0 to 4"]),
    ("trained", {"entity": np.array([[0, 1.5, 2], [0, 0, 0]])}, ["whole numbers from 0 to 4"]),
    ("characters", {"letters": np.zeros((2, 3, 20)), "x": 1}, ["made from the token ids", "nothing besides tokens"]),
])
def test_all_problems_with_inputs_are_reported_at_once(trained, kind, inputs, messages):
    model = stemma.load(trained(kind))
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    more = {"decoder_input_ids": ids} if model.is_encoder_decoder else {}
    with pytest.raises(UserError) as refused:
        model.hidden(ids, inputs=inputs, **more)
    for sentence in messages:
        assert sentence in str(refused.value), str(refused.value)


def test_embed_needs_an_array_of_the_right_shape_for_each_text(trained):
    model = stemma.load(trained("vectors"))
    with pytest.raises(UserError, match="holds 1 arrays, and there are 2 texts"):
        model.embed(["a", "b"], inputs={"hint": [np.zeros((3, 2))]})
    with pytest.raises(UserError, match=r"has the shape \(9, 2\), and must have \(\d, 2\)"):
        model.embed(["a", "b"], inputs={"hint": [np.zeros((9, 2))] * 2})
