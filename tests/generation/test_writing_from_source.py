"""Writing from a source: each way against reading everything anew, place by place."""

from __future__ import annotations

import itertools

import pytest
import torch
from generation.sources import DECODERS, KINDS, sentences, source_model, words
from parity.reference import perturb

import stemma
from stemma.errors import UserError
from stemma.generation.decoding_mode import decoding_mode, decoding_spec
from stemma.generation.decoding_state import start_decoding
from stemma.generation.generate import generate
from stemma.network.inputs_outputs import Stream
from stemma.visibility import Visibility

WAYS = {"greedy": {"greedy": True, "repetition_penalty": 1.3}, "sampled": {"seed": 7},
        "beams": {"beams": 3, "completions": 2, "length_penalty": 1.0}}


class Grid(Visibility):
    """Who sees whom, written out."""

    def __init__(self, grid):
        object.__setattr__(self, "grid_", grid)

    def allows(self, query, key):
        return self.grid_[None]


def role(name: str) -> int:
    return words().special_id(name)


def ids_of(text: str) -> list[int]:
    return words().encode(text, special=False).ids


def expected_scores(model: stemma.Model, kind: str, source: str, written: list[int]) -> torch.Tensor:
    """(V,) what should be expected after these tokens: one row, no cache, layout and sight spelled out."""
    text, start, separator = ids_of(source), role("start"), role("separator")
    if kind in DECODERS:
        first = {"transformer": [role("begin")], "t5": [role("padding")], "mass": [role("mask")],
                 "bart": [role("end"), start]}[kind]
        given = [start, *text, role("end")] if kind == "bart" else [*text, role("end")]
        return model.logits(torch.tensor([given]), decoder_input_ids=torch.tensor([[*first, *written]]))[0, -1]
    if kind == "prefix-lm":
        row, prefix, segments = [*text, *written], len(text), None
    elif kind == "unilm":
        row, prefix = [start, *text, separator, *written, role("mask")], len(text) + 2
        segments = torch.tensor([[4] * prefix + [5] * (len(row) - prefix)])
    else:
        row, prefix = [start, *text, *written, role("mask")], 0
        segments = torch.full((1, len(row)), 2)
    grid = torch.ones(len(row), len(row), dtype=torch.bool).tril()
    grid[:prefix, :prefix] = True
    stream = Stream(torch.tensor([row]), Grid(grid), segment_ids=segments)
    with torch.no_grad():
        return model.lm_head()(model.network({"encoder": stream})["encoder"])[0, -1]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_expected_next(kind, cached):
    """Rows of unequal length, several steps, rows that change places: always what one row alone expects."""
    model, texts = source_model(kind), sentences(5, 9, 2)
    scheme = decoding_spec(model)
    reader = start_decoding(model, [scheme.format_prompt(ids_of(text)) for text in texts], cached)
    written = [[], [], []]
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        for step in range(5):
            found = reader.next_logits()
            for row, (text, before) in enumerate(zip(texts, written, strict=True)):
                assert torch.allclose(found[row], expected_scores(model, kind, text, before), atol=2e-5), (step, row)
            if step == 2:
                order = [2, 0, 0]
                reader.select_rows(order)
                texts, written = [texts[row] for row in order], [list(written[row]) for row in order]
            tokens = torch.randint(5, model.network.vocab_size, (3,), generator=generator)
            reader.append(tokens)
            for row, token in zip(written, tokens.tolist(), strict=True):
                row.append(token)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_cache_and_batch_never_change_the_text(kind, way):
    model, texts = source_model(kind), sentences(3, 20, 1, 7)
    found = generate(model, texts, tokens=14, **WAYS[way])
    again = generate(model, texts, tokens=14, cache=False, **WAYS[way])
    alone = [one for text in texts for one in generate(model, text, tokens=14, **WAYS[way])]
    assert [one.tokens for one in found] == [one.tokens for one in again] == [one.tokens for one in alone]
    assert len({one.tokens for one in found}) > 1
    for one in found:
        total = sum(float(expected_scores(model, kind, texts[one.prompt_index], list(one.tokens[:place]))
                          .log_softmax(-1)[token]) for place, token in enumerate(one.tokens))
        assert one.log_probability == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("alpha", [0.0, 0.6, -1.0])
@pytest.mark.parametrize("kind", ["transformer", "unilm", "prefix-lm"])
def test_enough_beams_are_exhaustive(kind, alpha):
    """Against every text of up to two tokens."""
    model, texts, longest = source_model(kind), sentences(4, 2), 2
    end = decoding_spec(model).eos_token_ids
    found = generate(model, texts, tokens=longest, beams=60, completions=8, length_penalty=alpha, batch=200)
    for number, text in enumerate(texts):
        every = [(token,) for token in end] + [
            (first, second) for first, second in itertools.product(range(model.network.vocab_size), repeat=2)
            if first not in end]
        one = expected_scores(model, kind, text, []).log_softmax(-1)
        two = {first: expected_scores(model, kind, text, [first]).log_softmax(-1)
               for first in range(model.network.vocab_size) if first not in end}
        chances = {tokens: float(one[tokens[0]] + (two[tokens[0]][tokens[1]] if len(tokens) > 1 else 0.0))
                   for tokens in every}
        best = sorted(every, key=lambda tokens: -chances[tokens] / ((5 + len(tokens)) / 6) ** alpha)[:8]
        mine = [one for one in found if one.prompt_index == number]
        assert [one.tokens for one in mine] == best
        assert [one.log_probability for one in mine] == pytest.approx([chances[tokens] for tokens in best], abs=1e-4)


