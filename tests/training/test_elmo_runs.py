"""ELMo in pre-training: both directions read the same text, rows keep their state, unknown words are spelled."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import stemma
from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.network.inputs.characters import ELMO_TEXT_ENDS, KNOWN
from stemma.objectives import build_objectives, collate, group_objectives
from stemma.recipe_loading import recipe
from stemma.text.train_tokenizer import train_tokenizer
from stemma.training.pretrain import pretrain, resume
from stemma.training.samplers import RowSamplers

SMALL = ["network.width=24", "network.embedding.width=12", "corpus.sequence_length=9",
         "training.batch_size=6", "training.warmup_steps=1", "training.checkpoint_every=2", "training.log_every=1",
         "training.keep_checkpoints=9", "network.inputs.characters.longest=9", "corpus.validation=0.2"]


@pytest.fixture(scope="module")
def words(tmp_path_factory, text_file):
    """A corpus of words in which the rarer ones are outside of the vocabulary."""
    folder = tmp_path_factory.mktemp("words")
    train_tokenizer([text_file.read_text()], "word", 40, lowercase=False,
                    roles={"begin", "end", "padding", "unknown"}).save(folder / "tokenizer")
    build_corpus([text_file], folder / "tokenizer", folder / "corpus", workers=1)
    return folder / "corpus"


def samplers_of(corpus: Corpus, *changes: str) -> RowSamplers:
    resolved = recipe("elmo@tiny", [*SMALL, *changes])
    return RowSamplers(resolved.settings, corpus, group_objectives(resolved, build_objectives(resolved)), 0)


def test_both_directions_read_the_whole_text_in_opposite_order(words):
    samplers = samplers_of(Corpus.open(words))
    (group,) = samplers.groups
    sampler = samplers.sampler(0, 9)
    read = [[] for _ in range(6)]
    for batch in range(sampler.batches_in_epoch()):
        assert sampler.continues_previous is (batch > 0)
        draft, _ = samplers._draft(sampler, group, 6)
        assert draft.reversed_rows.tolist() == [False] * 3 + [True] * 3
        for row in range(6):
            read[row] += draft.original_ids[row, :draft.lengths[row]].tolist()
    for lane in range(3):
        assert read[lane] == read[lane + 3][::-1] and len(read[lane]) > 100
    assert read[0] != read[1]


def test_unknown_words_have_the_spelling_of_the_text(words):
    corpus = Corpus.open(words)
    samplers = samplers_of(corpus)
    draft = samplers.sample_draft(samplers.groups[0], 9)
    settings = recipe("elmo@tiny", SMALL).settings.network.inputs
    batch = collate(draft, inputs=settings)
    symbols, ids = batch.streams["encoder"].inputs["characters"], batch.streams["encoder"].input_ids
    unknown = ids == corpus.tokenizer.special_token_ids["unknown"]
    assert unknown.any() and torch.equal(symbols[..., 0] != KNOWN, unknown)
    text = {word for document in range(len(corpus.document_starts) - 1)
            for word in corpus.document_text(document).replace(".", " ").replace(",", " ").split()}
    vocabulary = corpus.tokenizer.backend.get_vocab()
    for row in symbols[unknown].tolist():
        spelled = bytes(symbol for symbol in row if symbol < 256).decode()
        assert any(word.startswith(spelled) and word not in vocabulary for word in text) and len(spelled) <= 7
    # the module reads those spellings, and those of the vocabulary elsewhere
    model = stemma.build("elmo@tiny", corpus.tokenizer.vocab_size, SMALL)
    model.network.start_inputs(corpus.tokenizer)
    module = model.network.embedding.inputs["characters"]
    end = corpus.tokenizer.special_token_ids["end"]
    assert module.spelling[end].tolist()[1] == ELMO_TEXT_ENDS
    with torch.no_grad():
        vectors, plain = module(ids, symbols), module(ids)
    same = (vectors - plain).abs().amax(-1) < 1e-6
    assert same[~unknown].all() and not same[unknown].any()
    first = int(unknown.flatten().nonzero()[0])
    module.spelling[0] = symbols[unknown][0]
    with torch.no_grad():
        assert torch.allclose(module(torch.tensor([[0]]))[0, 0], vectors.flatten(0, 1)[first], atol=1e-5)


@pytest.mark.parametrize("changes", [
    ["objective.bidirectional_lm.sampled=10"],
    ["network.depth.hidden=20", "network.depth.projection=true", "network.depth.cell_clip=0.1",
     "network.depth.projection_clip=0.1"]], ids=["sampled", "clipped"])
def test_a_resumed_run_equals_an_uninterrupted_one(words, tmp_path, changes):
    pretrain("elmo@tiny", words, tmp_path / "whole", steps=4, changes=[*SMALL, *changes])
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/model")
    (tmp_path / "run/result.json").unlink()
    shutil.rmtree(tmp_path / "run/checkpoints/step-4")
    resume(tmp_path / "run")
    first, second = ((tmp_path / name / "model/model.safetensors").read_bytes() for name in ("whole", "run"))
    assert first == second
    state = load_file(tmp_path / "run/checkpoints/step-2/memory.safetensors")
    assert len(state) == 4 and all(part.shape[:2] == (6, 1) for part in state.values())  # output and cell, two layers
    model = stemma.load(tmp_path / "run")
    assert np.isfinite(stemma.embed(model, ["the old river", "an unheardof word"])).all()


def test_a_text_has_the_probability_of_the_direction_from_left_to_right(words, tmp_path, text_file):
    pretrain("elmo@tiny", words, tmp_path / "run", steps=2, changes=SMALL)
    model = stemma.load(tmp_path / "run")
    (tmp_path / "held.txt").write_text("the river")
    result = stemma.perplexity(model, tmp_path / "held.txt")
    tokenizer, end = model.tokenizer, model.tokenizer.special_token_ids["end"]
    ids = [end, *tokenizer.encode("the river", special=False).ids, end]
    with torch.no_grad():
        logits = model.logits(torch.tensor([ids[:-1]]))[0].log_softmax(-1)
    losses = [-float(row[token]) for row, token in zip(logits, ids[1:], strict=True)]
    assert np.log(result["perplexity"]) == pytest.approx(np.mean(losses[:result["tokens"]]), rel=1e-3)
    assert model.generate("the", tokens=3, greedy=True)[0].tokens
