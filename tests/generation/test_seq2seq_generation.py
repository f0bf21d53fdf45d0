"""Seq2seq generation: every decoding mode against an uncached computation, position by position."""

from __future__ import annotations

import itertools

import pytest
import torch
from generation.seq2seq_models import DECODERS, KINDS, build_seq2seq_model, sentences, word_tokenizer
from parity.reference import perturb

import stemma
from stemma.errors import UserError
from stemma.generation.decoding_mode import decoding_mode, decoding_spec
from stemma.generation.decoding_state import start_decoding
from stemma.generation.generate import generate
from stemma.network.inputs_outputs import Stream
from stemma.visibility import Visibility

DECODING = {"greedy": {"greedy": True, "repetition_penalty": 1.3}, "sampled": {"seed": 7},
            "beams": {"beams": 3, "completions": 2, "length_penalty": 1.0}}


class ExplicitMask(Visibility):
    """An attention mask given as a matrix."""

    def __init__(self, mask):
        object.__setattr__(self, "mask_", mask)

    def allows(self, query, key):
        return self.mask_[None]


def special_id(name: str) -> int:
    return word_tokenizer().special_id(name)


def ids_of(text: str) -> list[int]:
    return word_tokenizer().encode(text, special=False).ids


def reference_logits(model: stemma.Model, kind: str, source: str, generated: list[int]) -> torch.Tensor:
    """(V,) the next-token logits after these tokens: one row, no cache, with explicit template and attention mask."""
    text, start, separator = ids_of(source), special_id("start"), special_id("separator")
    if kind in DECODERS:
        first = {"transformer": [special_id("begin")], "t5": [special_id("padding")], "mass": [special_id("mask")],
                 "bart": [special_id("end"), start]}[kind]
        source_ids = [start, *text, special_id("end")] if kind == "bart" else [*text, special_id("end")]
        return model.logits(torch.tensor([source_ids]), decoder_input_ids=torch.tensor([[*first, *generated]]))[0, -1]
    if kind == "prefix-lm":
        row, prefix, segments = [*text, *generated], len(text), None
    elif kind == "unilm":
        row, prefix = [start, *text, separator, *generated, special_id("mask")], len(text) + 2
        segments = torch.tensor([[4] * prefix + [5] * (len(row) - prefix)])
    else:
        row, prefix = [start, *text, *generated, special_id("mask")], 0
        segments = torch.full((1, len(row)), 2)
    mask = torch.ones(len(row), len(row), dtype=torch.bool).tril()
    mask[:prefix, :prefix] = True
    stream = Stream(torch.tensor([row]), ExplicitMask(mask), segment_ids=segments)
    with torch.no_grad():
        return model.lm_head()(model.network({"encoder": stream})["encoder"])[0, -1]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_next_token_logits_match_the_uncached_computation(kind, cached):
    """For rows of unequal length, over several steps, and after reordering the rows."""
    model, texts = build_seq2seq_model(kind), sentences(5, 9, 2)
    scheme = decoding_spec(model)
    reader = start_decoding(model, [scheme.format_prompt(ids_of(text)) for text in texts], cached)
    generated = [[], [], []]
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        for step in range(5):
            result = reader.next_logits()
            for row, (text, before) in enumerate(zip(texts, generated, strict=True)):
                assert torch.allclose(result[row], reference_logits(model, kind, text, before), atol=2e-5), (step, row)
            if step == 2:
                order = [2, 0, 0]
                reader.select_rows(order)
                texts, generated = [texts[row] for row in order], [list(generated[row]) for row in order]
            tokens = torch.randint(5, model.network.vocab_size, (3,), generator=generator)
            reader.append(tokens)
            for row, token in zip(generated, tokens.tolist(), strict=True):
                row.append(token)


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("kind", KINDS)
def test_cache_and_batch_do_not_change_the_text(kind, decoding):
    model, texts = build_seq2seq_model(kind), sentences(3, 20, 1, 7)
    result = generate(model, texts, tokens=14, **DECODING[decoding])
    again = generate(model, texts, tokens=14, cache=False, **DECODING[decoding])
    alone = [completion for text in texts for completion in generate(model, text, tokens=14, **DECODING[decoding])]
    assert [c.tokens for c in result] == [c.tokens for c in again] == [c.tokens for c in alone]
    assert len({completion.tokens for completion in result}) > 1
    for completion in result:
        total = sum(float(reference_logits(model, kind, texts[completion.prompt_index], list(completion.tokens[:index]))
                          .log_softmax(-1)[token]) for index, token in enumerate(completion.tokens))
        assert completion.log_probability == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("alpha", [0.0, 0.6, -1.0])
@pytest.mark.parametrize("kind", ["transformer", "unilm", "prefix-lm"])
def test_beam_search_with_enough_beams_equals_exhaustive_search(kind, alpha):
    """Over all texts of up to two tokens."""
    model, texts, longest = build_seq2seq_model(kind), sentences(4, 2), 2
    end = decoding_spec(model).eos_token_ids
    result = generate(model, texts, tokens=longest, beams=60, completions=8, length_penalty=alpha, batch=200)
    for index, text in enumerate(texts):
        all_texts = [(token,) for token in end] + [
            (first, second) for first, second in itertools.product(range(model.network.vocab_size), repeat=2)
            if first not in end]
        first_token = reference_logits(model, kind, text, []).log_softmax(-1)
        second_token = {first: reference_logits(model, kind, text, [first]).log_softmax(-1)
                        for first in range(model.network.vocab_size) if first not in end}
        scores = {tokens: float(first_token[tokens[0]] + (second_token[tokens[0]][tokens[1]] if tokens[1:] else 0.0))
                  for tokens in all_texts}
        best = sorted(all_texts, key=lambda tokens: -scores[tokens] / ((5 + len(tokens)) / 6) ** alpha)[:8]
        completions = [completion for completion in result if completion.prompt_index == index]
        assert [completion.tokens for completion in completions] == best
        assert [c.log_probability for c in completions] == pytest.approx([scores[tokens] for tokens in best], abs=1e-4)


