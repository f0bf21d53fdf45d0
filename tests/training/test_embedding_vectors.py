"""Static vectors as the embedding of a pre-training (CoVe): fixed rows, resume, translation, and the encoder reused."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import toy_tasks
from closeness import assert_close
from commands import has_checkpoint, start
from commands import stemma as command
from conftest import OBJECTS, PLACES, SEED, SUBJECTS, VERBS
from literal import attentional_translator as literal

import stemma
from stemma.errors import UserError
from stemma.network.feature_head import LayerMixHead
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.training.pretrain import pretrain

WIDTH = 12
CHANGES = ["network.embedding.width=12", "network.width=32", "network.decoder.depth.hidden=32",
           "network.decoder.depth.readout=32", "network.layers=1", "network.decoder.layers=1", "network.dropout=0",
           "network.output_dropout=0", "network.initialization.std=0.2", "training.batch_size=4",
           "corpus.sequence_length=32", "training.learning_rate=0.02", "training.checkpoint_every=40",
           "training.warmup_steps=5", "training.validate_every=40"]
STEPS = 120


def sentences(count, seed=0):
    rng = random.Random(seed)
    return [" ".join([rng.choice(SUBJECTS), rng.choice(VERBS), rng.choice(OBJECTS), rng.choice(PLACES)])
            for _ in range(count)]


def translated(sentence):
    """Each word spelled backwards."""
    return " ".join(word[::-1] for word in sentence.split())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(folder) of source.txt, target.txt and vectors.txt, which has the source's words but one."""
    folder = tmp_path_factory.mktemp("cove")
    texts = sentences(300)
    (folder / "source.txt").write_text("".join(f"{text}\n" for text in texts))
    (folder / "target.txt").write_text("".join(f"{translated(text)}\n" for text in texts))
    rng = np.random.default_rng(0)
    words = sorted({word for text in texts for word in text.split()} - {"clerk"})
    (folder / "vectors.txt").write_text("".join(
        f"{word} {' '.join(f'{x:.4f}' for x in rng.normal(size=WIDTH))}\n" for word in words))
    return folder


@pytest.fixture(scope="module")
def translator(files):
    pretrain("cove@tiny", files / "source.txt", files / "run", target=files / "target.txt", steps=STEPS, seed=SEED,
             vectors=files / "vectors.txt", changes=CHANGES)
    return files / "run"


def given(files):
    return {line.split()[0]: np.array(line.split()[1:], np.float32)
            for line in (files / "vectors.txt").read_text().splitlines()}


@torch.no_grad()
def test_words_of_the_file_keep_their_vectors_and_others_are_trained(files, translator):
    model = stemma.load(translator)
    tokens, tokenizer, vectors = model.network.embedding.tokens, model.require_tokenizer(), given(files)
    for word in tokenizer.backend.get_vocab():
        token = tokenizer.token_to_id(word)
        assert bool(tokens.fixed[token]) == (word in vectors)
        if word in vectors:
            np.testing.assert_array_equal(tokens(torch.tensor([token]))[0].numpy(), vectors[word])
    new = stemma.build(model.recipe, tokenizer.vocab_size).network.embedding.tokens
    assert not new.fixed.any()
    trained = ~tokens.fixed
    assert tokens(trained.nonzero()[:, 0]).std() > 0.01


def test_it_learns_to_translate(files, translator):
    result = command("translate", translator, "--text", "the old clerk reads the book", "--json")
    assert result.code == 0, result.err
    sources = sentences(20, seed=5)
    greedy, beams = (stemma.translate(translator, sources, **options) for options in ({"beams": 1}, {"beams": 4}))
    for results in (greedy, beams):
        correct = [one.text == translated(source) for one, source in zip(results, sources, strict=True)]
        assert np.mean(correct) > 0.5, [one.text for one in results][:3]


def test_a_killed_run_goes_on_without_the_file(files, tmp_path):
    (tmp_path / "vectors.txt").write_bytes((files / "vectors.txt").read_bytes())
    arguments = ["pretrain", "cove@tiny", "--corpus", files / "source.txt", "--target", files / "target.txt",
                 "--vectors", tmp_path / "vectors.txt", "--steps", "80", "--seed", SEED, *CHANGES]
    assert command(*arguments, "--out", tmp_path / "whole").code == 0
    running = start(*arguments, "--out", tmp_path / "killed")
    running.kill_when(lambda: has_checkpoint(tmp_path / "killed", 40))
    (tmp_path / "vectors.txt").unlink()
    assert command("resume", tmp_path / "killed").code == 0
    first, second = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "killed"))
    assert first == second


def test_the_encoder_is_reused_with_the_static_vectors_beside_its_output(tmp_path, translator):
    sets = toy_tasks.write_sets(tmp_path, "classify", 64, 16)
    result = finetune(TaskArguments("classify", sets, features="all"), translator, tmp_path / "run", epochs=15,
                      seed=SEED, changes=["training.batch_size=16", "training.learning_rate=0.01"])
    assert result["validation_loss"] < result["unigram_loss"]
    model = stemma.load(tmp_path / "run")
    head, network = model.network.heads["task"], model.network
    assert isinstance(head, LayerMixHead) and head.ends and head.reader.input_size == WIDTH + 32
    assert list(network.parts) == ["encoder"]
    ids = torch.tensor([model.require_tokenizer().encode("the old clerk reads the book").ids])
    with torch.no_grad():
        output = network({"encoder": model.encoder_stream(ids)}, keep_hidden_states=True)
        features = head.mix_layers(output.all_hidden_states("encoder"))[0]
        embedded = list(network.embedding.tokens(ids)[0])
        layers = [[dict(direction.named_parameters()) for direction in layer.directions]
                  for layer in network.encoder.layers]
        expected = torch.stack([torch.cat(pair) for pair in
                                zip(embedded, literal.encode(embedded, layers)[0][-1], strict=True)])
    assert_close(features, expected)
    before = stemma.load(translator).network.state_dict()
    after = network.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in after if not name.startswith("heads."))


def test_the_encoder_can_be_fine_tuned(tmp_path, translator):
    sets = toy_tasks.write_sets(tmp_path, "classify", 64, 16)
    result = finetune(TaskArguments("classify", sets), translator, tmp_path / "run", epochs=15, seed=SEED,
                      changes=["training.batch_size=16", "training.learning_rate=0.01"])
    assert result["validation_loss"] < result["unigram_loss"]


@pytest.mark.parametrize(("options", "changes", "message"), [
    ({"vectors": "nowhere.txt"}, [], "there is no vector file nowhere.txt"),
    ({}, ["network.embedding.width=9"], "have 12 numbers and the embedding 9"),
    ({}, ["tokenizer.kind=bpe", "tokenizer.vocab_size=500"], "set tokenizer.kind=word"),
    ({"init_from": "other"}, [], "--from starts from a trained one"),
    ({}, ["network.embedding.tied=true"], "needs a matrix of its own")])
def test_what_does_not_fit_is_refused(tmp_path, files, options, changes, message):
    with pytest.raises(UserError) as caught:
        pretrain("cove@tiny", files / "source.txt", tmp_path / "run", target=files / "target.txt", steps=1,
                 changes=[*CHANGES, *changes], **{"vectors": files / "vectors.txt", **options})
    assert message in str(caught.value) + str(caught.value.problems)
