"""Bits per byte of held-out text: the batched passes against one question at a time, in plain loops."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from conftest import small_text
from parity.reference import perturb

import stemma
from stemma.evaluation.perplexity import count_words, perplexity
from stemma.lab import continuation_likelihood, held_out_likelihood
from stemma.lab.held_out_likelihood import BITS, CONTINUATION, METRICS, PSEUDO, held_out_scores, word_of_tokens
from stemma.network.inputs_outputs import QUERY, Stream
from stemma.text.readers import Passage
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer
from stemma.visibility import Permutation, Prefix

LENGTH = 24
SMALL = ["network.layers=2", "network.width=24", "network.heads=3", "network.feedforward=32",
         f"corpus.sequence_length={LENGTH}"]
RELATIVE = ["network.attention.head_width=8", "network.memory.length=8"]
KINDS = {"bert": "wordpiece", "unilm": "wordpiece", "roberta": "byte_bpe", "albert": "unigram", "xlnet": "unigram",
         "gpt2": "byte_bpe", "gpt": "bpe", "electra": "wordpiece", "t5": "unigram", "bart": "byte_bpe", "mass": "bpe",
         "prefix-lm": "unigram"}
DOCUMENTS = [  # words of one piece and of many, more than a row holds, two scripts, odd white space, nothing at all
    "The old clerk reads a letter by the window, and a young reader incomprehensibly translates\tseven pages.\n\n"
    "The librarian  collects: one missing leaf!\n",
    "", " \n ", "the printer", "Our neighbour 北京大学 repairs the margin notes 读书 without a lamp.  "]


def tokenizer(kind: str, size: int = 190) -> Tokenizer:
    if kind == "byte_bpe":
        size += 256
    return train_tokenizer(iter([small_text(documents=8) + " 北京 读书"]), kind, size, lowercase=kind == "wordpiece")


def made(name: str, seed: int = 0, changes: Sequence[str] = ()) -> stemma.Model:
    words = tokenizer(KINDS[name])
    torch.manual_seed(seed)
    more = RELATIVE if name == "xlnet" else ["network.position.maximum=48"] if name in ("gpt", "gpt2") else []
    model = stemma.build(f"{name}@tiny", words.vocab_size, [*SMALL, *more, *changes])
    perturb(model.network, seed + 3)
    model.tokenizer = words
    return model


# One question at a time ----------------------------------------------------------------------------------------------


def words_slowly(text: str) -> list[list[int]]:
    """The characters of each word, with the white space before it; what is behind the last word belongs to it."""
    words, before = [], []
    for place, character in enumerate(text):
        before.append(place)
        goes_on = place and not text[place - 1].isspace() and not is_chinese(text[place - 1])
        if character.isspace():
            continue
        if goes_on and not is_chinese(character):
            words[-1] += before
        else:
            words.append(before)
        before = []
    if not words:
        return [before]
    words[-1] += before
    return words


def is_chinese(character: str) -> bool:
    return bool(re.match("[\u4e00-\u9fff]", character))


def tokens_slowly(words: Tokenizer, text: str) -> list[tuple[int, int]]:
    """(token, word) of a text; a word that shares a token with the one before it is the same word."""
    encoding = words.encode(text, special=False)
    belongs = {place: number for number, places in enumerate(words_slowly(text)) for place in places}
    belongs[len(text)] = max(belongs.values(), default=0)  # where a token of white space ends, once it has been trimmed
    same = {number: number for number in belongs.values()}
    for start, end in encoding.offsets:
        for place in range(start + 1, end):
            if belongs[place] != belongs[start]:
                same[belongs[place]] = same[belongs[start]]
    return [(token, same[belongs[start]]) for token, (start, _) in zip(encoding.ids, encoding.offsets, strict=True)]


def rows_slowly(tokens: list[tuple[int, int]], room: int) -> list[list[tuple[int, int]]]:
    rows: list[list[tuple[int, int]]] = [[]]
    for number in dict.fromkeys(number for _, number in tokens):
        word = [pair for pair in tokens if pair[1] == number]
        if len(rows[-1]) + len(word) > room and rows[-1]:
            rows.append([])
        rows[-1] += word
    return [row for row in rows if row]


@torch.no_grad()
def ask(model: stemma.Model, row: list[int], segments: list[int], hidden: set[int], place: int) -> float:
    """The log-probability of the token at one place, where some are hidden."""
    if model.recipe.name.startswith("xlnet"):
        order = torch.tensor([[2 if other in hidden else 0 for other in range(len(row))]])
        order[0, place] = 1
        stream = Stream(torch.tensor([row]), Permutation(order), segment_ids=torch.tensor([segments]),
                        query_positions=torch.tensor([[place]]))
        logits = model.lm_head()(model.network({"encoder": stream})[QUERY])[0, 0]
    else:
        mask = model.tokenizer.special_id("mask")
        shown = [mask if other in hidden else token for other, token in enumerate(row)]
        logits = model.logits(torch.tensor([shown]), token_type_ids=torch.tensor([segments]))[0, place]
    return float(logits.double().log_softmax(-1)[row[place]])


def slowly(model: stemma.Model, text: str) -> float:
    """The bits of a document: each row, each word, each piece."""
    words, corpus = model.tokenizer, model.recipe.settings.corpus
    laid = words.with_template(corpus.single, corpus.pair)
    extra = len(laid.encode("").ids)
    bits = 0.0
    for row in rows_slowly(tokens_slowly(words, text), LENGTH - extra):
        around = laid.encode("")
        front = 0 if model.recipe.name.startswith("xlnet") else 1
        ids = [*around.ids[:front], *(token for token, _ in row), *around.ids[front:]]
        segments = [*around.type_ids[:front], *[0] * len(row), *around.type_ids[front:]]
        places: dict[int, list[int]] = {}
        for place, (_, word) in enumerate(row):
            places.setdefault(word, []).append(place + front)
        for word, mine in places.items():
            for piece, place in enumerate(mine):
                turn = min(piece, 3)
                hidden = set()
                for other, theirs in places.items():
                    if other % 7 == word % 7:
                        hidden |= set(theirs[turn:]) if len(theirs) > turn else set(theirs)
                bits -= ask(model, ids, segments, hidden, place) / math.log(2)
    encoding = words.encode(text, special=False)
    return bits + sum(8 * len(text[start:end].encode()) for token, (start, end)
                      in zip(encoding.ids, encoding.offsets, strict=True) if token
                      == words.special_token_ids["unknown"])


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "unilm", "xlnet"])
def test_pseudo_likelihood_is_that_of_one_question_at_a_time(name, monkeypatch):
    model = made(name)
    lengths = [sum(1 for _ in part) for text in DOCUMENTS for part in words_in_pieces(model.tokenizer, text)]
    assert max(lengths) > 4 and min(lengths) == 1  # some words outlast the rounds
    monkeypatch.setattr(held_out_likelihood, "BATCH_TOKENS", 100)  # several batches, some with filling
    monkeypatch.setattr(held_out_likelihood, "LOGIT_CHUNK", 5)
    score = held_out_scores(model, DOCUMENTS)[PSEUDO]
    assert [bits for bits, _ in score.parts] == pytest.approx([slowly(model, text) for text in DOCUMENTS], rel=1e-4)
    assert [size for _, size in score.parts] == [len(text.encode()) for text in DOCUMENTS]
    assert score.value == pytest.approx(sum(bits for bits, _ in score.parts) / sum(size for _, size in score.parts))


def words_in_pieces(words: Tokenizer, text: str) -> list[list[int]]:
    numbers = word_of_tokens(text, words.encode(text, special=False).offsets)
    return [numbers[numbers == number].tolist() for number in dict.fromkeys(numbers.tolist())]


# Words ---------------------------------------------------------------------------------------------------------------


def test_words_are_counted_as_perplexity_counts_them():
    for text in [*DOCUMENTS, "中文 and English混合。", "a\u3000b \u00a0c", "\U00020000x"]:
        assert len(held_out_likelihood.WORD.findall(text)) == count_words(text)


@pytest.mark.parametrize("text,kinds", [
    (DOCUMENTS[0], ("wordpiece", "byte_bpe", "unigram", "character")),
    ("  begins with space, and has seven words \n", ("wordpiece", "byte_bpe", "unigram", "character")),
    (DOCUMENTS[4], ("wordpiece", "character"))])  # others know some Chinese characters as one token
def test_every_tokenizer_hides_the_same_words_in_the_same_pass(text, kinds):
    seen = []
    for kind in kinds:
        offsets = tokenizer(kind).encode(text, special=False).offsets
        numbers = word_of_tokens(text, offsets)
        hidden = ["".join(text[slice(*offsets[token])] for token in np.flatnonzero(numbers % 7 == turn))
                  for turn in range(7)]
        seen.append(["".join(sorted(set(re.sub(r"\s", "", one)))) for one in hidden])
    assert all(seen[0])
    assert all(other == seen[0] for other in seen)


def test_words_that_share_a_token_are_one():
    """Chinese characters that a vocabulary knows together, or bytes of which a token holds the end of one and the
    beginning of the next."""
    assert word_of_tokens("北京大学", [(0, 2), (2, 3), (3, 4)]).tolist() == [0, 2, 3]
    assert word_of_tokens("ab 北京大学 cd", [(0, 2), (3, 5), (4, 6), (6, 7), (7, 10)]).tolist() == [0, 1, 1, 4, 5]
    assert word_of_tokens("a b", [(0, 1), (1, 2), (2, 3)]).tolist() == [0, 1, 1]  # the space is the next word's
    assert word_of_tokens("a ", [(0, 1), (1, 2)]).tolist() == [0, 0]
    assert word_of_tokens("  ", [(0, 2)]).tolist() == [0]
    assert word_of_tokens("", []).tolist() == []


def test_a_word_that_no_row_holds_is_cut():
    model = made("roberta")
    text = "x" * 60 + " and more"
    assert len(model.tokenizer.encode(text, special=False).ids) > LENGTH
    (part,) = held_out_scores(model, [text])[PSEUDO].parts
    assert part[0] > 0 and part[1] == len(text)


# From one end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name,changes", [("gpt2", ()), ("gpt2", ["objective.causal_lm.direction=backward"]),
                                          ("xlnet", ())])
def test_bits_per_byte_are_those_of_perplexity(name, changes):
    model = made(name, changes=changes)
    texts = small_text(documents=3, seed=4).strip().split("\n\n")
    score = held_out_scores(model, texts)[BITS]
    listed = perplexity(model, [Passage(text, True, "here") for text in texts], by_document=True)
    assert not listed["unknown_rate"] and not listed["unscored"]
    assert score.value == pytest.approx(listed["bits_per_byte"], rel=1e-5)
    for (bits, size), one, text in zip(score.parts, listed["by_document"], texts, strict=True):
        assert bits / size == pytest.approx(one["bits_per_byte"], rel=1e-5) and size == len(text.encode())


def test_what_cannot_be_spelt_costs_its_bytes():
    model = made("gpt", changes=["tokenizer.lowercase=false"])
    strange = "the printer ☃☃☃"
    assert model.tokenizer.encode(strange, special=False).ids.count(model.tokenizer.special_token_ids["unknown"]) > 0
    listed = perplexity(model, [Passage(strange, True, "here")])
    (bits, size), = held_out_scores(model, [strange])[BITS].parts
    assert bits == pytest.approx(listed["bits_per_byte"] * size + 8 * len("☃☃☃".encode()), rel=1e-5)


def test_a_first_token_that_nothing_stands_before_costs_its_bytes():
    model = made("gpt2")
    model.tokenizer = train_tokenizer(iter([small_text(documents=8)]), "byte_bpe", model.network.vocab_size,
                                      lowercase=False, roles=set())
    assert model.document_separator_id is None
    (bits, size), = held_out_scores(model, ["the printer reads"])[BITS].parts
    listed = perplexity(model, [Passage("the printer reads", True, "here")])
    first = model.tokenizer.encode("the printer reads", special=False).offsets[0][1]
    assert listed["unscored"] == 1 and listed["bytes"] == size - first
    assert bits == pytest.approx(listed["bits_per_byte"] * (size - first) + 8 * first, rel=1e-5)


# Who can be asked what -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name,expected", [
    ("bert", [PSEUDO]), ("unilm", [PSEUDO]), ("gpt2", [BITS]), ("xlnet", [BITS, PSEUDO]), ("electra", []),
    ("t5", [CONTINUATION]), ("bart", [CONTINUATION]), ("mass", [CONTINUATION]), ("prefix-lm", [CONTINUATION])])
def test_who_can_be_asked_what(name, expected):
    model = made(name)
    model.network.train()
    found = held_out_scores(model, ["the printer reads a letter by the window."])
    assert list(found) == expected and set(found) <= set(METRICS)
    assert all(math.isfinite(score.value) and score.value > 0 for score in found.values())
    assert model.network.training


# How a text goes on --------------------------------------------------------------------------------------------------


@torch.no_grad()
def continued_slowly(model: stemma.Model, first: str, second: str, read: int = 99, most: int = 99) -> float:
    """Bits of the second half, every token by itself, with what each model reads spelled out."""
    words, name = model.tokenizer, model.recipe.name
    encoding = words.encode(first + second, special=False)
    cut = next(place for place, (_, end) in enumerate(encoding.offsets) if end > len(words.pre_normalize(first)))
    given, target = encoding.ids[:cut][-read:], encoding.ids[cut:][:most]
    start, end, mask = (words.special_token_ids.get(role) for role in ("start", "end", "mask"))
    bits = 0.0
    for place, token in enumerate(target):
        if name == "prefix-lm":
            stream = Stream(torch.tensor([given + target[:place]]), Prefix(torch.tensor([len(given)])))
            logits = model.lm_head()(model.network({"encoder": stream})["encoder"])
        else:
            source, written = {"t5": ([*given, words.special_token_ids["sentinel"], end],
                                      [words.special_token_ids["padding"], words.special_token_ids["sentinel"]]),
                               "bart": ([start, *given, mask, end], [end, start, *given]),
                               "mass": ([*given, end], [mask])}[name]
            logits = model.logits(torch.tensor([source]), decoder_input_ids=torch.tensor([written + target[:place]]))
        bits -= float(logits[0, -1].double().log_softmax(-1)[token]) / math.log(2)
    return bits


@pytest.mark.parametrize("name", ["t5", "bart", "mass", "prefix-lm"])
def test_the_second_half_given_the_first(name, monkeypatch):
    """Two stretches of six words and one of three, of unequal length in one batch; a word alone is not asked."""
    monkeypatch.setattr(continuation_likelihood, "CHUNK_WORDS", 6)
    model = made(name, changes=["corpus.sequence_length=64"])
    text = "The old clerk reads a letter by the window, and a young printer forgets"
    parts = [("The old clerk", " reads a letter"), (" by the window,", " and a young")]
    assert list(continuation_likelihood.split_halves(text)) == [*parts, (" printer", " forgets")]
    expected = [sum(continued_slowly(model, *two) for two in (*parts, (" printer", " forgets"))),
                continued_slowly(model, "the", " window")]
    found = held_out_scores(model, [text, "the window", "alone", ""])[CONTINUATION]
    sizes = [sum(len(second) for _, second in parts) + len(" forgets"), len(" window"), 0, 0]
    assert [size for _, size in found.parts] == sizes
    assert [bits for bits, _ in found.parts] == pytest.approx([*expected, 0, 0], rel=1e-4)
    assert found.value == pytest.approx(sum(expected) / sum(sizes), rel=1e-4)


def test_what_has_no_room_is_charged_by_the_byte():
    """A window that holds a part of the second half only: the rest costs eight bits a byte, as what is not spelt."""
    model = made("mass", changes=["corpus.sequence_length=10", "network.position.maximum=10"])
    text = "the old clerk reads seven letters by the window"
    ((first, second),) = continuation_likelihood.split_halves(text)
    behind = [place for place in model.tokenizer.encode(text, special=False).offsets if place[1] > len(first)]
    assert len(behind) > 10  # the decoder writes ten tokens, and the encoder reads nine and the end
    expected = continued_slowly(model, first, second, read=9, most=10) + 8 * sum(end - start
                                                                                for start, end in behind[10:])
    assert held_out_scores(model, [text])[CONTINUATION].parts == ((pytest.approx(expected, rel=1e-4), len(second)),)