def test_generation_ends_with_the_end_token_of_the_template():
    """UniLM's target ends with the separator; BART's decoder starts with the tokens before the text in its template."""
    unilm, bart = decoding_spec(build_seq2seq_model("unilm")), decoding_spec(build_seq2seq_model("bart"))
    assert unilm.eos_token_ids == (special_id("separator"),)
    assert unilm.prompt_segments(5) == [4] * 5 and unilm.output_segment == 5
    assert bart.decoder_prefix == (special_id("end"), special_id("start"))
    assert bart.eos_token_ids == (special_id("end"),)
    model = build_seq2seq_model("unilm")
    ended = [c for seed in range(12) for c in generate(model, sentences(3), tokens=30, seed=seed, temperature=3.0)
             if c.finish_reason == "end"]
    assert ended
    for completion in ended:
        last = completion.tokens[-1]
        assert last in unilm.eos_token_ids and word_tokenizer().id_to_token(last) not in completion.text


def test_generation_stops_at_the_last_position():
    for kind, limit in (("transformer", 40), ("bart", 39), ("unilm", 40 - 12), ("prefix-lm", None), ("t5", None)):
        model = build_seq2seq_model(kind)
        (result,) = generate(model, sentences(10), tokens=60, min_tokens=60, greedy=True)
        assert len(result.tokens) == (limit or 60), kind
        (beam_result,) = generate(model, sentences(10), tokens=60, min_tokens=60, beams=2)
        assert len(beam_result.tokens) == (limit or 60), kind


def test_a_source_that_is_too_long_is_refused_or_truncated():
    for kind, limit in (("transformer", 39), ("bart", 38), ("unilm", 37)):
        model, (text,) = build_seq2seq_model(kind), sentences(50)
        with pytest.raises(UserError, match=rf"is 50 tokens long and {kind}@tiny reads at most {limit}; .* its first"):
            generate(model, text, greedy=True)
        cut = generate(model, text, greedy=True, tokens=3, crop=True)
        shorter = " ".join(text.split()[:limit])
        assert cut[0].tokens == generate(model, shorter, greedy=True, tokens=3)[0].tokens
    with pytest.raises(UserError, match="a prompt is empty, and transformer@tiny writes from a source"):
        generate(build_seq2seq_model("transformer"), ["ba", " "])


def test_every_recipe_has_its_decoding_mode():
    modes = {name: decoding_mode(stemma.recipe(name)) for name in
             ("transformer", "t5", "bart", "mass", "unilm", "prefix-lm", "bert", "gpt2", "xlnet", "transformer-xl")}
    assert modes == {"transformer": "decoder", "t5": "decoder", "bart": "decoder", "mass": "decoder", "unilm": "cloze",
                     "prefix-lm": "prefix", "bert": None, "gpt2": "next", "xlnet": "permuted",
                     "transformer-xl": "next"}


def test_seq2seq_models_cannot_score_text_as_causal_models_do():
    from stemma.evaluation.lm_scorer import LMScorer

    for kind in ("unilm", "unilm, from the left", "transformer"):
        with pytest.raises(UserError, match="generates a text from a source and does not read from one end"):
            LMScorer(build_seq2seq_model(kind))


def test_fill_is_refused_for_a_model_with_a_decoder():
    from stemma.generation.fill import fill

    with pytest.raises(UserError, match="bart@tiny does not predict tokens at masks.*stemma generate"):
        fill(build_seq2seq_model("bart"), "ba [MASK] da")
    assert fill(build_seq2seq_model("unilm"), "ba [MASK] da")[0]["candidates"]


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_generation_matches_transformers(tmp_path, family):
    """Greedy, and beam search without length penalty, since transformers defines it differently."""
    from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    padding, end, start = special_id("padding"), special_id("end"), special_id("start")
    size = word_tokenizer().vocab_size
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
    model.tokenizer = word_tokenizer()
    texts = sentences(4, 9, 6, seed=2)
    rows = [decoding_spec(model).format_prompt(ids_of(text)) for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])
    attention_mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    forced = family == "bart"  # the template has a token before the text
    for beams in (1, 3):
        with torch.no_grad():
            expected = reference.generate(ids, attention_mask=attention_mask, max_new_tokens=10 + forced,
                                          do_sample=False, num_beams=beams, length_penalty=0.0,
                                          early_stopping="never", forced_bos_token_id=start if forced else None)
        result = generate(model, texts, tokens=10, **({"greedy": True} if beams == 1 else
                                                      {"beams": beams, "length_penalty": 0.0}))
        for completion, row in zip(result, expected[:, 1 + forced:].tolist(), strict=True):
            tokens = list(completion.tokens)
            assert tokens == row[:len(tokens)] and set(row[len(tokens):]) <= {padding}
    assert len({completion.tokens for completion in result}) > 1