def test_a_text_ends_where_its_template_does():
    """UniLM's target ends with the separator; BART's begins with what its template has before the text."""
    unilm, bart = decoding_spec(source_model("unilm")), decoding_spec(source_model("bart"))
    assert unilm.eos_token_ids == (role("separator"),
                                   ) and unilm.prompt_segments(5) == [4] * 5 and unilm.output_segment == 5
    assert bart.decoder_prefix == (role("end"), role("start")) and bart.eos_token_ids == (role("end"),)
    model = source_model("unilm")
    ended = [one for seed in range(12) for one in generate(model, sentences(3), tokens=30, seed=seed, temperature=3.0)
             if one.finish_reason == "end"]
    assert ended and all(one.tokens[-1] in unilm.eos_token_ids and words().id_to_token(one.tokens[-1]) not in one.text
                         for one in ended)


def test_no_more_is_written_than_there_are_places():
    for kind, most in (("transformer", 40), ("bart", 39), ("unilm", 40 - 12), ("prefix-lm", None), ("t5", None)):
        model = source_model(kind)
        (found,) = generate(model, sentences(10), tokens=60, min_tokens=60, greedy=True)
        assert len(found.tokens) == (most or 60), kind
        (searched,) = generate(model, sentences(10), tokens=60, min_tokens=60, beams=2)
        assert len(searched.tokens) == (most or 60), kind


def test_a_source_that_is_too_long_is_refused_or_cut_at_its_end():
    for kind, most in (("transformer", 39), ("bart", 38), ("unilm", 37)):
        model, (text,) = source_model(kind), sentences(50)
        with pytest.raises(UserError, match=rf"is 50 tokens long and {kind}@tiny reads at most {most}; .* its first"):
            generate(model, text, greedy=True)
        cut = generate(model, text, greedy=True, tokens=3, crop=True)
        shorter = " ".join(text.split()[:most])
        assert cut[0].tokens == generate(model, shorter, greedy=True, tokens=3)[0].tokens
    with pytest.raises(UserError, match="a prompt is empty, and transformer@tiny writes from a source"):
        generate(source_model("transformer"), ["ba", " "])


def test_the_ways_of_the_recipes():
    ways = {name: decoding_mode(stemma.recipe(name)) for name in
            ("transformer", "t5", "bart", "mass", "unilm", "prefix-lm", "bert", "gpt2", "xlnet", "transformer-xl")}
    assert ways == {"transformer": "decoder", "t5": "decoder", "bart": "decoder", "mass": "decoder", "unilm": "cloze",
                    "prefix-lm": "prefix", "bert": None, "gpt2": "next", "xlnet": "permuted",
                    "transformer-xl": "next"}


def test_a_cloze_from_the_left_is_no_causal_language_model():
    from stemma.evaluation.lm_scorer import LMScorer

    for kind in ("unilm", "unilm, from the left", "transformer"):
        with pytest.raises(UserError, match="generates a text from a source and does not read from one end"):
            LMScorer(source_model(kind))


def test_a_decoder_fills_no_mask():
    from stemma.generation.fill import fill

    with pytest.raises(UserError, match="bart@tiny does not predict tokens at masks.*stemma generate"):
        fill(source_model("bart"), "ba [MASK] da")
    assert fill(source_model("unilm"), "ba [MASK] da")[0]["candidates"]


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_transformers_writes_the_same(tmp_path, family):
    """Greedily, and by beams that are compared by probability alone (its penalty for length is another one)."""
    from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    padding, end, start, size = role("padding"), role("end"), role("start"), words().vocab_size
    if family == "t5":
        reference = T5ForConditionalGeneration(T5Config(
            vocab_size=size, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_decoder_layers=1, num_heads=2,
            pad_token_id=padding, eos_token_id=end, decoder_start_token_id=padding))
    else:
        reference = BartForConditionalGeneration(BartConfig(
            vocab_size=size, d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=40,
            pad_token_id=padding, bos_token_id=start, eos_token_id=end, decoder_start_token_id=end,
            forced_eos_token_id=None))
    perturb(reference, 1)
    reference.eval().save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    model.tokenizer = words()
    texts = sentences(4, 9, 6, seed=2)
    rows = [decoding_spec(model).format_prompt(ids_of(text)) for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])
    real = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    forced = family == "bart"  # our template has a token before the text
    for beams in (1, 3):
        with torch.no_grad():
            expected = reference.generate(ids, attention_mask=real, max_new_tokens=10 + forced, do_sample=False,
                                          num_beams=beams, length_penalty=0.0, early_stopping="never",
                                          forced_bos_token_id=start if forced else None)
        found = generate(model, texts, tokens=10, **({"greedy": True} if beams == 1 else
                                                     {"beams": beams, "length_penalty": 0.0}))
        for one, row in zip(found, expected[:, 1 + forced:].tolist(), strict=True):
            assert list(one.tokens) == row[:len(one.tokens)] and set(row[len(one.tokens):]) <= {padding}
    assert len({one.tokens for one in found}) > 1
