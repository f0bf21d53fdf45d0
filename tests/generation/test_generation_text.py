"""From tokens to text: partial characters, spaces, stop strings, unknown words and empty prompts."""

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
    roles = {"end", "mask"}  # the mask serves as a special token
    return {kind: train_tokenizer(iter([text]), kind, 300, lowercase=False, roles=roles) for kind in KINDS}


def model_of(tokenizer, seed: int = 0, changes: tuple[str, ...] = ()) -> stemma.Model:
    torch.manual_seed(seed)
    model = stemma.build("gpt2@tiny", tokenizer.vocab_size, [*CHANGES, *changes])
    perturb(model.network, seed)
    model.tokenizer = tokenizer
    return model


def decode_incrementally(tokenizer, prompt: str, text: str, stop=(),
                         kind=PartialCompletion) -> tuple[PartialCompletion, list[str]]:
    """The chunks of text that become available as the tokens arrive one by one."""
    prompt_ids = tokenizer.encode(prompt, special=False).ids
    all_ids = tokenizer.encode(prompt + text, special=False).ids
    assert all_ids[:len(prompt_ids)] == prompt_ids
    completion = kind(tokenizer, prompt_ids, stop, (tokenizer.special_token_ids["end"],))
    chunks = []
    for token in all_ids[len(prompt_ids):]:
        chunks.append(completion.append(token, -0.5))
        if completion.finish_reason:
            return completion, chunks
    chunks.append(completion.append(tokenizer.special_token_ids["end"], -0.5))
    return completion, chunks


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_and_completion_concatenate_to_the_decoded_text(tokenizers, kind):
    prompt, text = "The old clerk", " reads a letter in the cellar ."
    completion, chunks = decode_incrementally(tokenizers[kind], prompt, text)
    decoded = tokenizers[kind].decode(tokenizers[kind].encode(prompt + text, special=False).ids)
    assert prompt + completion.text == decoded and "".join(chunks) == completion.text
    assert completion.finish_reason == "end" and sum(map(bool, chunks)) > 3
    assert completion.log_probability == -0.5 * len(completion.tokens)


def test_partial_characters_are_held_back(tokenizers):
    text = " naïve 北京 🙂🙃 e\u0301."
    completion, chunks = decode_incrementally(tokenizers["byte_bpe"], "The", text)
    assert completion.text == "".join(chunks) == text
    assert not any(REPLACEMENT_CHARACTER in chunk for chunk in chunks) and "" in chunks
    assert len(completion.tokens) > len(text)  # most characters took several tokens


def test_an_incomplete_character_is_shown_at_the_end(tokenizers):
    tokenizer = tokenizers["byte_bpe"]
    half = tokenizer.encode("🙂", special=False).ids[:2]
    completion = PartialCompletion(tokenizer, tokenizer.encode("The").ids, (), ())
    assert [completion.append(token, 0.0, last) for token, last in zip(half, (False, True), strict=True)] == ["",
        REPLACEMENT_CHARACTER]
    stuck = PartialCompletion(tokenizer, tokenizer.encode("The").ids, (), ())
    # it is not held back forever
    assert "".join(stuck.append(half[0], 0.0) for _ in range(9)).count(REPLACEMENT_CHARACTER) >= 4


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "character"])
@pytest.mark.parametrize("stop, expected", [
    (("letter",), " reads a "), ((" reads",), ""), (("in the",), " reads a letter "),
    (("tter in", "xyz"), " reads a le"), (("cellar.", "e"), " r"), (("zebra",), None), (("cellar.now",), None),
])
def test_stop_strings_are_cut_exactly(tokenizers, kind, stop, expected):
    text = " reads a letter in the cellar."
    completion, chunks = decode_incrementally(tokenizers[kind], "The old clerk", text, stop)
    assert completion.text == "".join(chunks) == (text if expected is None else expected)
    assert completion.finish_reason == ("end" if expected is None else "stop")


def test_a_special_token_does_not_remove_a_space(tokenizers):
    tokenizer = tokenizers["unigram"]
    first, second = (tokenizer.encode(text, special=False).ids for text in ("The old", "clerk"))
    completion = PartialCompletion(tokenizer, first, (), ())
    for token in (tokenizer.special_token_ids["mask"], *second):
        completion.append(token, 0.0, token == second[-1])
    assert completion.text == " clerk"


