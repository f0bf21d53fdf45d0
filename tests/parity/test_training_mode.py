"""Training mode agrees with `transformers`: each dropout alone and all together, by mean and variance of the logits
over thousands of draws; and the gradients without dropout.

Transformer-XL, which current releases of transformers lack, is compared with its literal transcription. In ALBERT,
transformers has no dropout after the feed-forward layer, and the authors' code has one (google-research/albert,
`attention_ffn_block`). We follow the authors, and the reference here gets that dropout too.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from literal import adaptive_softmax, transformer_xl
from parity.dropouts import (
    DRAWS,
    RATE,
    DropoutCalls,
    Site,
    assert_same_draws,
    dropout_rates,
    dropouts_without_site,
    repeat_rows,
    with_dropouts,
)
from parity.reference import random_reference
from parity.test_transformer_xl import HEADS, small, transcribed
from torch import Tensor, nn
from torch.nn import functional

import stemma
from stemma.exchange import families
from stemma.exchange.tensor_map import from_hf
from stemma.network.inputs_outputs import QUERY, Stream
from stemma.visibility import Causal, Permutation

EMBEDDING, ATTENTION = r"embedding\.dropout", r"encoder\.blocks\.\d+\.attention\.dropout"
ATTENTION_OUTPUT, INNER = r"encoder\.blocks\.\d+\.attention_dropout", r"encoder\.blocks\.\d+\.feedforward\.dropout"
FEEDFORWARD_OUTPUT, OUTPUT = r"encoder\.blocks\.\d+\.dropout", r"encoder\.output_dropout"


def common_sites(embedding: str | DropoutCalls, attention: str | DropoutCalls,
                 attention_output: str | DropoutCalls | None,
                 feedforward_output: str | DropoutCalls) -> dict[str, Site]:
    """The dropouts that most families have, by their names in transformers."""
    names = {"embedding": (EMBEDDING, embedding), "attention": (ATTENTION, attention),
             "attention output": (ATTENTION_OUTPUT, attention_output),
             "feed-forward output": (FEEDFORWARD_OUTPUT, feedforward_output)}
    return {name: Site(stemma_name, hf_name) for name, (stemma_name, hf_name) in names.items() if hf_name is not None}


BERT_SITES = common_sites(r".*embeddings\.dropout", r".*attention\.self\.dropout", r".*attention\.output\.dropout",
                          r".*layer\.\d+\.output\.dropout")


def xlnet_sites(streams: int) -> dict[str, Site]:
    body, attention, feedforward = r"transformer\.dropout", r".*rel_attn\.dropout", r".*ff\.dropout"
    calls = streams + 2  # the embeddings of each stream, the positions, the output
    embeddings = {"embedding": Site(DropoutCalls(EMBEDDING, 0, streams), DropoutCalls(body, 0, calls))}
    if streams == 2:
        embeddings["query"] = Site(DropoutCalls(EMBEDDING, 1, streams), DropoutCalls(body, 1, calls))
    common = common_sites("", DropoutCalls(attention, 0, 2), DropoutCalls(attention, 1, 2),
                          DropoutCalls(feedforward, 1, 2))
    return {**common, **embeddings,
            "positions": Site(r"relative_positions\.dropout", DropoutCalls(body, streams, calls)),
            "inner": Site(INNER, DropoutCalls(feedforward, 0, 2)),
            "output": Site(OUTPUT, DropoutCalls(body, streams + 1, calls))}


def t5_sites(part: str, last: int) -> dict[str, Site]:
    block = rf"{part}\.block\.\d+\.layer\."
    stemma_block, prefix = rf"{part}\.blocks\.\d+\.", "decoder_" if part == "decoder" else ""
    result = {
        "embedding": Site(prefix + EMBEDDING, DropoutCalls(rf"{part}\.dropout", 0, 2)),
        "attention": Site(stemma_block + r"attention\.dropout", block + r"0\.SelfAttention\.dropout"),
        "inner": Site(stemma_block + r"feedforward\.dropout", block + rf"{last}\.DenseReluDense\.dropout"),
        "feed-forward output": Site(stemma_block + r"dropout", block + rf"{last}\.dropout"),
        "output": Site(rf"{part}\.output_dropout", DropoutCalls(rf"{part}\.dropout", 1, 2)),
    }
    attention_outputs = [("attention output", 0)] + ([("cross output", 1)] if last == 2 else [])
    result |= {name: Site(DropoutCalls(stemma_block + r"attention_dropout", index, last), block + rf"{index}\.dropout")
               for name, index in attention_outputs}
    if last == 2:
        result["cross"] = Site(stemma_block + r"cross\.dropout", block + r"1\.EncDecAttention\.dropout")
    return {f"{part} {name}": site for name, site in result.items()}


def bart_sites(part: str) -> dict[str, Site]:
    layer, stemma_block = rf"model\.{part}\.layers\.\d+\.", rf"{part}\.blocks\.\d+\."
    prefix = "decoder_" if part == "decoder" else ""
    result = {
        "embedding": Site(prefix + EMBEDDING, rf"model\.{part}\.dropout"),
        "attention": Site(stemma_block + r"attention\.dropout", layer + r"self_attn\.dropout"),
        "inner": Site(stemma_block + r"feedforward\.dropout", layer + r"activation_dropout"),
        # one module in transformers
        "sublayers' outputs": Site(stemma_block + r"(attention_)?dropout", layer + r"dropout"),
    }
    if part == "decoder":
        result["cross"] = Site(stemma_block + r"cross\.dropout", layer + r"encoder_attn\.dropout")
    return {f"{part} {name}": site for name, site in result.items()}


HIDDEN = ("hidden_dropout_prob", "attention_probs_dropout_prob")
GPT_RATES = ("resid_pdrop", "attn_pdrop", "embd_pdrop")
GPT_SITES = common_sites(r"transformer\.drop", r".*attn\.attn_dropout", r".*attn\.resid_dropout", r".*mlp\.dropout")


@dataclass(frozen=True)
class Case:
    family: str
    kind: str  # class of transformers
    sites: dict[str, Site]
    rate_keys: tuple[str, ...]  # the config.json keys of the dropout rates
    settings: dict[str, Any] = field(default_factory=dict)
    absent: str = "$^"  # our dropouts that this family lacks: their rate is 0
    unused: str = "$^"  # dropouts of transformers that are never called
    streams: int = 1


NO_INNER_OR_OUTPUT = r"encoder\.blocks\.\d+\.feedforward\.dropout|encoder\.output_dropout"
CASES = {
    "bert": Case("bert", "BertForMaskedLM", BERT_SITES, HIDDEN, absent=NO_INNER_OR_OUTPUT),
    "roberta": Case("roberta", "RobertaForMaskedLM", BERT_SITES, HIDDEN, {"pad_token_id": 1},
                    absent=NO_INNER_OR_OUTPUT),
    "ernie": Case("ernie", "ErnieForMaskedLM", BERT_SITES, HIDDEN, absent=NO_INNER_OR_OUTPUT),
    "electra": Case("electra", "ElectraForPreTraining", BERT_SITES, HIDDEN, absent=NO_INNER_OR_OUTPUT),
    "electra generator": Case("electra", "ElectraForMaskedLM", BERT_SITES, HIDDEN, absent=NO_INNER_OR_OUTPUT),
    "albert": Case("albert", "AlbertForMaskedLM", common_sites(
        r".*embeddings\.dropout", r".*attention\.attention_dropout", r".*attention\.output_dropout",
        r".*ffn_output\.1"), HIDDEN, absent=NO_INNER_OR_OUTPUT, unused=r".*albert_layers\.0\.dropout"),
    "distilbert": Case("distilbert", "DistilBertForMaskedLM", common_sites(
        r".*embeddings\.dropout", r".*attention\.dropout", None, r".*ffn\.dropout"),
        ("dropout", "attention_dropout"), absent=NO_INNER_OR_OUTPUT + "|" + ATTENTION_OUTPUT),
    "gpt": Case("openai-gpt", "OpenAIGPTLMHeadModel", GPT_SITES, GPT_RATES, absent=NO_INNER_OR_OUTPUT),
    "gpt2": Case("gpt2", "GPT2LMHeadModel", GPT_SITES, GPT_RATES, absent=NO_INNER_OR_OUTPUT),
    "xlnet": Case("xlnet", "XLNetLMHeadModel", xlnet_sites(1), ("dropout",), unused=r".*layer\.\d+\.dropout"),
    "xlnet pre-training": Case("xlnet", "XLNetLMHeadModel", xlnet_sites(2), ("dropout",),
                               unused=r".*layer\.\d+\.dropout", streams=2),
    "t5": Case("t5", "T5ForConditionalGeneration", {**t5_sites("encoder", 1), **t5_sites("decoder", 2)},
               ("dropout_rate",)),
    "bart": Case("bart", "BartForConditionalGeneration", {**bart_sites("encoder"), **bart_sites("decoder")},
                 ("dropout", "attention_dropout", "activation_dropout"),
                 absent=r"(en|de)coder\.output_dropout"),
}
MODERN = {"embedding": Site(EMBEDDING, r"model\.embeddings\.drop"), "inner": Site(INNER, r".*mlp\.drop"),
          "attention": Site(ATTENTION, r".*attn\.attention_dropout"),
          "attention output": Site(ATTENTION_OUTPUT, r".*attn\.out_drop")}
MODERN_RATES = ("embedding_dropout", "attention_dropout", "mlp_dropout")
CASES |= {family: Case(family, kind, MODERN, MODERN_RATES, absent=r"encoder\.output_dropout|" + FEEDFORWARD_OUTPUT)
          for family, kind in (("modernbert", "ModernBertForMaskedLM"),
                               ("modernbert-decoder", "ModernBertDecoderForCausalLM"))}
CASES["nanochat"] = Case("nanochat", "NanoChatForCausalLM",
                         {"attention": Site(ATTENTION, r".*attn\.attention_dropout")},
                         ("attention_dropout",),
                         absent="|".join((EMBEDDING, ATTENTION_OUTPUT, INNER, FEEDFORWARD_OUTPUT, OUTPUT)))
NAMES = pytest.mark.parametrize("name", CASES)
IDS, TARGET = torch.tensor([[7, 3, 11, 5]]), torch.tensor([[2, 9, 4]])
ORDER, QUERIES = torch.tensor([[2, 0, 3, 1]]), torch.tensor([[0, 2]])  # the last two of the order


def with_ffn_dropout(hf_model: nn.Module) -> nn.Module:
    """ALBERT with the dropout after the feed-forward layer, which transformers creates and never calls."""
    for module in hf_model.modules():
        if type(module).__name__ == "AlbertLayer":
            module.ffn_output = nn.Sequential(module.ffn_output, nn.Dropout(module.dropout.p))
    return hf_model


@cache
def model_pair(name: str, dropout: bool) -> tuple[stemma.Model, Any]:
    """A tiny random model of transformers, and the Stemma model loaded from it; tests must not change them."""
    case = CASES[name]
    settings = {**dict.fromkeys(case.rate_keys, RATE if dropout else 0.0), **case.settings}
    hf_model = random_reference(case.family, 3, case.kind, attn_implementation="eager", **settings)
    with TemporaryDirectory() as folder:
        hf_model.save_pretrained(Path(folder) / "model")
        model = stemma.load(Path(folder) / "model")
    return model, with_ffn_dropout(hf_model)


def inputs_of(name: str) -> dict[str, Tensor]:
    return {"input_ids": IDS, **({"decoder_input_ids": TARGET} if CASES[name].family in ("t5", "bart") else {})}


def model_logits(network: nn.Module, name: str, inputs: dict[str, Tensor]) -> Tensor:
    model = copy.copy(model_pair(name, True)[0])
    model.network = network
    ids, part = inputs["input_ids"], "encoder"
    streams = {"encoder": model.encoder_stream(ids)}
    if "decoder_input_ids" in inputs:
        streams["decoder"], part = Stream(inputs["decoder_input_ids"], Causal()), "decoder"
    if CASES[name].streams == 2:
        rows = len(ids)
        streams["encoder"], part = Stream(ids, Permutation(ORDER.expand(rows, -1)),
                                          query_positions=QUERIES.expand(rows, -1)), QUERY
    hidden = network(streams)[part]
    return network.heads["replaced_token"](hidden) if model.is_discriminator else model.lm_head()(hidden)


def hf_logits(network: nn.Module, name: str, inputs: dict[str, Tensor]) -> Tensor:
    stream_inputs: dict[str, Tensor] = {}
    if CASES[name].streams == 2:
        rows = len(inputs["input_ids"])
        stream_inputs = {"perm_mask": (ORDER[:, None, :] >= ORDER[:, :, None]).float().expand(rows, -1, -1),
                         "target_mapping": functional.one_hot(QUERIES, IDS.shape[1]).float().expand(rows, -1, -1)}
    return network(**inputs, **stream_inputs).logits


@torch.no_grad()
def draws(name: str, sites: list[Site], seed: int = 11) -> tuple[Tensor, Tensor]:
    """Logits of both models with the dropouts of these sites. As in Transformer-XL's code, the rows of a batch share
    one dropout mask for the positions: there each draw is a batch of its own."""
    model, hf_model = model_pair(name, True)
    network, hf_network = (with_dropouts(source, [site.calls(in_stemma) for site in sites])
                           for source, in_stemma in ((model.network, True), (hf_model, False)))
    torch.manual_seed(seed)
    inputs = repeat_rows(inputs_of(name), DRAWS)
    if sites != [CASES[name].sites.get("positions")]:
        return model_logits(network, name, inputs), hf_logits(hf_network, name, inputs)
    samples = [model_logits(network, name, inputs_of(name)) for _ in range(DRAWS // 5)]
    return torch.cat(samples), hf_logits(hf_network, name, inputs)


@pytest.mark.parametrize(("name", "site"), [(name, site) for name, case in CASES.items() for site in case.sites
                                            if (name, site) != ("xlnet pre-training", "positions")])
def test_each_dropout_has_the_same_distribution(name, site):
    assert_same_draws(*draws(name, [CASES[name].sites[site]]))


@NAMES
def test_all_dropouts_together_have_the_same_distribution(name):
    assert_same_draws(*draws(name, [site for key, site in CASES[name].sites.items() if key != "positions"]))


@NAMES
def test_every_dropout_rate_is_loaded_and_every_dropout_has_a_site(name):
    """No dropout of either network is without a site."""
    model, hf_model, case = *model_pair(name, True), CASES[name]
    for network, in_stemma, unused in ((model.network, True, case.absent), (hf_model, False, case.unused)):
        assert dropouts_without_site(network, [site.calls(in_stemma) for site in case.sites.values()], unused) == []
    rates = dropout_rates(model.network)
    assert rates == {key: 0.0 if re.fullmatch(case.absent, key) else RATE for key in rates}


@torch.no_grad()
def test_transformers_has_no_feedforward_dropout_in_albert():
    """If this fails, transformers has added it, and `with_ffn_dropout` can go."""
    hf_model = with_dropouts(model_pair("albert", True)[1], [DropoutCalls(CASES["albert"].unused)])
    logits = hf_model(**repeat_rows(inputs_of("albert"), 5)).logits
    # rows of one batch may be rounded differently; dropout would change every logit
    torch.testing.assert_close(logits, logits[:1].expand_as(logits), atol=1e-4, rtol=1e-4)


@NAMES
def test_gradients_are_equal_without_dropout(name):
    model, hf_model, family = *model_pair(name, False), families()[CASES[name].family]
    network, hf_network = copy.deepcopy(model.network).train(), copy.deepcopy(hf_model).train()
    torch.manual_seed(5)
    logits, expected = model_logits(network, name, inputs_of(name)), hf_logits(hf_network, name, inputs_of(name))
    weights = torch.randn(expected.shape)
    (logits * weights).sum().backward()
    (expected * weights).sum().backward()
    gradients = gradients_of(network)
    hf_gradients = {key.replace("ffn_output.0.", "ffn_output."): gradient
                    for key, gradient in gradients_of(hf_network).items()}
    keys = family.tensor_keys(model.network.heads, gradients, bare=False)
    for key, gradient in from_hf(keys, hf_gradients, gradients).items():
        assert gradient.abs().max() > 0 or "segment" in key or "tasks" in key or "query" in key, f"{key}: no gradient"
        largest = float(gradient.abs().max().clamp(min=1e-3))
        torch.testing.assert_close(gradients[key] / largest, gradient / largest, atol=2e-4, rtol=0,
                                   msg=f"{key} differs")


def gradients_of(network: nn.Module) -> dict[str, Tensor]:
    return {key: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for key, parameter in network.named_parameters()}


# --- Transformer-XL, against its transcription ------------------------------------------------------------------------

XL_SITES = {"embedding": EMBEDDING, "positions": r"relative_positions\.dropout", "attention": ATTENTION,
            "attention output": ATTENTION_OUTPUT, "inner": INNER, "feed-forward output": FEEDFORWARD_OUTPUT,
            "output": OUTPUT}
XL_IDS = torch.tensor([[7, 33, 11]])


def transcribed_draws(model: stemma.Model, active_site: str, rows: int) -> Tensor:
    stack, embedding = transcribed(model)
    settings = model.network.settings
    cutoffs = list(settings.embedding.cutoffs)

    def drop(site: str, x: Tensor) -> Tensor:
        return x * (torch.rand_like(x) >= RATE) / (1 - RATE) if site == active_site else x

    def draw(_: Tensor) -> Tensor:
        memory = transformer_xl.no_memory(settings.layers, settings.width, settings.memory.length)
        x = adaptive_softmax.embedded(XL_IDS[0].tolist(), embedding, cutoffs, settings.width)
        hidden, _ = transformer_xl.segment(x, memory, stack, HEADS, settings.memory.length, settings.position.clamp,
                                           settings.memory.same_length, settings.norm.epsilon, drop)
        return torch.stack([adaptive_softmax.log_probabilities(state, embedding, cutoffs) for state in hidden])

    return torch.vmap(draw, randomness="different")(torch.zeros(rows))


@torch.no_grad()
@pytest.mark.parametrize("site", XL_SITES)
def test_each_dropout_of_transformer_xl_has_the_same_distribution(site):
    model = small()
    network = with_dropouts(model.network, [DropoutCalls(XL_SITES[site])])
    torch.manual_seed(11)

    def draw(rows: int) -> Tensor:
        hidden = network({"encoder": Stream(XL_IDS.expand(rows, -1), Causal())})["encoder"]
        return network.head("vocabulary")(hidden).log_softmax(-1)

    samples = draw(DRAWS) if site != "positions" else torch.cat([draw(1) for _ in range(DRAWS // 5)])
    assert_same_draws(samples, transcribed_draws(model, site, DRAWS))


def test_every_dropout_of_transformer_xl_has_a_site_and_a_rate():
    """In every size of the recipes, all dropouts but that of attention have one rate."""
    assert dropouts_without_site(small().network, [DropoutCalls(name) for name in XL_SITES.values()]) == []
    for recipe in ("transformer-xl", "transformer-xl@base", "transformer-xl@tiny", "transformer-xl@mini",
                   "transformer-xl@midi", "xlnet", "xlnet@large", "xlnet@tiny", "xlnet@mini", "xlnet@midi"):
        network = stemma.recipe(recipe).settings.network
        assert network.dropout == network.inner_dropout == network.output_dropout, recipe
        assert (network.dropout == 0) == recipe.endswith(("@tiny", "@mini", "@midi")), recipe  # no dropout on a laptop
