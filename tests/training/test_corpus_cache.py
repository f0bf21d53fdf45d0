"""The corpus cache: keyed by content and settings, rebuilt when damaged, built by one process at a time."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from commands import process

from stemma.atomic_files import lock_folder
from stemma.corpus.corpus import Corpus
from stemma.corpus.subset import train_validation_split
from stemma.errors import UserError
from stemma.recipe_loading import recipe
from stemma.text.tokenizer import Tokenizer
from stemma.training import corpus_cache
from stemma.training.budget import Budget
from stemma.training.corpus_cache import adopt_tokenizer, build_or_load_corpus, cache_folder
from stemma.training.pretrain import _open_corpus
from stemma.training.run_folder import RunConfig, TextReadingOptions, read_run

BERT = recipe("bert@tiny", ["tokenizer.vocab_size=260"])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STEMMA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_folder_follows_the_environment_variables(cache, tmp_path, monkeypatch):
    assert cache_folder() == cache
    monkeypatch.delenv("STEMMA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "stemma"


def test_a_cached_corpus_is_not_rebuilt(cache, text_file, monkeypatch, caplog):
    first = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions())
    assert len(caplog.messages) >= 2 and first.path.is_relative_to(cache)
    monkeypatch.setattr(corpus_cache, "build_corpus", None)
    monkeypatch.setattr(corpus_cache, "train_tokenizer", None)
    caplog.clear()
    again = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions())
    assert again.fingerprint == first.fingerprint and caplog.messages == []


def test_text_tokenizer_and_reading_options_are_part_of_the_key(cache, text_file, tokenizer_folder, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text() + "One line more.\n")
    copy = tmp_path / "copy.txt"
    copy.write_bytes(text_file.read_bytes())

    def corpus_path(path=text_file, chosen=BERT, tokenizer=None, **reading):
        return build_or_load_corpus([str(path)], chosen, TextReadingOptions(**reading), tokenizer).path

    assert corpus_path(copy) == corpus_path()
    changed = [corpus_path(), corpus_path(other), corpus_path(documents="line"),
               corpus_path(tokenizer=Tokenizer.load(tokenizer_folder)),
               corpus_path(chosen=recipe("bert@tiny", ["tokenizer.vocab_size=200"])),
               corpus_path(chosen=recipe("bert@tiny", ["tokenizer.vocab_size=260", "tokenizer.lowercase=false"]))]
    assert len(set(changed)) == len(changed)
    assert corpus_path(chosen=recipe("bert@mini", ["tokenizer.vocab_size=260"])) == corpus_path()  # any size


FRACTION = 0.1
WORD_TOKENIZER = ["tokenizer.kind=word", "tokenizer.vocab_size=2000", f"corpus.validation={FRACTION}"]


def write_text(tmp_path, layout: str) -> list[str]:
    """Text in which every sentence has a word that no other has."""
    lines = [f"the clerk number{'abcdefghij'[n // 10]}{'abcdefghij'[n % 10]} reads a long letter." for n in range(100)]
    separator = {"documents": "\n\n", "one document": "\n", "one line": " "}.get(layout)
    if separator:
        (tmp_path / "text.txt").write_text(separator.join(line.capitalize() for line in lines))
        return [str(tmp_path / "text.txt")]
    (tmp_path / "text.tsv").write_text("source\ttarget\n" + "".join(f"{line}\tsome answer\n" for line in lines))
    return [str(tmp_path / "text.tsv")]


@pytest.mark.parametrize(("name", "layout"), [("bert@tiny", "documents"), ("bert@tiny", "one document"),
                                              ("bert@tiny", "one line"), ("transformer@tiny", "pairs")])
def test_the_tokenizer_is_not_trained_on_held_out_text(cache, tmp_path, name, layout):
    text, resolved = write_text(tmp_path, layout), recipe(name, WORD_TOKENIZER)
    corpus = build_or_load_corpus(text, resolved, TextReadingOptions(), split_first=True)
    training, validation = train_validation_split(corpus, FRACTION)
    unknown = corpus.tokenizer.special_token_ids["unknown"]

    def num_unknown(view) -> list[int]:
        return [int((corpus.values_between("tokens", start, stop) == unknown).sum()) for start,
                stop in view.document_ranges]

    assert sum(num_unknown(training)) == 0 and len(training.document_ranges) and len(validation.document_ranges)
    sentences = np.asarray(corpus.sentence_starts[:-1])
    num_sentences = [((sentences >= start) & (sentences < stop)).sum() for start, stop in validation.document_ranges]
    # every held-out sentence has one unknown word
    expected = len(validation.document_ranges) if layout == "pairs" else sum(num_sentences)
    assert sum(num_unknown(validation)) == expected
    assert 0.7 * FRACTION < validation.num_tokens / corpus.num_tokens < 1.5 * FRACTION
    assert training.num_tokens + validation.num_tokens == corpus.num_tokens


def test_the_validation_split_is_part_of_the_key(cache, tmp_path):
    """Old entries, whose tokenizer was trained on all text, and those of another fraction are not reused."""
    text = write_text(tmp_path, "documents")

    def corpus_path(*changes: str, split_first: bool = True):
        return build_or_load_corpus(text, recipe("bert@tiny", [*WORD_TOKENIZER, *changes]), TextReadingOptions(),
                                split_first=split_first).path

    assert corpus_path() == corpus_path()
    assert len({corpus_path(), corpus_path(split_first=False), corpus_path("corpus.validation=0.2")}) == 3


def test_a_run_from_before_the_split_resumes_with_its_tokenizer(cache, tmp_path):
    """Its run.json has no `split_first`, so the tokenizer is trained on all text, as it was then."""
    text = write_text(tmp_path, "documents")
    (tmp_path / "run").mkdir()
    plan = RunConfig(None, text, Budget("steps", 1), 0)
    plan.write(tmp_path / "run")
    stored = json.loads((tmp_path / "run/run.json").read_text())
    del stored["split_first"]
    (tmp_path / "run/run.json").write_text(json.dumps(stored))
    (tmp_path / "run/checksums.json").unlink()  # such a run has no checksums either
    (tmp_path / "run/recipe.toml").write_text(recipe("bert@tiny", WORD_TOKENIZER).to_toml())
    old_recipe, old_config = read_run(tmp_path / "run")
    corpus = _open_corpus(tmp_path / "run", old_recipe, old_config)
    assert (corpus.values_between("tokens", 0,
                                  corpus.num_tokens) != corpus.tokenizer.special_token_ids["unknown"]).all()


def test_an_explicit_tokenizer_is_used(cache, text_file, tokenizer_folder):
    tokenizer = Tokenizer.load(tokenizer_folder)
    corpus = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions(), tokenizer)
    assert corpus.tokenizer.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("name", ["corpus/shard-00000/tokens.bin", "corpus/manifest.json", "tokenizer/tokenizer.json"])
def test_a_damaged_entry_is_rebuilt(cache, text_file, name, caplog):
    first = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions())
    entry = first.path.parent
    (entry / name).write_bytes(b"damaged")
    if name.startswith("tokenizer"):
        (entry / "corpus/manifest.json").unlink()
    again = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions())
    assert again.fingerprint == first.fingerprint
    assert any("made again" in text and str(entry) in text for text in caplog.messages)


def test_empty_text_leaves_no_cache_entry(cache, tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match=r"empty\.txt"):
        build_or_load_corpus([str(tmp_path / "empty.txt")], BERT, TextReadingOptions())
    assert list(cache.iterdir()) == []


def test_temporary_files_of_a_killed_process_are_removed(cache, text_file):
    entry = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions()).path.parent
    (entry / ".corpus.0123abcd.tmp/shard-00000").mkdir(parents=True)
    build_or_load_corpus([str(text_file)], BERT, TextReadingOptions())
    assert sorted(path.name for path in entry.iterdir()) == ["corpus", "tokenizer"]


def test_text_from_standard_input_is_cached_by_content(cache, text_file, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text_file.read_bytes())))
    piped = build_or_load_corpus(["-"], BERT, TextReadingOptions())
    assert piped.path == build_or_load_corpus([str(text_file)], BERT, TextReadingOptions()).path


def test_of_two_concurrent_processes_only_one_builds_the_corpus(cache, text_file):
    code = ("import logging, sys; from stemma.recipe_loading import recipe;"
            "from stemma.training.run_folder import TextReadingOptions;"
            "from stemma.training.corpus_cache import build_or_load_corpus; logging.basicConfig(level='INFO');"
            "print(build_or_load_corpus([sys.argv[1]], recipe('bert@tiny'), TextReadingOptions()).fingerprint)")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", code, text_file]
    with process(*command, **pipes) as first, process(*command, **pipes) as second:
        outputs = [child.communicate(timeout=60) for child in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    (first_digest, first_log), (second_digest, second_log) = outputs
    assert first_digest == second_digest and {"building" in first_log, "building" in second_log} == {True, False}
    assert len(list(cache.glob("*/corpus"))) == 1 and not list(cache.glob("*/.*"))


def test_a_folder_is_locked_by_one_process(tmp_path):
    with lock_folder(tmp_path, "taken"), pytest.raises(UserError, match="taken"), lock_folder(tmp_path, "taken"):
        pass
    with lock_folder(tmp_path, "taken"):
        pass


def test_the_recipe_adopts_the_tokenizer_of_the_corpus(cache, text_file):
    corpus = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions())
    adopted = adopt_tokenizer(BERT, corpus)
    assert adopted.settings.tokenizer.vocab_size == corpus.tokenizer.vocab_size != 260
    assert adopted.origin["tokenizer.vocab_size"] == "corpus" and adopted.origin["tokenizer.kind"] == "bert"
    assert adopt_tokenizer(adopted, corpus) is adopted


def test_a_tokenizer_of_another_kind_and_the_same_size_is_adopted(corpus_folder):
    """Another kind resets the settings of the old kind, also a vocabulary size that happens to be equal."""
    corpus = Corpus.open(corpus_folder)
    resolved = recipe("gpt2@tiny", [f"tokenizer.vocab_size={corpus.tokenizer.vocab_size}"])
    adopted = adopt_tokenizer(resolved, corpus).settings.tokenizer
    assert (adopted.kind, adopted.vocab_size) == ("wordpiece", corpus.tokenizer.vocab_size)


def test_a_note_about_line_endings_appears_at_most_twice(cache, text_file, tmp_path, caplog):
    """Once when the tokenizer is trained and once when text is tokenised, although it is read four times."""
    (tmp_path / "crlf.txt").write_bytes(text_file.read_bytes().replace(b"\n", b"\r\n"))
    build_or_load_corpus([str(tmp_path / "crlf.txt")], BERT, TextReadingOptions(), split_first=True)
    assert len([text for text in caplog.messages if "CRLF" in text]) == 2
