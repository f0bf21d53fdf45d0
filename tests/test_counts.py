"""Parameters counted exactly as the papers' checkpoints have them; nothing is allocated for it."""

from __future__ import annotations

import pytest
import torch

import stemma

ENCODER_AND_POOLER = [("bert@base", None, 109_482_240), ("bert@large", None, 335_141_888),
                      ("bert", 21_128, 102_267_648), ("bert@tiny", None, 4_385_920), ("bert@mini", None, 11_170_560),
                      ("bert@small", None, 28_763_648), ("bert@medium", None, 41_373_184)]

WITH_HEADS = [("bert@base", 110_106_428), ("gpt", 116_534_784),
              ("gpt2@small", 124_439_808), ("gpt2@medium", 354_823_168), ("gpt2@large", 774_030_080),
              ("gpt2@xl", 1_557_611_200), ("xlnet@base", 116_750_336), ("xlnet@large", 360_300_800),
              ("transformer-xl@large", 285_205_322), ("t5@small", 60_506_624), ("t5@base", 222_903_552),
              ("t5@large", 737_668_096), ("t5@3b", 2_851_598_336), ("t5@11b", 11_307_321_344),
              ("bart@base", 139_420_416), ("bart@large", 406_291_456)]


def count(name: str, vocabulary: int | None = None, heads: bool = True) -> int:
    with torch.device("meta"):
        return stemma.build(name, vocabulary).parameter_count(heads)


@pytest.mark.parametrize(("name", "vocabulary", "expected"), ENCODER_AND_POOLER)
def test_encoder_and_pooler(name, vocabulary, expected):
    assert count(name, vocabulary, heads=False) == expected


@pytest.mark.parametrize(("name", "expected"), WITH_HEADS)
def test_with_heads(name, expected):
    assert count(name) == expected


def norm(width: int) -> int:
    return 2 * width


def attention(width: int) -> int:
    return 4 * (width * width + width)  # query, key, value and output, each with its constants


def feedforward(width: int, inner: int) -> int:
    return width * inner + inner + inner * width + width


def encoder_decoder(vocabulary: int, layers: int, width: int, inner: int, places: int = 0) -> int:
    """One table for both texts and the output; learned places of either; two sublayers on one side, three on the
    other, each with its norm."""
    encoder = attention(width) + feedforward(width, inner) + 2 * norm(width)
    return vocabulary * width + 2 * places * width + layers * (2 * encoder + attention(width) + norm(width))


@pytest.mark.parametrize(("name", "expected"), [
    ("transformer@base", encoder_decoder(37_000, 6, 512, 2048)),  # "65 million"
    ("transformer@big", encoder_decoder(37_000, 6, 1024, 4096)),  # "213 million"
    ("mass@base", encoder_decoder(60_000, 6, 1024, 4096, places=512))])
def test_by_hand(name, expected):
    assert count(name) == expected


def test_by_hand_as_the_paper_has_it():
    assert [count("transformer@base"), count("transformer@big")] == [63_082_496, 214_245_376]


def test_unilm_is_bert_with_four_segments_more():
    assert count("unilm@large", heads=False) == count("bert@large", heads=False) + 4 * 1024
    assert count("unilm@base") == count("bert@base") + 4 * 768


def test_one_stack_is_an_encoder_and_half_as_much():
    """T5's decoder without its look across, which would be as large as its attention and a norm."""
    width, layers = 768, 12
    across = layers * (4 * width * width + width)
    decoder = count("t5@base") - count("prefix-lm@base") - across
    assert decoder == count("prefix-lm@base") - 32_128 * width  # both stacks have a table of distances and a last norm


def test_transformers_counts_the_same():
    import transformers

    with torch.device("meta"):
        base = transformers.BertForPreTraining(transformers.BertConfig())
        large = transformers.BertModel(transformers.BertConfig(hidden_size=1024, num_hidden_layers=24,
                                                               num_attention_heads=16, intermediate_size=4096))
        gpt = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig())
        gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        xlnet = transformers.XLNetLMHeadModel(transformers.XLNetConfig())
        t5 = transformers.T5ForConditionalGeneration(transformers.T5Config())
        bart = transformers.BartForConditionalGeneration(transformers.BartConfig())
    assert count("bert@base") == base.num_parameters()
    assert count("bert@large", heads=False) == large.num_parameters()
    assert count("gpt@base") == gpt.num_parameters()
    assert count("gpt2@small") == gpt2.num_parameters()
    assert count("xlnet@large") == xlnet.num_parameters()
    assert count("t5@small") == t5.num_parameters()
    assert count("bart@large") == bart.num_parameters()
