"""The parts of a pipeline: archive, texts, replay, contamination, held-out loss, interpolation and gains."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import small_text
from toy_pipeline import SMALL, examples

from stemma.corpus.corpus import Corpus
from stemma.corpus.subset import train_validation_split
from stemma.recipe_loading import recipe
from stemma.tasks.data.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample
from stemma.tasks.pipeline.contamination import contamination
from stemma.tasks.pipeline.forgetting import bits_per_byte, build_with_weights, held_out_loss, load_state
from stemma.tasks.pipeline.interpolation import interpolate_weights
from stemma.tasks.pipeline.stage_gains import stage_gains
from stemma.tasks.pipeline.stage_texts import (
    example_documents,
    example_texts,
    numbered_texts,
    sample_replay,
    write_documents,
)
from stemma.text.ngrams import normalized_words
from stemma.training.pretrain import pretrain
from stemma.training.run_folder import TextReadingOptions
from stemma.training.run_graph import RunArchive

# --- archive ----------------------------------------------------------------------------------------------------------


def write_content(run, folder, content):
    (run / folder).mkdir(parents=True, exist_ok=True)
    (run / folder / "content").write_text(content)


def read_content(run, folder):
    file = run / folder / "content"
    return file.read_text() if file.is_file() else None


def test_a_changed_run_is_archived_and_restored(tmp_path):
    before = {"stages/a": "1" * 64, "stages/b": "2" * 64, "stages/b/blended": "3" * 64}
    assert set(RunArchive(tmp_path, "").reconcile(before, []).values()) == {"new"}
    for folder, digest in before.items():
        write_content(tmp_path, folder, digest[0])
    after = {"stages/a": "1" * 64, "stages/b": "4" * 64, "stages/b/blended": "5" * 64}
    assert RunArchive(tmp_path, "").reconcile(after, []) == {"stages/a": "kept", "stages/b": "changed",
                                                    "stages/b/blended": "changed"}
    assert read_content(tmp_path, "stages/a") == "1" and not (tmp_path / "stages/b").exists()
    write_content(tmp_path, "stages/b", "4")
    assert set(RunArchive(tmp_path, "").reconcile(before, []).values()) == {"kept"}
    assert [read_content(tmp_path, folder) for folder in before] == ["1", "2", "3"]
    assert set(RunArchive(tmp_path, "").reconcile(after, [])) == set(after)
    assert read_content(tmp_path, "stages/b") == "4"
    assert RunArchive(tmp_path, "").digests() == after


def test_a_changed_interpolation_keeps_the_run(tmp_path):
    RunArchive(tmp_path, "").reconcile({"stages/b": "2" * 64, "stages/b/blended": "3" * 64}, [])
    write_content(tmp_path, "stages/b", "2")
    write_content(tmp_path, "stages/b/blended", "3")
    states = RunArchive(tmp_path, "").reconcile({"stages/b": "2" * 64, "stages/b/blended": "6" * 64}, [])
    assert states == {"stages/b": "kept", "stages/b/blended": "changed"} and read_content(tmp_path, "stages/b") == "2"
    assert not (tmp_path / "stages/b/blended").exists()


def test_a_kill_during_archiving_leaves_no_run_under_a_wrong_digest(tmp_path, monkeypatch):
    before, after = {"stages/a": "1" * 64}, {"stages/a": "2" * 64}
    RunArchive(tmp_path, "").reconcile(before, [])
    write_content(tmp_path, "stages/a", "1")

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("stemma.training.run_graph.write_object", killed)  # after the old one has left
        RunArchive(tmp_path, "").reconcile(after, [])
    assert RunArchive(tmp_path, "").reconcile(after, []) == {"stages/a": "changed"} and read_content(tmp_path,
                                                                                              "stages/a") is None
    assert RunArchive(tmp_path, "").reconcile(before, []) == {"stages/a": "kept"}
    assert read_content(tmp_path, "stages/a") == "1"


# --- texts ------------------------------------------------------------------------------------------------------------


def test_example_documents_contain_each_text_once():
    question = QuestionExample("x", "1", "A long paragraph.", "Why?", (), True)
    other = QuestionExample("x", "2", "A long paragraph.", "Who?", (), True)
    tagged = TaggedExample("x", ("an", "old", "tree"), ("O", "O", "O"))
    chinese = TaggedExample("x", ("北", "京"), ("B-LOC", "I-LOC"))
    choice = ChoiceExample("x", "It rained.", "", ("So it was wet.", "So it was dry."), 0)
    pair = TextExample("x", ("first", "second"), "1")
    assert example_documents([question, other, question, tagged, chinese, choice, pair]) == [
        "A long paragraph.\nWhy?", "Who?", "an old tree", "北京", "It rained.\nSo it was wet.\nSo it was dry.",
        "first\nsecond"]


def test_documents_are_readable_in_any_encoding(tmp_path):
    write_documents(tmp_path / "texts.jsonl", ["naïve\nand 北京", "two"], "body")
    reading = TextReadingOptions(field="body", encoding="gbk", documents="line")
    assert list(numbered_texts([str(tmp_path / "texts.jsonl")], reading)) == [(0, "naïve\nand 北京"), (1, "two")]


def test_a_corpus_and_its_text_are_the_same_documents(corpus_folder, text_file):
    assert [text for _, text in numbered_texts([str(corpus_folder)], TextReadingOptions())] \
        == [text for _, text in numbered_texts([str(text_file)], TextReadingOptions())]


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_replay_never_samples_held_out_text(corpus_folder, share):
    corpus = Corpus.open(corpus_folder)
    held = train_validation_split(corpus, share)[1].document_ranges[:, 0]
    hidden = {corpus.document_text(int(np.searchsorted(corpus.document_starts, start,
                                                       side="right")) - 1) for start in held}
    drawn, characters = sample_replay(corpus, share, 10**9, seed=0)
    assert hidden and not hidden & set(drawn) and len(drawn) + len(hidden) == len(corpus.document_starts) - 1
    assert characters == sum(map(len, drawn))
    some, characters = sample_replay(corpus, share, 2000, seed=0)
    assert 2000 <= characters < 2000 + max(map(len, some)) and some == drawn[:len(some)]
    assert sample_replay(corpus, share, 2000, seed=1)[0] != some


def test_replay_of_one_long_document_ends_where_its_held_out_part_begins(tmp_path, tokenizer_folder):
    from small_corpora import corpus_of

    sentences = [f"{line}" for line in small_text(1, 80, seed=5).strip().split("\n")]
    corpus = corpus_of(tmp_path, [sentences], tokenizer_folder)
    (training, held), text = (view.document_ranges for view in train_validation_split(corpus,
                                                                                      0.2)), corpus.document_text(0)
    cut = int(corpus.values_between("starts", held[0, 0], held[0, 0] + 1)[0])
    assert training[0, 1] == held[0, 0] and 0 < cut < len(text)
    assert sample_replay(corpus, 0.2, 10**9, seed=0)[0] == [text[:cut]]


# --- contamination ----------------------------------------------------------------------------------------------------


def test_contamination_equals_counting_by_hand():
    n = 5
    text = small_text(30, seed=7)
    documents = text.strip().split("\n\n")
    training_grams = {tuple(words[at:at + n]) for words in map(normalized_words, documents)
                      for at in range(len(words) - n + 1)}
    task_examples = [TextExample(f"line {index}", (sentence,), "x")
                     for index, (sentence, _) in enumerate(examples(40, 1))]
    task_examples.append(TextExample("short", ("too short",), "x"))
    rows = contamination({"general": lambda: iter(enumerate(documents)), "none": lambda: iter(())},
                         {"dev": task_examples, "test": []}, n)
    grams = [[tuple(words[at:at + n]) for at in range(len(words) - n + 1)] for words in
             (normalized_words(example_texts(example)[0]) for example in task_examples)]
    hits = [sum(gram in training_grams for gram in example_grams) for example_grams in grams]
    assert [row["text"] for row in rows] == ["general", "none"] and rows[1]["share"] == rows[1]["read"] == 0
    assert rows[0]["share"] == pytest.approx(sum(hits) / sum(map(len, grams))) and 0 < rows[0]["share"] < 1
    counted = sum(bool(example_grams) and hit >= len(example_grams) / 2
                  for hit, example_grams in zip(hits, grams, strict=True))
    assert rows[0]["read"] == counted > 0
    assert rows[0]["too_short"] == 1 and rows[0]["examples"] == 41
    best = max(hit / max(1, len(example_grams)) for hit, example_grams in zip(hits, grams, strict=True))
    assert rows[0]["worst"][0]["share"] == pytest.approx(best)


# --- measures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "gpt2", "electra"])
def test_the_held_out_loss_is_that_of_the_run(tmp_path, corpus_folder, name):
    changes = [change for change in SMALL if not change.startswith("tokenizer")]
    result = pretrain(f"{name}@tiny", corpus_folder, tmp_path / "run", steps=3, changes=changes)
    ran, corpus = recipe(tmp_path / "run" / "recipe.toml"), Corpus.open(corpus_folder)
    network = build_with_weights(ran, load_state(tmp_path / "run"))
    loss = held_out_loss(ran, network, corpus)
    assert loss == pytest.approx(result["validation_loss"], abs=2e-3 if name == "electra" else 1e-5)
    bits = bits_per_byte(ran, corpus, loss)
    assert (bits is not None) == (name == "gpt2")
    if bits is not None:
        assert 0.1 < bits / (loss / np.log(2)) < 0.6  # some tokens a byte


def test_a_missing_head_is_taken_from_the_previous_stage(tmp_path, corpus_folder):
    changes = [change for change in SMALL if not change.startswith("tokenizer")]
    pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=2, changes=changes)
    ran, weights = recipe(tmp_path / "run" / "recipe.toml"), load_state(tmp_path / "run")
    body = {name: tensor for name, tensor in weights.items() if not name.startswith("heads.")}
    assert build_with_weights(ran, body) is None
    lent = build_with_weights(ran, body, weights)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in lent.state_dict().items() if name in weights)
    grown = {name: torch.cat([tensor, tensor[:1]]) if name.startswith("embedding.tokens") else tensor
             for name, tensor in weights.items()}
    assert build_with_weights(ran, grown) is None  # of another shape: not the same network


def test_weights_are_interpolated_linearly():
    start = {"body": torch.tensor([0.0, 4.0]), "gone": torch.ones(1), "grown": torch.zeros(2)}
    end = {"body": torch.tensor([2.0, 0.0]), "new": torch.tensor([5.0]), "grown": torch.ones(3),
           "count": torch.tensor(3)}
    interpolated = interpolate_weights(start, end, 0.25)
    assert set(interpolated) == set(end) and interpolated["body"].tolist() == [0.5, 3.0]
    assert interpolated["new"].tolist() == [5.0] and interpolated["grown"].tolist() == [1.0] * 3
    assert interpolated["count"] == 3
    assert torch.equal(interpolate_weights(start, end, 1.0)["body"], end["body"])
    assert torch.equal(interpolate_weights(start, end, 0.0)["body"], start["body"])


# --- conclusions ------------------------------------------------------------------------------------------------------


def test_gains_are_paired_by_seed():
    rows = stage_gains({"general": [0.70, 0.80, 0.60], "domain": [0.75, 0.86, 0.65], "task": [0.74, 0.88, 0.65]})
    assert rows[0]["mean"] == pytest.approx(0.70) and rows[0]["spread"] == pytest.approx(0.1) and "gain" not in rows[0]
    assert rows[1]["gain"] == pytest.approx(0.16 / 3)
    assert rows[1]["verdict"] == "improved"  # though seeds differ by more
    assert rows[1]["error"] == pytest.approx(np.std([0.05, 0.06, 0.05], ddof=1) / 3**0.5)
    assert rows[2]["verdict"] == "inconclusive"
    assert stage_gains({"a": [0.5, 0.6], "b": [0.3, 0.41]})[1]["verdict"] == "hurt"
    assert stage_gains({"a": [2.0, 3.0], "b": [1.0, 2.1]}, higher_is_better=False)[1]["verdict"] == "improved"
    assert stage_gains({"a": [0.5], "b": [0.9]})[1]["verdict"] == "one seed: no interval"
    assert stage_gains({"a": [0.5, 0.6], "b": [0.5, 0.6]})[1]["verdict"] == "inconclusive"
    assert json.loads(json.dumps(rows)) == rows
