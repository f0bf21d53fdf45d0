"""Bits per byte of held-out text: the batched passes against plain loops that predict one token at a time."""

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
DOCUMENTS = [  # words of one and of many subtokens, more than a row holds, two scripts, odd white space, empty
    "The old clerk reads a letter by the window, and a young reader incomprehensibly translates\tseven pages.\n\n"
    "The librarian  collects: one missing leaf!\n",
    "", " \n ", "the printer", "Our neighbour 北京大学 repairs the margin notes 读书 without a lamp.  "]


def small_tokenizer(kind: str, size: int = 190) -> Tokenizer:
    if kind == "byte_bpe":
        size += 256
    return train_tokenizer(iter([small_text(documents=8) + " 北京 读书"]), kind, size, lowercase=kind == "wordpiece")


def random_model(name: str, seed: int = 0, changes: Sequence[str] = ()) -> stemma.Model:
    tokenizer = small_tokenizer(KINDS[name])
    torch.manual_seed(seed)
    extra = RELATIVE if name == "xlnet" else ["network.position.maximum=48"] if name in ("gpt", "gpt2") else []
    model = stemma.build(f"{name}@tiny", tokenizer.vocab_size, [*SMALL, *extra, *changes])
    perturb(model.network, seed + 3)
    model.tokenizer = tokenizer
    return model


# One token at a time ------------------------------------------------------------------------------------------------


def slow_words(text: str) -> list[list[int]]:
    """The character indices of each word, with the white space before it (and after the last one)."""
    words, before = [], []
    for index, character in enumerate(text):
        before.append(index)
        in_word = index and not text[index - 1].isspace() and not is_chinese(text[index - 1])
        if character.isspace():
            continue
        if in_word and not is_chinese(character):
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


