"""Raw text becomes a corpus once: kept by content and settings, made again when damaged, by one process at a time."""

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


def test_where_the_cache_is(cache, tmp_path, monkeypatch):
    assert cache_folder() == cache
    monkeypatch.delenv("STEMMA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "stemma"


def test_the_second_time_nothing_is_made(cache, text_file, monkeypatch, caplog):
    first = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions())
    assert len(caplog.messages) >= 2 and first.path.is_relative_to(cache)
    monkeypatch.setattr(corpus_cache, "build_corpus", None)
    monkeypatch.setattr(corpus_cache, "train_tokenizer", None)
    caplog.clear()
    again = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions())
    assert again.fingerprint == first.fingerprint and caplog.messages == []


def test_what_makes_another_corpus(cache, text_file, tokenizer_folder, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text() + "One line more.\n")
    copy = tmp_path / "copy.txt"
    copy.write_bytes(text_file.read_bytes())

    def place(path=text_file, chosen=BERT, tokenizer=None, **reading):
        return build_or_load_corpus([str(path)], chosen, TextReadingOptions(**reading), tokenizer).path

    assert place(copy) == place()
    changed = [place(), place(other), place(documents="line"), place(tokenizer=Tokenizer.load(tokenizer_folder)),
               place(chosen=recipe("bert@tiny", ["tokenizer.vocab_size=200"])),
               place(chosen=recipe("bert@tiny", ["tokenizer.vocab_size=260", "tokenizer.lowercase=false"]))]
    assert len(set(changed)) == len(changed)
    assert place(chosen=recipe("bert@mini", ["tokenizer.vocab_size=260"])) == place()  # one for every size


SHARE = 0.1
OF_WORDS = ["tokenizer.kind=word", "tokenizer.vocab_size=2000", f"corpus.validation={SHARE}"]


def written(tmp_path, shape: str) -> list[str]:
    """Text in which every sentence has a word of its own."""
    lines = [f"the clerk number{'abcdefghij'[n // 10]}{'abcdefghij'[n % 10]} reads a long letter." for n in range(100)]
    between = {"documents": "\n\n", "one document": "\n", "one line": " "}.get(shape)
    if between:
        (tmp_path / "text.txt").write_text(between.join(line.capitalize() for line in lines))
        return [str(tmp_path / "text.txt")]
    (tmp_path / "text.tsv").write_text("source\ttarget\n" + "".join(f"{line}\tsome answer\n" for line in lines))
    return [str(tmp_path / "text.tsv")]


@pytest.mark.parametrize(("name", "shape"), [("bert@tiny", "documents"), ("bert@tiny", "one document"),
                                             ("bert@tiny", "one line"), ("transformer@tiny", "pairs")])
def test_the_tokenizer_does_not_see_what_is_held_out(cache, tmp_path, name, shape):
    text, chosen = written(tmp_path, shape), recipe(name, OF_WORDS)
    corpus = build_or_load_corpus(text, chosen, TextReadingOptions(), split_first=True)
    training, held = train_validation_split(corpus, SHARE)
    unknown = corpus.tokenizer.special_token_ids["unknown"]

    def unknown_in(view) -> list[int]:
        return [int((corpus.values_between("tokens", start, stop) == unknown).sum()) for start,
                stop in view.document_ranges]

    assert sum(unknown_in(training)) == 0 and len(training.document_ranges) and len(held.document_ranges)
    sentences = np.asarray(corpus.sentence_starts[:-1])
    asked = [((sentences >= start) & (sentences < stop)).sum() for start, stop in held.document_ranges]
    # each has its own word
    assert sum(unknown_in(held)) == (len(held.document_ranges) if shape == "pairs" else sum(asked))
    assert 0.7 * SHARE < held.num_tokens / corpus.num_tokens < 1.5 * SHARE
    assert training.num_tokens + held.num_tokens == corpus.num_tokens


def test_what_is_held_out_is_part_of_the_key(cache, tmp_path):
    """Old entries, whose tokenizer saw everything, are never taken for new ones; nor those of another share."""
    text = written(tmp_path, "documents")

    def place(*changes: str, split_first: bool = True):
        return build_or_load_corpus(text, recipe("bert@tiny", [*OF_WORDS, *changes]), TextReadingOptions(),
                                split_first=split_first).path

    assert place() == place()
    assert len({place(), place(split_first=False), place("corpus.validation=0.2")}) == 3


def test_a_run_that_was_started_before_goes_on_with_the_tokenizer_it_had(cache, tmp_path):
    """Its plan says nothing of a split, so its corpus is made as it was then."""
    text = written(tmp_path, "documents")
    (tmp_path / "run").mkdir()
    plan = RunConfig(None, text, Budget("steps", 1), 0)
    plan.write(tmp_path / "run")
    stored = json.loads((tmp_path / "run/run.json").read_text())
    del stored["split_first"]
    (tmp_path / "run/run.json").write_text(json.dumps(stored))
    (tmp_path / "run/checksums.json").unlink()  # which such a run did not have either
    (tmp_path / "run/recipe.toml").write_text(recipe("bert@tiny", OF_WORDS).to_toml())
    wanted, read = read_run(tmp_path / "run")
    corpus = _open_corpus(tmp_path / "run", wanted, read)
    assert (corpus.values_between("tokens", 0,
                                  corpus.num_tokens) != corpus.tokenizer.special_token_ids["unknown"]).all()