def test_backward_text_is_put_before_the_prompt(tokenizers):
    tokenizer = tokenizers["byte_bpe"]
    encoding = tokenizer.encode("The old clerk reads a letter", special=False)
    cut = next(index for index, _ in enumerate(encoding.ids) if encoding.offsets[index][0] >= 13)
    for stop, expected in (((), "The old clerk"), (("old",), " clerk"), (("The", "e o"), "ld clerk")):
        completion = BackwardCompletion(tokenizer, encoding.ids[cut:][::-1], stop, ())
        for index, token in enumerate(encoding.ids[:cut][::-1]):
            if not completion.finish_reason:
                completion.append(token, 0.0, index == cut - 1)
        assert completion.text == expected
    model = model_of(tokenizer, changes=("objective.causal_lm.direction=backward",))
    (result,) = generate(model, "reads a letter", tokens=8, seed=1)
    prompt = tokenizer.encode("reads a letter", special=False).ids
    assert result.text + "reads a letter" == tokenizer.decode([*result.tokens[::-1], *prompt])
    assert list(stream(model, "reads a letter", tokens=8, seed=1)) == [result.text]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [(), ("e",), (" th", "ol")])
def test_streamed_chunks_concatenate_to_the_text(tokenizers, kind, stop):
    model = model_of(tokenizers[kind])
    for seed in range(3):
        (result,) = generate(model, "The old", tokens=24, seed=seed, stop=stop)
        chunks = list(stream(model, "The old", tokens=24, seed=seed, stop=stop))
        assert "".join(chunks) == result.text and all(chunks)
        assert not any(text in result.text for text in stop)


def test_a_closed_stream_leaves_the_network_unchanged(tokenizers):
    model = model_of(tokenizers["byte_bpe"])
    chunks = stream(model, "The old", tokens=40, seed=0)
    next(chunks)
    chunks.close()
    assert not any("forward" in vars(module) for module in model.network.modules())
    with pytest.raises(UserError, match="only one text can be streamed"):
        stream(model, "The old", beams=2)


def test_rows_end_independently_at_the_end_token(tokenizers):
    model = model_of(tokenizers["byte_bpe"])
    end = model.tokenizer.special_token_ids["end"]
    result = generate(model, ["The"] * 30, tokens=60, seed=0, top_p=1.0)
    assert {one.finish_reason for one in result} == {"end", "length"}
    for one in result:
        assert (one.finish_reason == "end") == (end in one.tokens) and end not in one.tokens[:-1]
    later = generate(model, ["The"] * 30, tokens=60, min_tokens=60, seed=0, top_p=1.0)
    assert {one.finish_reason for one in later} == {"length"}


def test_padded_vocabulary_rows_are_never_generated(tokenizers):
    model = stemma.build("gpt2@tiny", tokenizers["byte_bpe"].vocab_size + 400, CHANGES)
    model.tokenizer = tokenizers["byte_bpe"]
    for options in ({"seed": 0, "top_p": 1.0}, {"greedy": True}, {"beams": 3}):
        for one in generate(model, ["The"] * 4, tokens=20, **options):
            assert max(one.tokens) < model.tokenizer.vocab_size


def test_unknown_words_give_a_warning(tokenizers, caplog):
    encode(model_of(tokenizers["word"]), "The old zebra reads ñandú and zebra")
    assert caplog.messages == ["the vocabulary lacks 'zebra', 'ñandú', 'and'; the model reads [UNK] there."]
    encode(model_of(tokenizers["byte_bpe"]), "zebra ñandú 北京")
    assert len(caplog.messages) == 1


def test_an_empty_prompt_starts_with_the_end_token(tokenizers):
    model = model_of(tokenizers["byte_bpe"])
    assert encode(model, "") == [model.tokenizer.special_token_ids["end"]]
    (empty,) = generate(model, "", tokens=6, greedy=True)
    assert empty.tokens == generate(model, [[model.tokenizer.special_token_ids["end"]]], tokens=6,
                                    greedy=True)[0].tokens
    without_end = train_tokenizer(iter(["a b c"]), "word", 10, lowercase=False, roles={"mask"})
    with pytest.raises(UserError, match="the prompt is empty, and this vocabulary has no token"):
        generate(model_of(without_end), "  ")