def slow_tokens(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """(token, word) of a text; a word that shares a token with the one before it is the same word."""
    encoding = tokenizer.encode(text, special=False)
    word_of = {index: word for word, indices in enumerate(slow_words(text)) for index in indices}
    word_of[len(text)] = max(word_of.values(), default=0)  # start of a trimmed token of white space
    merged = {word: word for word in word_of.values()}
    for start, end in encoding.offsets:
        for index in range(start + 1, end):
            if word_of[index] != word_of[start]:
                merged[word_of[index]] = merged[word_of[start]]
    return [(token, merged[word_of[start]]) for token, (start, _) in zip(encoding.ids, encoding.offsets, strict=True)]


def slow_rows(tokens: list[tuple[int, int]], max_tokens: int) -> list[list[tuple[int, int]]]:
    rows: list[list[tuple[int, int]]] = [[]]
    for word_index in dict.fromkeys(word for _, word in tokens):
        word = [pair for pair in tokens if pair[1] == word_index]
        if len(rows[-1]) + len(word) > max_tokens and rows[-1]:
            rows.append([])
        rows[-1] += word
    return [row for row in rows if row]


@torch.no_grad()
def token_log_probability(model: stemma.Model, row: list[int], segments: list[int], masked: set[int],
                          position: int) -> float:
    """The log-probability of the token at a position, with some positions masked."""
    if model.recipe.name.startswith("xlnet"):
        order = torch.tensor([[2 if other in masked else 0 for other in range(len(row))]])
        order[0, position] = 1
        stream = Stream(torch.tensor([row]), Permutation(order), segment_ids=torch.tensor([segments]),
                        query_positions=torch.tensor([[position]]))
        logits = model.lm_head()(model.network({"encoder": stream})[QUERY])[0, 0]
    else:
        mask = model.tokenizer.special_id("mask")
        input_ids = [mask if other in masked else token for other, token in enumerate(row)]
        logits = model.logits(torch.tensor([input_ids]), token_type_ids=torch.tensor([segments]))[0, position]
    return float(logits.double().log_softmax(-1)[row[position]])


def slow_bits(model: stemma.Model, text: str) -> float:
    """The bits of a document: for each row, word and subtoken."""
    tokenizer, corpus = model.tokenizer, model.recipe.settings.corpus
    special = tokenizer.with_template(corpus.single, corpus.pair).encode("")
    bits = 0.0
    for row in slow_rows(slow_tokens(tokenizer, text), LENGTH - len(special.ids)):
        front = 0 if model.recipe.name.startswith("xlnet") else 1
        ids = [*special.ids[:front], *(token for token, _ in row), *special.ids[front:]]
        segments = [*special.type_ids[:front], *[0] * len(row), *special.type_ids[front:]]
        positions_of: dict[int, list[int]] = {}
        for index, (_, word) in enumerate(row):
            positions_of.setdefault(word, []).append(index + front)
        for word, positions in positions_of.items():
            for subtoken, position in enumerate(positions):
                round_index = min(subtoken, 3)
                masked = set()
                for other, others in positions_of.items():
                    if other % 7 == word % 7:  # masked in the same pass
                        masked |= set(others[round_index:]) if len(others) > round_index else set(others)
                bits -= token_log_probability(model, ids, segments, masked, position) / math.log(2)
    encoding = tokenizer.encode(text, special=False)
    return bits + sum(8 * len(text[start:end].encode()) for token, (start, end)
                      in zip(encoding.ids, encoding.offsets, strict=True) if token
                      == tokenizer.special_token_ids["unknown"])


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "unilm", "xlnet"])
def test_pseudo_likelihood_equals_predicting_one_token_at_a_time(name, monkeypatch):
    model = random_model(name)
    lengths = [sum(1 for _ in part) for text in DOCUMENTS for part in subtokens_by_word(model.tokenizer, text)]
    assert max(lengths) > 4 and min(lengths) == 1  # some words have more subtokens than rounds
    monkeypatch.setattr(held_out_likelihood, "BATCH_TOKENS", 100)  # several batches, some with padding
    monkeypatch.setattr(held_out_likelihood, "LOGIT_CHUNK", 5)
    score = held_out_scores(model, DOCUMENTS)[PSEUDO]
    assert [bits for bits, _ in score.parts] == pytest.approx([slow_bits(model, text) for text in DOCUMENTS], rel=1e-4)
    assert [size for _, size in score.parts] == [len(text.encode()) for text in DOCUMENTS]
    assert score.value == pytest.approx(sum(bits for bits, _ in score.parts) / sum(size for _, size in score.parts))


def subtokens_by_word(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    words = word_of_tokens(text, tokenizer.encode(text, special=False).offsets)
    return [words[words == word].tolist() for word in dict.fromkeys(words.tolist())]


# Words ---------------------------------------------------------------------------------------------------------------


def test_words_are_counted_as_in_perplexity():
    for text in [*DOCUMENTS, "中文 and English混合。", "a\u3000b \u00a0c", "\U00020000x"]:
        assert len(held_out_likelihood.WORD.findall(text)) == count_words(text)


@pytest.mark.parametrize("text,kinds", [
    (DOCUMENTS[0], ("wordpiece", "byte_bpe", "unigram", "character")),
    ("  begins with space, and has seven words \n", ("wordpiece", "byte_bpe", "unigram", "character")),
    (DOCUMENTS[4], ("wordpiece", "character"))])  # in the others some Chinese characters share a token
def test_every_tokenizer_masks_the_same_words_in_the_same_pass(text, kinds):
    masked_characters = []
    for kind in kinds:
        offsets = small_tokenizer(kind).encode(text, special=False).offsets
        words = word_of_tokens(text, offsets)
        masked = ["".join(text[slice(*offsets[token])] for token in np.flatnonzero(words % 7 == pass_index))
                  for pass_index in range(7)]
        masked_characters.append(["".join(sorted(set(re.sub(r"\s", "", part)))) for part in masked])
    assert all(masked_characters[0])
    assert all(other == masked_characters[0] for other in masked_characters)


def test_words_that_share_a_token_are_one_word():
    """Several Chinese characters in one token, or a token with the last byte of one character and the first byte of the
    next."""
    assert word_of_tokens("北京大学", [(0, 2), (2, 3), (3, 4)]).tolist() == [0, 2, 3]
    assert word_of_tokens("ab 北京大学 cd", [(0, 2), (3, 5), (4, 6), (6, 7), (7, 10)]).tolist() == [0, 1, 1, 4, 5]
    assert word_of_tokens("a b", [(0, 1), (1, 2), (2, 3)]).tolist() == [0, 1, 1]  # a space belongs to the next word
    assert word_of_tokens("a ", [(0, 1), (1, 2)]).tolist() == [0, 0]
    assert word_of_tokens("  ", [(0, 2)]).tolist() == [0]
    assert word_of_tokens("", []).tolist() == []


def test_a_word_longer_than_a_row_is_split():
    model = random_model("roberta")
    text = "x" * 60 + " and more"
    assert len(model.tokenizer.encode(text, special=False).ids) > LENGTH
    (part,) = held_out_scores(model, [text])[PSEUDO].parts
    assert part[0] > 0 and part[1] == len(text)


# Causal models -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name,changes", [("gpt2", ()), ("gpt2", ["objective.causal_lm.direction=backward"]),
                                          ("xlnet", ())])