def test_a_given_tokenizer_is_used(cache, text_file, tokenizer_folder):
    given = Tokenizer.load(tokenizer_folder)
    corpus = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions(), given)
    assert corpus.tokenizer.fingerprint == given.fingerprint


@pytest.mark.parametrize("name", ["corpus/shard-00000/tokens.bin", "corpus/manifest.json", "tokenizer/tokenizer.json"])
def test_a_damaged_entry_is_made_again(cache, text_file, name, caplog):
    first = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions())
    place = first.path.parent
    (place / name).write_bytes(b"damaged")
    if name.startswith("tokenizer"):
        (place / "corpus/manifest.json").unlink()
    again = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions())
    assert again.fingerprint == first.fingerprint
    assert any("made again" in text and str(place) in text for text in caplog.messages)


def test_text_that_gives_nothing_leaves_nothing(cache, tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match=r"empty\.txt"):
        build_or_load_corpus([str(tmp_path / "empty.txt")], BERT, TextReadingOptions())
    assert list(cache.iterdir()) == []


def test_leftovers_of_a_kill_are_cleared_away(cache, text_file):
    place = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions()).path.parent
    (place / ".corpus.0123abcd.tmp/shard-00000").mkdir(parents=True)
    build_or_load_corpus([str(text_file)], BERT, TextReadingOptions())
    assert sorted(path.name for path in place.iterdir()) == ["corpus", "tokenizer"]


def test_standard_input(cache, text_file, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text_file.read_bytes())))
    piped = build_or_load_corpus(["-"], BERT, TextReadingOptions())
    assert piped.path == build_or_load_corpus([str(text_file)], BERT, TextReadingOptions()).path


def test_two_processes_at_once_share_the_work(cache, text_file):
    """Both get the corpus, and only one makes it."""
    code = ("import logging, sys; from stemma.recipe_loading import recipe;"
            "from stemma.training.run_folder import TextReadingOptions;"
            "from stemma.training.corpus_cache import build_or_load_corpus; logging.basicConfig(level='INFO');"
            "print(build_or_load_corpus([sys.argv[1]], recipe('bert@tiny'), TextReadingOptions()).fingerprint)")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", code, text_file]
    with process(*command, **pipes) as one, process(*command, **pipes) as other:
        answers = [child.communicate(timeout=60) for child in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], answers
    (first, told), (second, told_too) = answers
    assert first == second and {"building" in told, "building" in told_too} == {True, False}
    assert len(list(cache.glob("*/corpus"))) == 1 and not list(cache.glob("*/.*"))


def test_a_folder_is_held_by_one(tmp_path):
    with lock_folder(tmp_path, "taken"), pytest.raises(UserError, match="taken"), lock_folder(tmp_path, "taken"):
        pass
    with lock_folder(tmp_path, "taken"):
        pass


def test_the_corpus_brings_its_tokenizer(cache, text_file):
    corpus = build_or_load_corpus([str(text_file)], BERT, TextReadingOptions())
    adopted = adopt_tokenizer(BERT, corpus)
    assert adopted.settings.tokenizer.vocab_size == corpus.tokenizer.vocab_size != 260
    assert adopted.origin["tokenizer.vocab_size"] == "corpus" and adopted.origin["tokenizer.kind"] == "bert"
    assert adopt_tokenizer(adopted, corpus) is adopted


def test_a_tokenizer_of_another_kind_and_the_same_size_is_adopted(corpus_folder):
    """Another kind drops what was said for the old one, also the size that happens to be right."""
    corpus = Corpus.open(corpus_folder)
    wanted = recipe("gpt2@tiny", [f"tokenizer.vocab_size={corpus.tokenizer.vocab_size}"])
    adopted = adopt_tokenizer(wanted, corpus).settings.tokenizer
    assert (adopted.kind, adopted.vocab_size) == ("wordpiece", corpus.tokenizer.vocab_size)


def test_text_that_is_read_four_times_is_heard_of_twice(cache, text_file, tmp_path, caplog):
    """Once when a vocabulary is learnt and once when it is tokenised; to split it, it is read in between."""
    (tmp_path / "crlf.txt").write_bytes(text_file.read_bytes().replace(b"\n", b"\r\n"))
    build_or_load_corpus([str(tmp_path / "crlf.txt")], BERT, TextReadingOptions(), split_first=True)
    assert len([text for text in caplog.messages if "CRLF" in text]) == 2
