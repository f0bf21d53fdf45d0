"""Between text and tokens: half characters, spaces, stop strings, unknown words, and texts that begin with nothing."""

from __future__ import annotations

import pytest
import torch
from conftest import small_text
from parity.reference import perturb

import stemma
from stemma.errors import UserError
from stemma.generation.generate import generate, stream
from stemma.generation.partial_completion import REPLACEMENT_CHARACTER, BackwardCompletion, PartialCompletion, encode
from stemma.text.train_tokenizer import train_tokenizer

KINDS = ("byte_bpe", "unigram", "wordpiece", "word", "character")
CHANGES = ["network.layers=1", "network.width=16", "network.heads=2", "network.feedforward=16",
           "corpus.sequence_length=64"]


@pytest.fixture(scope="module")
def tokenizers():
    text = small_text(documents=8)
    roles = {"end", "mask"}  # the mask is only there to be a special token
    return {kind: train_tokenizer(iter([text]), kind, 300, lowercase=False, roles=roles) for kind in KINDS}


def model_of(tokenizer, seed: int = 0, changes: tuple[str, ...] = ()) -> stemma.Model:
    torch.manual_seed(seed)
    model = stemma.build("gpt2@tiny", tokenizer.vocab_size, [*CHANGES, *changes])
    perturb(model.network, seed)
    model.tokenizer = tokenizer
    return model


def written(tokenizer, prompt: str, text: str, stop=(), kind=PartialCompletion) -> tuple[PartialCompletion, list[str]]:
    """The pieces in which a text becomes readable, if its tokens come one by one."""
    before = tokenizer.encode(prompt, special=False).ids
    both = tokenizer.encode(prompt + text, special=False).ids
    assert both[:len(before)] == before
    writing = kind(tokenizer, before, stop, (tokenizer.special_token_ids["end"],))
    pieces = []
    for token in both[len(before):]:
        pieces.append(writing.append(token, -0.5))
        if writing.finish_reason:
            return writing, pieces
    pieces.append(writing.append(tokenizer.special_token_ids["end"], -0.5))
    return writing, pieces


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_and_text_together_are_the_whole(tokenizers, kind):
    prompt, text = "The old clerk", " reads a letter in the cellar ."
    writing, pieces = written(tokenizers[kind], prompt, text)
    decoded = tokenizers[kind].decode(tokenizers[kind].encode(prompt + text, special=False).ids)
    assert prompt + writing.text == decoded and "".join(pieces) == writing.text
    assert writing.finish_reason == "end" and sum(map(bool, pieces)) > 3
    assert writing.log_probability == -0.5 * len(writing.tokens)


def test_half_a_character_is_held_back(tokenizers):
    text = " naïve 北京 🙂🙃 e\u0301."
    writing, pieces = written(tokenizers["byte_bpe"], "The", text)
    assert writing.text == "".join(pieces) == text
    assert not any(REPLACEMENT_CHARACTER in piece for piece in pieces) and "" in pieces
    assert len(writing.tokens) > len(text)  # most characters took several tokens


def test_what_is_no_character_is_still_shown_in_the_end(tokenizers):
    tokenizer = tokenizers["byte_bpe"]
    half = tokenizer.encode("🙂", special=False).ids[:2]
    writing = PartialCompletion(tokenizer, tokenizer.encode("The").ids, (), ())
    assert [writing.append(token, 0.0, last) for token, last in zip(half, (False, True), strict=True)] == ["",
        REPLACEMENT_CHARACTER]
    stuck = PartialCompletion(tokenizer, tokenizer.encode("The").ids, (), ())
    # not for ever, either
    assert "".join(stuck.append(half[0], 0.0) for _ in range(9)).count(REPLACEMENT_CHARACTER) >= 4


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "character"])
@pytest.mark.parametrize("stop, left", [
    (("letter",), " reads a "), ((" reads",), ""), (("in the",), " reads a letter "),
    (("tter in", "xyz"), " reads a le"), (("cellar.", "e"), " r"), (("zebra",), None), (("cellar.now",), None),
])
def test_stop_strings_are_cut_exactly(tokenizers, kind, stop, left):
    text = " reads a letter in the cellar."
    writing, pieces = written(tokenizers[kind], "The old clerk", text, stop)
    assert writing.text == "".join(pieces) == (text if left is None else left)
    assert writing.finish_reason == ("end" if left is None else "stop")