def test_bits_per_byte_equal_those_of_perplexity(name, changes):
    model = random_model(name, changes=changes)
    texts = small_text(documents=3, seed=4).strip().split("\n\n")
    score = held_out_scores(model, texts)[BITS]
    reference = perplexity(model, [Passage(text, True, "here") for text in texts], by_document=True)
    assert not reference["unknown_rate"] and not reference["unscored"]
    assert score.value == pytest.approx(reference["bits_per_byte"], rel=1e-5)
    for (bits, size), document, text in zip(score.parts, reference["by_document"], texts, strict=True):
        assert bits / size == pytest.approx(document["bits_per_byte"], rel=1e-5) and size == len(text.encode())


def test_unknown_tokens_cost_8_bits_per_byte():
    model = random_model("gpt", changes=["tokenizer.lowercase=false"])
    text = "the printer ☃☃☃"
    assert model.tokenizer.encode(text, special=False).ids.count(model.tokenizer.special_token_ids["unknown"]) > 0
    reference = perplexity(model, [Passage(text, True, "here")])
    (bits, size), = held_out_scores(model, [text])[BITS].parts
    assert bits == pytest.approx(reference["bits_per_byte"] * size + 8 * len("☃☃☃".encode()), rel=1e-5)


def test_a_first_token_without_context_costs_8_bits_per_byte():
    model = random_model("gpt2")
    model.tokenizer = train_tokenizer(iter([small_text(documents=8)]), "byte_bpe", model.network.vocab_size,
                                      lowercase=False, roles=set())
    assert model.document_separator_id is None
    (bits, size), = held_out_scores(model, ["the printer reads"])[BITS].parts
    reference = perplexity(model, [Passage("the printer reads", True, "here")])
    first = model.tokenizer.encode("the printer reads", special=False).offsets[0][1]
    assert reference["unscored"] == 1 and reference["bytes"] == size - first
    assert bits == pytest.approx(reference["bits_per_byte"] * (size - first) + 8 * first, rel=1e-5)


# Metrics of each model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name,expected", [
    ("bert", [PSEUDO]), ("unilm", [PSEUDO]), ("gpt2", [BITS]), ("xlnet", [BITS, PSEUDO]), ("electra", []),
    ("t5", [CONTINUATION]), ("bart", [CONTINUATION]), ("mass", [CONTINUATION]), ("prefix-lm", [CONTINUATION])])
