"""Building a corpus: tokens and boundaries, the same bytes for any number of workers, and errors."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from commands import process
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from stemma.atomic_files import sha256
from stemma.corpus import build as builder
from stemma.corpus import text_batches, tokenize_worker
from stemma.corpus.build import build_corpus
from stemma.corpus.cached_encoder import CachedEncoder, chunk_pattern
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.text.chinese_words import CJK_RUN
from stemma.text.tokenizer import Tokenizer

ENGLISH = "The quick brown fox isn't lazy. It jumps over 12 dogs!\nDoes it rest? No, never."
CHINESE = "我们在北京大学学习。Stemma是一个工具！南京市长江大桥很长。"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece() -> Backend:
    backend = Backend(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator([ENGLISH, CHINESE], trainer)
    return backend


def byte_level(add_prefix_space: bool = False) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>"], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    backend.train_from_iterator([ENGLISH, CHINESE, "a    b\n\n\n  c"], trainer)
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return backend


def unigram() -> Backend:
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator([ENGLISH, CHINESE], trainer)
    return backend


KINDS = {"wordpiece": wordpiece, "byte_level": byte_level, "unigram": unigram}


def tokenizer_folder(path: Path, backend: Backend) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    backend.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(params=KINDS)
def tokenizer(request, tmp_path) -> Path:
    return tokenizer_folder(tmp_path / "tokenizer", KINDS[request.param]())


@pytest.fixture
def bert(tmp_path) -> Path:
    return tokenizer_folder(tmp_path / "tokenizer", wordpiece())


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def random_text(rng: random.Random, documents: int) -> str:
    words = [*ENGLISH.split(), "我们在北京大学学习。", "naïve", "😀", "  ", "<mask>", "[MASK]", "\n"]
    return "\n\n".join(" ".join(rng.choices(words, k=rng.randint(1, 40))) for _ in range(documents))


@pytest.mark.parametrize("make", [wordpiece, byte_level, lambda: byte_level(True), unigram])
def test_the_cached_encoder_gives_the_tokens_of_the_whole_text(make):
    backend = make()
    encoder = CachedEncoder(backend, max_cached_characters=500)  # small, so that the cache is also emptied
    reference = encoder.backend
    alphabet = [*" \n\t\r\x0b\x0c\x1c\x85\xa0\u2000\u2028\u3000\u200b\u0301é中国。😀'!0", "foo", "The", "it's",
                "  ", "\n\n", "<mask>", "[MASK]", "<s>", "e\u0301", "\ufffd", "¨", " fox"]
    rng = random.Random(1)
    for _ in range(400):
        texts = ["".join(rng.choices(alphabet, k=rng.randint(0, 25))) for _ in range(3)]
        result, offset = encoder.encode(texts), 0
        for index, text in enumerate(texts):
            expected = reference.encode(text, add_special_tokens=False)
            span = slice(result.bounds[index], result.bounds[index + 1])
            assert result.ids[span].tolist() == expected.ids, repr(text)
            highest = np.maximum.accumulate(np.array(expected.offsets, np.int64).reshape(-1, 2))
            assert (result.starts[span] - offset).tolist() == highest[:, 0].tolist(), repr(text)
            assert (result.ends[span] - offset).tolist() == highest[:, 1].tolist(), repr(text)
            words = [None, *expected.word_ids]
            assert result.word_starts[span].tolist() == [a != b for a, b in zip(words[1:], words, strict=False)]
            offset += len(text)


def test_only_context_free_tokenizers_are_chunked():
    assert chunk_pattern(wordpiece()) and chunk_pattern(byte_level())
    assert chunk_pattern(byte_level(add_prefix_space=True)) is None
    assert chunk_pattern(unigram()) is None
    greedy = wordpiece()
    greedy.add_special_tokens([AddedToken("<x>", rstrip=True)])
    assert chunk_pattern(greedy) is None


def test_token_offsets_match_the_text_of_their_document(tmp_path, tokenizer):
    source = write(tmp_path / "text.txt", random_text(random.Random(2), 30))
    build_corpus([source], tokenizer, tmp_path / "corpus", workers=1)
    corpus = Corpus.open(tmp_path / "corpus")
    backend = CachedEncoder(corpus.tokenizer.backend).backend
    documents = [part for part in source.read_text(encoding="utf-8").split("\n\n") if part.strip()]
    texts = [corpus.document_text(index) for index in range(len(corpus.document_starts) - 1)]
    assert [text.split() for text in texts] == [text.split() for document in documents
                                                for text in document.split("\n \n") if text.strip()]
    for text, start, stop in zip(texts, corpus.document_starts, corpus.document_starts[1:], strict=False):
        encoding = backend.encode(text, add_special_tokens=False)
        assert corpus.values_between("tokens", start, stop).tolist() == encoding.ids
        assert corpus.values_between("starts", start, stop).tolist() == [first for first, _ in encoding.offsets]
        assert corpus.values_between("lengths", start, stop).tolist() == [last - first for first,
                                                                          last in encoding.offsets]
        assert start in corpus.sentence_starts
    assert corpus.token_counts.tolist() == np.bincount(corpus.values_between("tokens", 0, corpus.num_tokens),
                                                 minlength=corpus.tokenizer.vocab_size).tolist()


def test_sentence_starts_are_the_starts_of_sentences(tmp_path, tokenizer):
    build_corpus([write(tmp_path / "a.txt", ENGLISH)], tokenizer, tmp_path / "corpus", sentences="auto")
    corpus = Corpus.open(tmp_path / "corpus")
    starts = corpus.values_at("starts", corpus.sentence_starts[:-1])
    first_words = [corpus.document_text(0)[start:].split()[0] for start in starts]
    assert first_words == ["The", "It", "Does", "No,"]


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_chinese_word_starts_are_those_of_the_segmenter(tmp_path, make, monkeypatch):
    text = "Ab北京大学x很好 fox"  # the fake segmenter below makes words of two characters

    def pairs(text: str) -> np.ndarray:
        starts = np.zeros(len(text), bool)
        for run in CJK_RUN.finditer(text):
            starts[run.start() : run.end() : 2] = True
        return starts

    monkeypatch.setattr(tokenize_worker, "cjk_word_starts", pairs)
    tokenizer = tokenizer_folder(tmp_path / "t", make())
    build_corpus([write(tmp_path / "a.txt", text)], tokenizer, tmp_path / "corpus", workers=1)
    corpus = Corpus.open(tmp_path / "corpus")
    words = corpus.values_between("word_starts", 0, corpus.num_tokens)
    starts = corpus.values_between("starts", 0, corpus.num_tokens)
    first_characters = [text[start:].strip()[0] for start in starts[words]]
    assert sorted(first_characters) == sorted("A北大x很f")
    assert len(set(starts[words].tolist())) == len(first_characters)  # once per character, even with several tokens


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path, bert, monkeypatch):
    source = write(tmp_path / "text.txt", random_text(random.Random(3), 200))
    monkeypatch.setattr(text_batches, "BATCH_CHARACTERS", 1000)
    listings = []
    for workers in (1, 2):
        out = tmp_path / f"corpus-{workers}"
        done: list[int] = []
        build_corpus([source], bert, out, workers=workers, shard_tokens=500, progress=done.append)
        assert len(done) > 10 and done == sorted(done)
        listings.append({file.relative_to(out): sha256(file) for file in sorted(out.rglob("*")) if file.is_file()})
    assert listings[0] == listings[1]
    assert len(list((tmp_path / "corpus-1").glob("shard-*"))) > 5


def test_a_document_longer_than_a_passage_stays_one_document(tmp_path, bert):
    text = " ".join(f"word{index}" for index in range(60_000))  # one line, more than one passage
    assert len(text) > 400_000
    build_corpus([write(tmp_path / "long.txt", text)], bert, tmp_path / "corpus", workers=1)
    corpus = Corpus.open(tmp_path / "corpus")
    assert corpus.document_starts.tolist() == [0, corpus.num_tokens]
    assert corpus.document_text(0) == text
    starts, lengths = (corpus.values_between(name, 0, corpus.num_tokens).tolist() for name in ("starts", "lengths"))
    assert "".join(text[start : start + length] for start, length in zip(starts, lengths, strict=True)) == \
        text.replace(" ", "")


def test_documents_without_tokens_are_dropped(tmp_path, bert):
    lines = ["one fox", "\u200b", "two dogs", "\u200b\u200b", "\u200b"]  # BERT's normaliser deletes such characters
    build_corpus([write(tmp_path / "a.txt", "\n".join(lines))], bert, tmp_path / "corpus", documents="line",
                 shard_tokens=1)
    corpus = Corpus.open(tmp_path / "corpus")
    assert [corpus.document_text(index) for index in range(len(corpus.document_starts) - 1)] == ["one fox",
                                                                                                 "two dogs"]
    assert (np.diff(corpus.document_starts) > 0).all() and (np.diff(corpus.sentence_starts) > 0).all()


def test_unknown_tokens_are_counted(tmp_path, bert):
    summary = build_corpus([write(tmp_path / "a.txt", "fox Ж fox fox")], bert, tmp_path / "corpus")
    unknown = json.loads((bert / "tokenizer.json").read_text())["model"]["vocab"]["[UNK]"]
    corpus = Corpus.open(tmp_path / "corpus")
    assert corpus.token_counts[unknown] == 1
    assert summary["unknown_rate"] == 1 / corpus.num_tokens


def test_invalid_input_is_refused_and_leaves_no_files(tmp_path, bert):
    text = write(tmp_path / "a.txt", ENGLISH)
    full = tmp_path / "full"
    full.mkdir()
    write(full / "mine.txt", "keep me")
    for arguments, settings, words in [
        (([text], bert, full), {}, "not empty"),
        (([text], tmp_path / "nowhere", tmp_path / "out"), {}, "nowhere"),
        (([tmp_path / "missing.txt"], bert, tmp_path / "out"), {}, "missing.txt"),
        (([text], bert, tmp_path / "out"), {"sentences": "lines"}, 'Did you mean "line"'),
        (([text], bert, tmp_path / "out"), {"documents": "blnk"}, "blank"),
        (([text], bert, tmp_path / "out"), {"workers": 0}, "--workers"),
        (([write(tmp_path / "b.txt", "\u200b")], bert, tmp_path / "out"), {}, "no token"),
        (([text], bert, tmp_path / "out"), {"user_dictionary": tmp_path / "none.txt"}, "none.txt"),
    ]:
        before = sorted(path.name for path in tmp_path.iterdir())
        with pytest.raises(UserError, match=words):
            build_corpus(*arguments, **settings)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (full / "mine.txt").read_text() == "keep me"


def test_a_full_disk_leaves_the_old_corpus(tmp_path, bert, monkeypatch):
    text = write(tmp_path / "a.txt", ENGLISH)
    build_corpus([text], bert, tmp_path / "corpus")
    before = sorted(path.name for path in tmp_path.iterdir())

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(builder.ShardWriter, "_write", full)
    with pytest.raises(UserError, match="disk is full"):
        build_corpus([text], bert, tmp_path / "corpus", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert Corpus.open(tmp_path / "corpus").document_text(0) == ENGLISH


def test_overwrite_replaces_the_corpus(tmp_path, bert):
    first, second = write(tmp_path / "a.txt", "fox"), write(tmp_path / "b.txt", "dogs")
    build_corpus([first], bert, tmp_path / "corpus")
    build_corpus([second], Tokenizer.load(bert), tmp_path / "corpus", overwrite=True)
    assert Corpus.open(tmp_path / "corpus").document_text(0) == "dogs"


def test_a_killed_worker_raises_an_error_at_once(tmp_path, bert, monkeypatch):
    """As when a worker is killed for its memory use: no hang, and no partial corpus."""
    source = write(tmp_path / "text.txt", random_text(random.Random(4), 200))
    monkeypatch.setattr(text_batches, "BATCH_CHARACTERS", 1000)

    others = psutil.Process().children()  # this process may have children of other tests

    def kill_a_worker(done: int) -> None:
        for child in psutil.Process().children():
            if child not in others:
                child.kill()

    with pytest.raises(UserError, match="worker"):
        build_corpus([source], bert, tmp_path / "corpus", workers=2, progress=kill_a_worker)
    assert not (tmp_path / "corpus").exists() and not list(tmp_path.glob(".corpus*"))


def test_killing_the_builder_leaves_no_corpus_and_no_worker(tmp_path, bert):
    source = write(tmp_path / "text.txt", random_text(random.Random(5), 300))
    script = write(tmp_path / "script.py", f"""
import psutil, time
from stemma.corpus import build, text_batches
text_batches.BATCH_CHARACTERS = 1000
def stop(done):
    print(*[child.pid for child in psutil.Process().children()], flush=True)
    time.sleep(60)
build.build_corpus([{str(source)!r}], {str(bert)!r}, {str(tmp_path / "corpus")!r}, workers=2, progress=stop)
""")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with process(sys.executable, script, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    assert not (tmp_path / "corpus").exists()
    deadline = time.monotonic() + 20
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))


def alive(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE  # a zombie has ended
    except psutil.NoSuchProcess:
        return False
