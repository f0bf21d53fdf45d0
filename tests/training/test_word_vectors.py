"""word2vec, fastText and GloVe in run folders: counts and steps, resume after a kill, files for other programs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from closeness import assert_close
from commands import has_checkpoint
from commands import start_unreported as start
from commands import stemma_unreported as run
from literal.glove import LiteralGlove, count_neighbors

import stemma
from stemma.errors import UserError
from stemma.exchange.vectors import open_vectors
from stemma.training.glove import Glove
from stemma.training.pretrain import open_run
from stemma.training.run_folder import RunConfig, TextReadingOptions, create_run
from stemma.training.train_state import TrainState
from stemma.vectors.fasttext_file import read_fasttext_file
from stemma.vectors.files import read_vectors

SMALL = ["network.width=8", "training.batch_size=2", "corpus.sequence_length=64", "training.method.min_count=2",
         "training.threads=1"]
OFTEN = [*SMALL, "training.checkpoint_every=2", "training.validate_every=50"]
KINDS = {"cbow": ("word2vec@tiny", []),
         "skip-gram": ("word2vec@tiny", ["objective.word_context.architecture=skip_gram"]),
         "tree": ("word2vec@tiny", ["objective.word_context.hierarchical_softmax=true",
                                    "objective.word_context.negatives=0"]),
         "fasttext": ("fasttext@tiny", ["objective.word_context.buckets=300", "training.method.subsample=0.01"]),
         "glove": ("glove@tiny", ["objective.word_context.window=4", "training.method.epochs=3"])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, text_file):
    """A folder with a corpus of words."""
    folder = tmp_path_factory.mktemp("vectors")
    completed = run("tokenizer", "train", text_file, "--for", "word2vec", "--kind", "word", "--vocab-size", 300,
                    "--lowercase", "--out", "tok", folder=folder)
    assert completed.code == 0, completed.err
    completed = run("corpus", "build", text_file, "--tokenizer", "tok", "--out", "corp", folder=folder)
    assert completed.code == 0, completed.err
    return folder


@pytest.fixture(scope="module")
def finished(folder):
    """A finished run of each kind."""
    pytest.importorskip("gensim")
    for kind, (recipe, changes) in KINDS.items():
        stemma.pretrain(recipe, folder / "corp", folder / kind, changes=[*OFTEN, *changes])
    return folder


def result(run_folder) -> dict:
    return json.loads((run_folder / "result.json").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_they_learn_which_words_are_neighbours(finished, kind):
    values = result(finished / kind)
    assert values["validation_loss"] < values["unigram_loss"] - 0.02, values
    assert values["loss"] < values["unigram_loss"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_ends_with_the_same_bytes(finished, kind, tmp_path):
    recipe, changes = KINDS[kind]
    killed = finished / f"{kind}-killed"
    start("pretrain", recipe, "--corpus", "corp", "--out", killed, *OFTEN, *changes,
          folder=finished).kill_when(lambda: has_checkpoint(killed, 4))
    assert not (killed / "result.json").exists()
    resumed = run("resume", killed, "--json", folder=finished)
    assert resumed.code == 0, resumed.err
    for key in ("steps", "tokens", "loss", "validation_loss"):
        assert result(killed)[key] == result(finished / kind)[key], key
    files = [path / "model" / "model.safetensors" for path in (killed, finished / kind)]
    assert files[0].read_bytes() == files[1].read_bytes()


# ---- GloVe against its transcription ----

@pytest.fixture
def glove(folder, tmp_path):
    """A method with an opened run, before its first step."""
    recipe = stemma.recipe("glove@tiny", [*SMALL, *KINDS["glove"][1], "training.method.x_max=2.0"])
    config = RunConfig(str(folder / "corp"), [], stemma.training.budget.Budget("steps", 1000), 0, None,
                       TextReadingOptions(), split_first=True)
    create_run(tmp_path / "run", recipe, config, False)
    trainer = open_run(tmp_path / "run", False).trainer
    yield trainer.method
    trainer.loader.close()


def step(method: Glove) -> None:
    method.train_step(method.next_batch(method.loader, TrainState(), 64, 0.0), TrainState(), 0.0)


def pairs_of(method: Glove) -> list[tuple[int, int, float]]:
    """(word, context, count) in the order of training."""
    words = len(method.word_ids)
    triples = []
    for key, count in np.array(method.merged()).tolist():
        diagonal, row = divmod(key, words)
        triples.append((int(method.word_ids[method.word_at_row[row]]),
                        int(method.word_ids[method.word_at_column[(row + diagonal) % words]]), count / method.unit))
    return triples


def test_counts_are_those_of_the_transcription_whatever_the_parts(glove):
    method = glove
    while method.counted < method.total_tokens:
        step(method)
    assert len(method.parts) > 5
    documents = [method.tokens(index, index + 1).tolist() for index in range(len(method.spans))]
    expected = count_neighbors(documents, set(method.word_ids.tolist()), 4)
    counted = {(word, context): count for word, context, count in pairs_of(method)}
    assert counted.keys() == expected.keys()
    assert all(math.isclose(counted[pair], expected[pair], rel_tol=1e-12) for pair in expected)


def test_steps_are_those_of_one_pair_after_the_other(glove):
    method = glove
    while method.counted < method.total_tokens:
        step(method)
    words = {int(token): method.left[i, :-2].astype(float).tolist() for i, token in enumerate(method.word_ids)}
    contexts = {int(token): method.right[i, :-2].astype(float).tolist() for i, token in enumerate(method.word_ids)}
    literal = LiteralGlove(words, contexts, 2.0, 0.75, 0.05)
    costs = [literal.train(*pair) for _ in range(2) for pair in pairs_of(method)]
    while method.epoch < 2:
        cost = method._train()
    assert_close(cost, sum(costs[len(costs) // 2:]) / (len(costs) // 2))
    for index, token in enumerate(method.word_ids.tolist()):
        assert_close(method.left[index].tolist(), [*literal.w[token], literal.b[token], 1.0])
        assert_close(method.right[index].tolist(), [*literal.c[token], 1.0, literal.d[token]])
    method.to_network()
    vectors = method.embedding.weight[torch.from_numpy(method.word_ids)]
    assert_close(vectors, torch.from_numpy(method.left + method.right)[:, :-2])  # published: word + context


def test_no_word_occurs_twice_on_a_diagonal(glove):
    method = glove
    while method.counted < method.total_tokens:
        step(method)
    keys = np.array(method.merged())[:, 0].astype(np.int64)
    assert (np.diff(keys) > 0).all()
    triples = pairs_of(method)
    for diagonal in np.unique(keys // len(method.word_ids)):
        part = [triples[i] for i in np.flatnonzero(keys // len(method.word_ids) == diagonal)]
        for side in (0, 1):
            assert len({triple[side] for triple in part}) == len(part)


# ---- files for other programs ----

def test_exported_vectors_are_read_by_gensim_and_fasttext(finished, tmp_path):
    gensim, fasttext = pytest.importorskip("gensim.models"), pytest.importorskip("fasttext")
    vectors = open_vectors(finished / "cbow")
    for name, options in (("word2vec", {}), ("word2vec-binary", {"binary": True}), ("glove", {"no_header": True})):
        stemma.export(finished / "cbow", name, tmp_path / name)
        theirs = gensim.KeyedVectors.load_word2vec_format(str(tmp_path / name), **options)
        assert theirs.index_to_key == list(vectors.words)
        assert np.array_equal(theirs.vectors, vectors.matrix)

    stemma.export(finished / "fasttext", "fasttext", tmp_path / "model.bin")
    vectors = open_vectors(finished / "fasttext")
    library = fasttext.load_model(str(tmp_path / "model.bin"))
    facebook = gensim.fasttext.load_facebook_model(str(tmp_path / "model.bin"))
    ours = read_vectors(tmp_path / "model.bin")
    assert library.get_words() == list(vectors.words) == ours.words == facebook.wv.index_to_key
    for word in (*vectors.words[:5], "unseenword", "苹果"):
        for other in (library.get_word_vector(word), facebook.wv[word], ours.vector(word)):
            assert np.allclose(vectors.vector(word), other, atol=1e-5)
    counts = read_fasttext_file(tmp_path / "model.bin").counts
    assert (np.diff(counts) <= 0).all() and counts.min() >= 2
    with pytest.raises(UserError, match="holds vectors of character n-grams"):
        stemma.export(finished / "cbow", "fasttext", tmp_path / "none.bin")


def test_sentences_are_those_of_the_text_without_rare_words(finished):
    opened = open_run(finished / "cbow", False)
    method = opened.trainer.method
    tokens = method.tokens(0, 20)
    known = method.counts[tokens] > 0
    sentences = list(method._sentences(tokens, method.span_tokens[:21]))
    assert [word for sentence in sentences for word in sentence] == method.spelling[tokens[known]].tolist()
    lengths = [int(known[start:stop].sum()) for start, stop in np.column_stack([
        method.span_tokens[:20], method.span_tokens[1:21]])]
    assert [len(sentence) for sentence in sentences] == [length for length in lengths if length]
    opened.trainer.loader.close()


# ---- downstream ----

def test_they_are_the_first_layer_of_a_classifier_of_mean_vectors(finished, tmp_path, text_file):
    lines = [line for line in text_file.read_text().splitlines() if line.strip()][:80]
    rows = [f"{line}\t{'late' if line.split()[2] > 'n' else 'early'}" for line in lines]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows]))
    result = stemma.finetune("classify", finished / "fasttext", tmp_path / "train.tsv", tmp_path / "train.tsv",
                             tmp_path / "tuned", epochs=10, baseline=False)
    assert result["metrics"]["dev"]["accuracy"] > 0.7
    one, other = (stemma.predict(tmp_path / "tuned", [text])[0]["scores"]
                  for text in ("the old clerk", "clerk old the"))
    assert_close(list(one.values()), list(other.values()))  # a mean has no order
    assert len(open_vectors(tmp_path / "tuned")) > 10


@pytest.mark.parametrize("verb", ["fill", "perplexity", "pairs"])
def test_what_needs_a_language_model_is_refused(finished, tmp_path, verb):
    (tmp_path / "held.txt").write_text("The old clerk reads.")
    (tmp_path / "pairs.jsonl").write_text('{"sentence_good": "The old", "sentence_bad": "old The"}')
    argument = {"fill": "the [MASK]", "perplexity": tmp_path / "held.txt", "pairs": tmp_path / "pairs.jsonl"}[verb]
    with pytest.raises(UserError, match="has one vector for each word and predicts no token of a text"):
        stemma.load(finished / "cbow").fill(argument) if verb == "fill" else \
            getattr(stemma, verb)(finished / "cbow", argument)


# ---- what is refused ----

def test_a_text_with_fewer_words_than_the_window(tmp_path):
    (tmp_path / "short.txt").write_text("One two three.\n")
    for recipe in ("word2vec@tiny", "glove@tiny"):
        with pytest.raises(UserError, match=r"has \d words, and objective.word_context.window = 15 takes 15"):
            stemma.pretrain(recipe, tmp_path / "short.txt", tmp_path / recipe, changes=[
                "training.method.min_count=1", "objective.word_context.window=15"])
    (tmp_path / "rare.txt").write_text(" ".join(f"word{n}" for n in range(40)) + ".\n")
    with pytest.raises(UserError, match="fewer than two words occur at least training.method.min_count = 5"):
        stemma.pretrain("word2vec@tiny", tmp_path / "rare.txt", tmp_path / "rare")


def test_a_missing_library_is_named(monkeypatch):
    from stemma.vectors.optional_library import optional_library

    monkeypatch.setitem(__import__("sys").modules, "gensim.models", None)
    with pytest.raises(UserError, match=r'gensim is not installed: pip install "stemma-lm\[vectors\]"'):
        optional_library("gensim.models")


@pytest.mark.parametrize("change", [
    "objective.word_context.architecture=glove", "network.depth.kind=stacked", "objective.word_context.negatives=0",
    "training.optimizer.kind=lamb", "objective.word_context.min_n=9 objective.word_context.buckets=5"])
def test_changes_that_cannot_work(change):
    with pytest.raises(UserError, match="problem"):
        stemma.recipe("word2vec@tiny", change.split())
