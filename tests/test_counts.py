"""Parameters counted exactly as the papers' checkpoints have them; nothing is allocated for it."""

from __future__ import annotations

import pytest
import torch

import stemma

ENCODER_AND_POOLER = [("bert@base", None, 109_482_240), ("bert@large", None, 335_141_888),
                      ("bert", 21_128, 102_267_648), ("bert@tiny", None, 4_385_920), ("bert@mini", None, 11_170_560),
                      ("bert@small", None, 28_763_648), ("bert@medium", None, 41_373_184)]


def count(name: str, vocabulary: int | None = None, heads: bool = True) -> int:
    with torch.device("meta"):
        return stemma.build(name, vocabulary).parameter_count(heads)


@pytest.mark.parametrize(("name", "vocabulary", "expected"), ENCODER_AND_POOLER)
def test_encoder_and_pooler(name, vocabulary, expected):
    assert count(name, vocabulary, heads=False) == expected


def test_with_heads():
    assert count("bert@base") == 110_106_428


def test_transformers_counts_the_same():
    import transformers

    with torch.device("meta"):
        base = transformers.BertForPreTraining(transformers.BertConfig())
        large = transformers.BertModel(transformers.BertConfig(hidden_size=1024, num_hidden_layers=24,
                                                               num_attention_heads=16, intermediate_size=4096))
    assert count("bert@base") == base.num_parameters()
    assert count("bert@large", heads=False) == large.num_parameters()