def test_each_model_has_the_metrics_that_its_objective_allows(name, expected):
    model = random_model(name)
    model.network.train()
    scores = held_out_scores(model, ["the printer reads a letter by the window."])
    assert list(scores) == expected and set(scores) <= set(METRICS)
    assert all(math.isfinite(score.value) and score.value > 0 for score in scores.values())
    assert model.network.training


# Continuation -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def slow_continuation_bits(model: stemma.Model, first: str, second: str, max_source: int = 99,
                           max_target: int = 99) -> float:
    """Bits of the second half, token by token, with the inputs of each model written out."""
    tokenizer, name = model.tokenizer, model.recipe.name
    encoding = tokenizer.encode(first + second, special=False)
    cut = next(index for index, (_, end) in enumerate(encoding.offsets) if end > len(tokenizer.pre_normalize(first)))
    context, target = encoding.ids[:cut][-max_source:], encoding.ids[cut:][:max_target]
    special = tokenizer.special_token_ids
    start, end, mask = (special.get(role) for role in ("start", "end", "mask"))
    bits = 0.0
    for index, token in enumerate(target):
        if name == "prefix-lm":
            stream = Stream(torch.tensor([context + target[:index]]), Prefix(torch.tensor([len(context)])))
            logits = model.lm_head()(model.network({"encoder": stream})["encoder"])
        else:
            source, decoder_start = {
                "t5": ([*context, special["sentinel"], end], [special["padding"], special["sentinel"]]),
                "bart": ([start, *context, mask, end], [end, start, *context]),
                "mass": ([*context, end], [mask])}[name]
            logits = model.logits(torch.tensor([source]),
                                  decoder_input_ids=torch.tensor([decoder_start + target[:index]]))
        bits -= float(logits[0, -1].double().log_softmax(-1)[token]) / math.log(2)
    return bits


@pytest.mark.parametrize("name", ["t5", "bart", "mass", "prefix-lm"])
def test_continuation_equals_predicting_the_second_half_token_by_token(name, monkeypatch):
    """Two chunks of six words and one of two, of different lengths in one batch; a single word has no second half."""
    monkeypatch.setattr(continuation_likelihood, "CHUNK_WORDS", 6)
    model = random_model(name, changes=["corpus.sequence_length=64"])
    text = "The old clerk reads a letter by the window, and a young printer forgets"
    parts = [("The old clerk", " reads a letter"), (" by the window,", " and a young")]
    assert list(continuation_likelihood.split_halves(text)) == [*parts, (" printer", " forgets")]
    expected = [sum(slow_continuation_bits(model, *halves) for halves in (*parts, (" printer", " forgets"))),
                slow_continuation_bits(model, "the", " window")]
    score = held_out_scores(model, [text, "the window", "alone", ""])[CONTINUATION]
    sizes = [sum(len(second) for _, second in parts) + len(" forgets"), len(" window"), 0, 0]
    assert [size for _, size in score.parts] == sizes
    assert [bits for bits, _ in score.parts] == pytest.approx([*expected, 0, 0], rel=1e-4)
    assert score.value == pytest.approx(sum(expected) / sum(sizes), rel=1e-4)


def test_targets_beyond_the_maximum_length_cost_8_bits_per_byte():
    """Only a part of the second half fits the maximum length; the other bytes cost 8 bits each, as unknown ones do."""
    model = random_model("mass", changes=["corpus.sequence_length=10", "network.position.maximum=10"])
    text = "the old clerk reads seven letters by the window"
    ((first, second),) = continuation_likelihood.split_halves(text)
    target = [offsets for offsets in model.tokenizer.encode(text, special=False).offsets if offsets[1] > len(first)]
    assert len(target) > 10  # the decoder predicts ten tokens; the encoder reads nine and the end token
    expected = slow_continuation_bits(model, first, second, max_source=9, max_target=10)
    expected += 8 * sum(end - start for start, end in target[10:])
    assert held_out_scores(model, [text])[CONTINUATION].parts == ((pytest.approx(expected, rel=1e-4), len(second)),)
