"""Parameters counted exactly as the papers' checkpoints have them; nothing is allocated for it."""

from __future__ import annotations

import pytest
import torch

import stemma
from stemma.objectives.connectives import CONNECTIVES

ENCODER_AND_POOLER = [("bert@base", None, 109_482_240), ("bert@large", None, 335_141_888),
                      ("bert", 21_128, 102_267_648), ("bert@tiny", None, 4_385_920), ("bert@mini", None, 11_170_560),
                      ("ernie", None, 99_866_112), ("ernie-2@base", None, 109_483_776),
                      ("bert@small", None, 28_763_648), ("bert@medium", None, 41_373_184),
                      ("bert-wwm", None, 102_267_648), ("bert-wwm-ext", None, 102_267_648),
                      ("structbert@base", None, 109_482_240), ("structbert@large", None, 335_141_888),
                      ("albert@base", None, 11_683_584), ("albert@large", None, 17_683_968),
                      ("albert@xlarge", None, 58_724_864), ("albert@xxlarge", None, 222_595_584)]

WITH_HEADS = [("bert@base", 110_106_428), ("gpt", 116_534_784),
              ("gpt2@small", 124_439_808), ("gpt2@medium", 354_823_168), ("gpt2@large", 774_030_080),
              ("gpt2@xl", 1_557_611_200), ("xlnet@base", 116_750_336), ("xlnet@large", 360_300_800),
              ("transformer-xl@large", 285_205_322), ("t5@small", 60_506_624), ("t5@base", 222_903_552),
              ("t5@large", 737_668_096), ("t5@3b", 2_851_598_336), ("t5@11b", 11_307_321_344),
              ("bart@base", 139_420_416), ("bart@large", 406_291_456),
              ("roberta@base", 124_697_433), ("roberta@large", 355_412_057)]


def count(name: str, vocabulary: int | None = None, heads: bool = True) -> int:
    with torch.device("meta"):
        return stemma.build(name, vocabulary).parameter_count(heads)


@pytest.mark.parametrize(("name", "vocabulary", "expected"), ENCODER_AND_POOLER)
def test_encoder_and_pooler(name, vocabulary, expected):
    assert count(name, vocabulary, heads=False) == expected


@pytest.mark.parametrize(("name", "expected"), WITH_HEADS)
def test_with_heads(name, expected):
    assert count(name) == expected


def test_distilbert_is_half_of_bert():
    halved = ["network.layers=6", "network.embedding.segments=0", "corpus.pair=start A separator B separator",
              "remove=objective.next_sentence"]
    with torch.device("meta"):
        assert stemma.build("bert", None, halved).parameter_count(heads=False) == 66_362_880


@pytest.mark.parametrize(("name", "discriminator", "changes", "generator"), [
    ("electra@small", 13_549_057, [], 4_620_026),  # as in the paper, 64 wide
    ("electra@small", 13_549_057, ["network.generator.multiplier=1.0"], 13_546_682),  # as released, 256 wide
    ("electra@base", 109_483_009, [], None), ("electra@large", 335_142_913, [], None)])
def test_what_is_kept_of_electra_is_its_discriminator(name, discriminator, changes, generator):
    with torch.device("meta"):
        model = stemma.build(name, changes=changes)
    assert model.parameter_count() == discriminator
    assert model.network.generator is not None
    assert generator in (None, model.network.generator.parameter_count())


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


@pytest.mark.parametrize(("name", "layers", "width"), [("spanbert@base", 12, 768), ("spanbert@large", 24, 1024)])
def test_spanbert_is_cased_bert_without_a_pooler_and_a_head_for_edges(name, layers, width):
    import transformers

    with torch.device("meta"):
        theirs = transformers.BertForMaskedLM(transformers.BertConfig(
            vocab_size=28_996, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64,
            intermediate_size=4 * width)).num_parameters()
    edges = 15 * 200 + (2 * width + 200) * width + width * width + 2 * (width + norm(width)) + 28_996
    assert count(name) == theirs + edges


def test_unilm_is_bert_with_four_segments_more():
    assert count("unilm@large", heads=False) == count("bert@large", heads=False) + 4 * 1024
    assert count("unilm@base") == count("bert@base") + 4 * 768


def test_ernie_2_large_is_bert_large_with_two_segments_more_and_vectors_for_its_tasks():
    assert count("ernie-2@large", heads=False) == count("bert@large", heads=False) + 2 * 1024
    by_task = sum(classes * (1024 + 1) for classes in (2, 2, 9, 3, len(CONNECTIVES), 3))
    vocabulary = count("bert@large") - count("bert@large", heads=False) - 2 * (1024 + 1)  # without next sentence
    assert count("ernie-2@large") - count("ernie-2@large", heads=False) == vocabulary + by_task + 7 * 1024


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
        electra = transformers.ElectraForPreTraining(transformers.ElectraConfig())
        albert = transformers.AlbertForPreTraining(transformers.AlbertConfig())
    assert count("bert@base") == base.num_parameters()
    assert count("bert@large", heads=False) == large.num_parameters()
    assert count("gpt@base") == gpt.num_parameters()
    assert count("gpt2@small") == gpt2.num_parameters()
    assert count("xlnet@large") == xlnet.num_parameters()
    assert count("t5@small") == t5.num_parameters()
    assert count("bart@large") == bart.num_parameters()
    assert count("electra@small") == electra.num_parameters()
    assert count("albert@xxlarge") == albert.num_parameters()
