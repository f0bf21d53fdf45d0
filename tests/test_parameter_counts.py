"""Parameter counts equal those of the published checkpoints; networks are built on the meta device."""

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
                      ("neobert@base", None, 221_665_536),
                      ("albert@xlarge", None, 58_724_864), ("albert@xxlarge", None, 222_595_584)]

WITH_HEADS = [("bert@base", 110_106_428), ("gpt", 116_534_784),
              ("gpt2@small", 124_439_808), ("gpt2@medium", 354_823_168), ("gpt2@large", 774_030_080),
              ("gpt2@xl", 1_557_611_200), ("xlnet@base", 116_750_336), ("xlnet@large", 360_300_800),
              ("transformer-xl@large", 285_205_322), ("t5@small", 60_506_624), ("t5@base", 222_903_552),
              ("t5@large", 737_668_096), ("t5@3b", 2_851_598_336), ("t5@11b", 11_307_321_344),
              ("bart@base", 139_420_416), ("bart@large", 406_291_456),
              ("nanochat@d20", 560_988_160), ("nanochat@d26", 1_081_999_360), ("nanochat@d32", 1_879_048_192),
              ("ltg-bert@base", 98_229_760), ("gpt-bert@base", 119_454_532), ("gpt-bert@small", 29_892_164),
              ("lstm-lm@medium", 19_775_200), ("lstm-lm@large", 66_022_000),
              # the authors' code has a second bias in each layer, 10,800 numbers more: 24,221,600 and 33,556,078
              ("awd-lstm@ptb", 24_210_800), ("awd-lstm@wikitext2", 33_545_278),
              ("roberta@base", 124_697_433), ("roberta@large", 355_412_057)]


def count(name: str, vocabulary: int | None = None, heads: bool = True) -> int:
    with torch.device("meta"):
        return stemma.build(name, vocabulary).parameter_count(heads)


@pytest.mark.parametrize(("name", "vocabulary", "expected"), ENCODER_AND_POOLER)
def test_encoder_and_pooler_have_the_published_parameter_count(name, vocabulary, expected):
    assert count(name, vocabulary, heads=False) == expected


@pytest.mark.parametrize(("name", "expected"), WITH_HEADS)
def test_encoder_and_heads_have_the_published_parameter_count(name, expected):
    assert count(name) == expected


def test_bert_with_half_of_its_layers_has_the_parameter_count_of_distilbert():
    halved = ["network.layers=6", "network.embedding.segments=0", "corpus.pair=start A separator B separator",
              "remove=objective.next_sentence"]
    with torch.device("meta"):
        assert stemma.build("bert", None, halved).parameter_count(heads=False) == 66_362_880


@pytest.mark.parametrize(("name", "discriminator", "changes", "generator"), [
    ("electra@small", 13_549_057, [], 4_620_026),  # as in the paper, 64 wide
    ("electra@small", 13_549_057, ["network.generator.multiplier=1.0"], 13_546_682),  # as released, 256 wide
    ("electra@base", 109_483_009, [], None), ("electra@large", 335_142_913, [], None)])
def test_electra_counts_its_discriminator_only(name, discriminator, changes, generator):
    with torch.device("meta"):
        model = stemma.build(name, changes=changes)
    assert model.parameter_count() == discriminator
    assert model.network.generator is not None
    assert generator in (None, model.network.generator.parameter_count())


@pytest.mark.parametrize(("name", "order", "hidden", "width", "direct"), [("nnlm@mlp1", 5, 50, 60, True),
                                                                          ("nnlm@mlp9", 5, 100, 30, False)])
def test_nnlm_has_the_parameter_count_of_the_paper(name, order, hidden, width, direct):
    """Section 2: |V| (1 + n m + h) + h (1 + (n - 1) m), less the direct connections if there are none."""
    vocabulary = 16_383
    expected = vocabulary * (1 + order * width + hidden) + hidden * (1 + (order - 1) * width)
    assert count(name) == expected - (0 if direct else vocabulary * (order - 1) * width)


