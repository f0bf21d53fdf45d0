"""What every head attends to, beside transformers' `output_attentions`."""

from __future__ import annotations

import pytest
import torch
from closeness import assert_close
from parity.reference import inputs_for, random_reference

import stemma

CASES = {"bert": "BertModel", "roberta": "RobertaModel", "albert": "AlbertModel", "distilbert": "DistilBertModel",
         "electra": "ElectraModel", "openai-gpt": "OpenAIGPTModel", "gpt2": "GPT2Model", "t5": "T5Model",
         "bart": "BartModel", "modernbert": "ModernBertModel", "modernbert-decoder": "ModernBertDecoderModel"}


def probabilities(family, seed, tmp_path):
    """(ours, theirs, which queries are text) for each of some inputs."""
    reference = random_reference(family, seed, CASES[family], attn_implementation="eager")
    reference.save_pretrained(tmp_path)
    ours = stemma.load(tmp_path)
    for given in inputs_for(reference.config, seed)[:3]:
        given = {"decoder_input_ids": given["input_ids"][:, :5], **given} if ours.is_encoder_decoder else given
        with torch.no_grad():
            theirs = reference(**given, output_attentions=True)
        names = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"} \
            if ours.is_encoder_decoder else {"encoder": "attentions"}
        mask = given.get("attention_mask", torch.ones_like(given["input_ids"])).bool()
        yield ours, given, {part: theirs[name] for part, name in names.items()}, mask


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", CASES)
def test_probabilities_are_those_of_transformers(tmp_path, family, seed):
    for ours, given, theirs, mask in probabilities(family, seed, tmp_path):
        found = ours.attentions(**given)
        assert found.keys() == theirs.keys()
        for part, layers in theirs.items():
            assert len(found[part]) == len(layers)
            for layer, expected in zip(found[part], layers, strict=True):
                assert layer.shape == expected.shape
                asking = mask if part == "encoder" else torch.ones(layer.shape[0], layer.shape[2], dtype=torch.bool)
                assert_close(layer.transpose(1, 2)[asking], expected.transpose(1, 2)[asking])


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_scores_are_what_the_softmax_is_taken_of(tmp_path, family):
    for ours, given, _, mask in probabilities(family, 3, tmp_path):
        scores, chances = ours.attention_scores(**given), ours.attentions(**given)
        for part, layers in scores.items():
            for layer, expected in zip(layers, chances[part], strict=True):
                assert_close(layer.softmax(-1).nan_to_num(0.0), expected)
                if part != "decoder" and not mask.all():
                    assert bool((layer.transpose(1, 3)[~mask] == -torch.inf).all())
        assert not torch.isnan(ours.hidden(**given)).any()


def test_xlnets_are_those_of_transformers(tmp_path):
    """Relative scores and segments; there the queries come first."""
    reference = random_reference("xlnet", 1, "XLNetModel")
    reference.save_pretrained(tmp_path)
    given = inputs_for(reference.config, 1)[1]
    with torch.no_grad():
        theirs = reference(**given, output_attentions=True).attentions
    found = stemma.load(tmp_path).attentions(**given)["encoder"]
    for layer, expected in zip(found, theirs, strict=True):
        keys = expected.shape[-1]
        assert_close(layer[..., -keys:], expected)
