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
              ("transformer-xl@large", 285_205_322)]


def count(name: str, vocabulary: int | None = None, heads: bool = True) -> int:
    with torch.device("meta"):
        return stemma.build(name, vocabulary).parameter_count(heads)


@pytest.mark.parametrize(("name", "vocabulary", "expected"), ENCODER_AND_POOLER)
def test_encoder_and_pooler(name, vocabulary, expected):
    assert count(name, vocabulary, heads=False) == expected


@pytest.mark.parametrize(("name", "expected"), WITH_HEADS)
def test_with_heads(name, expected):
    assert count(name) == expected


def test_transformers_counts_the_same():
    import transformers

    with torch.device("meta"):
        base = transformers.BertForPreTraining(transformers.BertConfig())
        large = transformers.BertModel(transformers.BertConfig(hidden_size=1024, num_hidden_layers=24,
                                                               num_attention_heads=16, intermediate_size=4096))
        gpt = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig())
        gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        xlnet = transformers.XLNetLMHeadModel(transformers.XLNetConfig())
    assert count("bert@base") == base.num_parameters()
    assert count("bert@large", heads=False) == large.num_parameters()
    assert count("gpt@base") == gpt.num_parameters()
    assert count("gpt2@small") == gpt2.num_parameters()
    assert count("xlnet@large") == xlnet.num_parameters()