def test_the_encoder_of_cove_is_the_authors_lstm():
    """nn.LSTM(300, 300, 2, bidirectional=True) with one bias in each layer and direction in place of two."""
    with torch.device("meta"):
        encoder = stemma.build("cove").network.encoder
        reference = torch.nn.LSTM(300, 300, 2, bidirectional=True)
    sizes = [sum(parameter.numel() for parameter in module.parameters()) for module in (encoder, reference)]
    assert sizes[0] == sizes[1] - 4 * 4 * 300


def norm(width: int) -> int:
    return 2 * width


def attention(width: int) -> int:
    return 4 * (width * width + width)  # query, key, value and output, each with its bias


def feedforward(width: int, inner: int) -> int:
    return width * inner + inner + inner * width + width


def encoder_decoder(vocabulary: int, layers: int, width: int, inner: int, positions: int = 0) -> int:
    """One shared embedding matrix for both texts and the output; learned positions for each; two sublayers per encoder
    layer and three per decoder layer, each with its norm."""
    encoder = attention(width) + feedforward(width, inner) + 2 * norm(width)
    return vocabulary * width + 2 * positions * width + layers * (2 * encoder + attention(width) + norm(width))


@pytest.mark.parametrize(("name", "expected"), [
    ("transformer@base", encoder_decoder(37_000, 6, 512, 2048)),  # "65 million"
    ("transformer@big", encoder_decoder(37_000, 6, 1024, 4096)),  # "213 million"
    ("mass@base", encoder_decoder(60_000, 6, 1024, 4096, positions=512))])
def test_encoder_decoders_equal_a_count_by_formula(name, expected):
    assert count(name) == expected


def test_the_transformer_has_the_parameter_count_of_the_paper():
    assert [count("transformer@base"), count("transformer@big")] == [63_082_496, 214_245_376]


@pytest.mark.parametrize(("name", "layers", "width"), [("spanbert@base", 12, 768), ("spanbert@large", 24, 1024)])
def test_spanbert_is_cased_bert_without_a_pooler_and_with_a_span_boundary_head(name, layers, width):
    import transformers

    with torch.device("meta"):
        reference = transformers.BertForMaskedLM(transformers.BertConfig(
            vocab_size=28_996, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64,
            intermediate_size=4 * width)).num_parameters()
    boundary_head = 15 * 200 + (2 * width + 200) * width + width * width + 2 * (width + norm(width)) + 28_996
    assert count(name) == reference + boundary_head


def test_unilm_is_bert_with_four_more_segment_embeddings():
    assert count("unilm@large", heads=False) == count("bert@large", heads=False) + 4 * 1024
    assert count("unilm@base") == count("bert@base") + 4 * 768


def test_ernie_2_large_is_bert_large_with_two_more_segments_and_task_embeddings():
    assert count("ernie-2@large", heads=False) == count("bert@large", heads=False) + 2 * 1024
    task_heads = sum(classes * (1024 + 1) for classes in (2, 2, 9, 3, len(CONNECTIVES), 3))
    vocabulary = count("bert@large") - count("bert@large", heads=False) - 2 * (1024 + 1)  # without next sentence
    assert count("ernie-2@large") - count("ernie-2@large", heads=False) == vocabulary + task_heads + 7 * 1024


def test_a_prefix_lm_has_the_parameters_of_one_t5_stack():
    """T5's decoder without cross-attention, which is as large as self-attention and a norm."""
    width, layers = 768, 12
    cross_attention = layers * (4 * width * width + width)
    decoder = count("t5@base") - count("prefix-lm@base") - cross_attention
    assert decoder == count("prefix-lm@base") - 32_128 * width  # both have relative biases and a final norm


def test_parameter_counts_equal_those_of_transformers():
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
