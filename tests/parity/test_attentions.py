"""Attention probabilities and scores agree with transformers' `output_attentions`."""

from __future__ import annotations

import pytest
import torch
from closeness import assert_close
from parity.reference import inputs_for, random_reference

import stemma

CASES = {"bert": "BertModel", "roberta": "RobertaModel", "albert": "AlbertModel", "distilbert": "DistilBertModel",
         "electra": "ElectraModel", "openai-gpt": "OpenAIGPTModel", "gpt2": "GPT2Model", "t5": "T5Model",
         "bart": "BartModel", "modernbert": "ModernBertModel", "modernbert-decoder": "ModernBertDecoderModel",
         "nanochat": "NanoChatModel"}


def attention_cases(family, seed, tmp_path):
    """(model, inputs, expected attentions, which queries are not padding) for three batches."""
    reference = random_reference(family, seed, CASES[family], attn_implementation="eager")
    reference.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    for inputs in inputs_for(reference.config, seed)[:3]:
        inputs = {"decoder_input_ids": inputs["input_ids"][:, :5], **inputs} if model.is_encoder_decoder else inputs
        with torch.no_grad():
            outputs = reference(**inputs, output_attentions=True)
        names = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"} \
            if model.is_encoder_decoder else {"encoder": "attentions"}
        mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
        yield model, inputs, {part: outputs[name] for part, name in names.items()}, mask


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", CASES)
def test_attentions_are_those_of_transformers(tmp_path, family, seed):
    for model, inputs, expected_attentions, mask in attention_cases(family, seed, tmp_path):
        attentions = model.attentions(**inputs)
        assert attentions.keys() == expected_attentions.keys()
        for part, layers in expected_attentions.items():
            assert len(attentions[part]) == len(layers)
            for layer, expected in zip(attentions[part], layers, strict=True):
                assert layer.shape == expected.shape
                queries = mask if part == "encoder" else torch.ones(layer.shape[0], layer.shape[2], dtype=torch.bool)
                assert_close(layer.transpose(1, 2)[queries], expected.transpose(1, 2)[queries])


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_the_softmax_of_the_scores_is_the_attention(tmp_path, family):
    for model, inputs, _, mask in attention_cases(family, 3, tmp_path):
        scores, attentions = model.attention_scores(**inputs), model.attentions(**inputs)
        for part, layers in scores.items():
            for layer, expected in zip(layers, attentions[part], strict=True):
                assert_close(layer.softmax(-1).nan_to_num(0.0), expected)
                if part != "decoder" and not mask.all():
                    assert bool((layer.transpose(1, 3)[~mask] == -torch.inf).all())
        assert not torch.isnan(model.hidden(**inputs)).any()


def test_xlnet_attentions_are_those_of_transformers(tmp_path):
    """With relative positions and segments."""
    reference = random_reference("xlnet", 1, "XLNetModel")
    reference.save_pretrained(tmp_path)
    inputs = inputs_for(reference.config, 1)[1]
    with torch.no_grad():
        expected_attentions = reference(**inputs, output_attentions=True).attentions
    attentions = stemma.load(tmp_path).attentions(**inputs)["encoder"]
    for layer, expected in zip(attentions, expected_attentions, strict=True):
        keys = expected.shape[-1]
        assert_close(layer[..., -keys:], expected)