def test_a_special_token_on_the_way_costs_no_space(tokenizers):
    tokenizer = tokenizers["unigram"]
    first, second = (tokenizer.encode(text, special=False).ids for text in ("The old", "clerk"))
    writing = PartialCompletion(tokenizer, first, (), ())
    for token in (tokenizer.special_token_ids["mask"], *second):
        writing.append(token, 0.0, token == second[-1])
    assert writing.text == " clerk"


def test_backward_text_stands_before_the_prompt(tokenizers):
    tokenizer = tokenizers["byte_bpe"]
    whole = tokenizer.encode("The old clerk reads a letter", special=False)
    cut = next(place for place, token in enumerate(whole.ids) if whole.offsets[place][0] >= 13)
    for stop, left in (((), "The old clerk"), (("old",), " clerk"), (("The", "e o"), "ld clerk")):
        writing = BackwardCompletion(tokenizer, whole.ids[cut:][::-1], stop, ())
        for number, token in enumerate(whole.ids[:cut][::-1]):
            if not writing.finish_reason:
                writing.append(token, 0.0, number == cut - 1)
        assert writing.text == left
    model = model_of(tokenizer, changes=("objective.causal_lm.direction=backward",))
    (found,) = generate(model, "reads a letter", tokens=8, seed=1)
    prompt = tokenizer.encode("reads a letter", special=False).ids
    assert found.text + "reads a letter" == tokenizer.decode([*found.tokens[::-1], *prompt])
    assert list(stream(model, "reads a letter", tokens=8, seed=1)) == [found.text]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [(), ("e",), (" th", "ol")])
def test_a_stream_is_the_text_in_pieces(tokenizers, kind, stop):
    model = model_of(tokenizers[kind])
    for seed in range(3):
        (found,) = generate(model, "The old", tokens=24, seed=seed, stop=stop)
        pieces = list(stream(model, "The old", tokens=24, seed=seed, stop=stop))
        assert "".join(pieces) == found.text and all(pieces)
        assert not any(text in found.text for text in stop)


def test_a_stream_that_is_left_leaves_the_network_as_it_was(tokenizers):
    model = model_of(tokenizers["byte_bpe"])
    pieces = stream(model, "The old", tokens=40, seed=0)
    next(pieces)
    pieces.close()
    assert not any("forward" in vars(module) for module in model.network.modules())
    with pytest.raises(UserError, match="only one text can be streamed"):
        stream(model, "The old", beams=2)


def test_the_end_ends_a_row_and_the_others_go_on(tokenizers):
    model = model_of(tokenizers["byte_bpe"])
    end = model.tokenizer.special_token_ids["end"]
    found = generate(model, ["The"] * 30, tokens=60, seed=0, top_p=1.0)
    assert {one.finish_reason for one in found} == {"end", "length"}
    for one in found:
        assert (one.finish_reason == "end") == (end in one.tokens) and end not in one.tokens[:-1]
    later = generate(model, ["The"] * 30, tokens=60, min_tokens=60, seed=0, top_p=1.0)
    assert {one.finish_reason for one in later} == {"length"}


def test_rows_without_a_token_are_never_written(tokenizers):
    model = stemma.build("gpt2@tiny", tokenizers["byte_bpe"].vocab_size + 400, CHANGES)
    model.tokenizer = tokenizers["byte_bpe"]
    for options in ({"seed": 0, "top_p": 1.0}, {"greedy": True}, {"beams": 3}):
        for one in generate(model, ["The"] * 4, tokens=20, **options):
            assert max(one.tokens) < model.tokenizer.vocab_size


def test_words_the_vocabulary_lacks_are_named(tokenizers, caplog):
    encode(model_of(tokenizers["word"]), "The old zebra reads ñandú and zebra")
    assert caplog.messages == ["the vocabulary lacks 'zebra', 'ñandú', 'and'; the model reads [UNK] there."]
    encode(model_of(tokenizers["byte_bpe"]), "zebra ñandú 北京")
    assert len(caplog.messages) == 1


def test_an_empty_prompt_begins_where_texts_begin(tokenizers):
    model = model_of(tokenizers["byte_bpe"])
    assert encode(model, "") == [model.tokenizer.special_token_ids["end"]]
    (empty,) = generate(model, "", tokens=6, greedy=True)
    assert empty.tokens == generate(model, [[model.tokenizer.special_token_ids["end"]]], tokens=6,
                                    greedy=True)[0].tokens
    bare = train_tokenizer(iter(["a b c"]), "word", 10, lowercase=False, roles={"mask"})
    with pytest.raises(UserError, match="the prompt is empty, and this vocabulary has no token"):
        generate(model_of(bare), "  ")
