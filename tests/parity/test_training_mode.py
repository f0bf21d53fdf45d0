"""In training mode, too, we compute what `transformers` computes: each dropout by itself, by the mean and the variance
of the logits over thousands of draws; all of them at once; and the gradients without any.

Transformer-XL, which later releases have no more, is compared with its literal transcription. Of ALBERT, `transformers`
leaves out a dropout that the authors' code has (google-research/albert, `attention_ffn_block`): the one of the
feed-forward's output. We follow the authors, and the reference here is given that dropout.
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
from parity.dropouts import DRAWS, RATE, Site, Where, assert_same_draws, only, rates, repeated, unassigned
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
ADDED, INNER = r"encoder\.blocks\.\d+\.attention_dropout", r"encoder\.blocks\.\d+\.feedforward\.dropout"
TRANSITION, OUTPUT = r"encoder\.blocks\.\d+\.dropout", r"encoder\.output_dropout"


def sites(embedding: str | Where, attention: str | Where, added: str | Where | None, transition: str | Where,
          **more: Site) -> dict[str, Site]:
    """What they call the dropouts that most of them have."""
    known = {"embedding": (EMBEDDING, embedding), "attention": (ATTENTION, attention),
             "attention output": (ADDED, added), "feed-forward output": (TRANSITION, transition)}
    return {**{name: Site(ours, theirs) for name, (ours, theirs) in known.items() if theirs is not None}, **more}


BERT_SITES = sites(r".*embeddings\.dropout", r".*attention\.self\.dropout", r".*attention\.output\.dropout",
                   r".*layer\.\d+\.output\.dropout")


def xlnet_sites(streams: int) -> dict[str, Site]:
    body, attention, feedforward = r"transformer\.dropout", r".*rel_attn\.dropout", r".*ff\.dropout"
    calls = streams + 2  # the embeddings of each stream, the positions, the output
    embeddings = {"embedding": Site(Where(EMBEDDING, 0, streams), Where(body, 0, calls))}
    if streams == 2:
        embeddings["query"] = Site(Where(EMBEDDING, 1, streams), Where(body, 1, calls))
    made = sites("", Where(attention, 0, 2), Where(attention, 1, 2), Where(feedforward, 1, 2))
    return {**made, **embeddings, "positions": Site(r"relative_positions\.dropout", Where(body, streams, calls)),
            "inner": Site(INNER, Where(feedforward, 0, 2)), "output": Site(OUTPUT, Where(body, streams + 1, calls))}


def t5_sites(part: str, last: int) -> dict[str, Site]:
    block = rf"{part}\.block\.\d+\.layer\."
    mine, prefix = rf"{part}\.blocks\.\d+\.", "decoder_" if part == "decoder" else ""
    made = {
        "embedding": Site(prefix + EMBEDDING, Where(rf"{part}\.dropout", 0, 2)),
        "attention": Site(mine + r"attention\.dropout", block + r"0\.SelfAttention\.dropout"),
        "inner": Site(mine + r"feedforward\.dropout", block + rf"{last}\.DenseReluDense\.dropout"),
        "feed-forward output": Site(mine + r"dropout", block + rf"{last}\.dropout"),
        "output": Site(rf"{part}\.output_dropout", Where(rf"{part}\.dropout", 1, 2)),
    }
    looks = [("attention output", 0)] + ([("cross output", 1)] if last == 2 else [])
    made |= {name: Site(Where(mine + r"attention_dropout", number, last), block + rf"{number}\.dropout")
             for name, number in looks}
    if last == 2:
        made["cross"] = Site(mine + r"cross\.dropout", block + r"1\.EncDecAttention\.dropout")
    return {f"{part} {name}": site for name, site in made.items()}


def bart_sites(part: str) -> dict[str, Site]:
    layer, mine = rf"model\.{part}\.layers\.\d+\.", rf"{part}\.blocks\.\d+\."
    prefix = "decoder_" if part == "decoder" else ""
    made = {
        "embedding": Site(prefix + EMBEDDING, rf"model\.{part}\.dropout"),
        "attention": Site(mine + r"attention\.dropout", layer + r"self_attn\.dropout"),
        "inner": Site(mine + r"feedforward\.dropout", layer + r"activation_dropout"),
        "sublayers' outputs": Site(mine + r"(attention_)?dropout", layer + r"dropout"),  # one number over there
    }
    if part == "decoder":
        made["cross"] = Site(mine + r"cross\.dropout", layer + r"encoder_attn\.dropout")
    return {f"{part} {name}": site for name, site in made.items()}


HIDDEN = ("hidden_dropout_prob", "attention_probs_dropout_prob")
GPT_RATES = ("resid_pdrop", "attn_pdrop", "embd_pdrop")
GPT_SITES = sites(r"transformer\.drop", r".*attn\.attn_dropout", r".*attn\.resid_dropout", r".*mlp\.dropout")


@dataclass(frozen=True)
class Case:
    family: str
    kind: str  # their class
    sites: dict[str, Site]
    rates: tuple[str, ...]  # what config.json calls them
    settings: dict[str, Any] = field(default_factory=dict)
    none: str = "$^"  # dropouts of ours that are not there in this family
    unused: str = "$^"  # dropouts of theirs that are never called
    streams: int = 1


NOT_INSIDE = r"encoder\.blocks\.\d+\.feedforward\.dropout|encoder\.output_dropout"
CASES = {
    "bert": Case("bert", "BertForMaskedLM", BERT_SITES, HIDDEN, none=NOT_INSIDE),
    "roberta": Case("roberta", "RobertaForMaskedLM", BERT_SITES, HIDDEN, {"pad_token_id": 1}, none=NOT_INSIDE),
    "ernie": Case("ernie", "ErnieForMaskedLM", BERT_SITES, HIDDEN, none=NOT_INSIDE),
    "electra": Case("electra", "ElectraForPreTraining", BERT_SITES, HIDDEN, none=NOT_INSIDE),
    "electra generator": Case("electra", "ElectraForMaskedLM", BERT_SITES, HIDDEN, none=NOT_INSIDE),
    "albert": Case("albert", "AlbertForMaskedLM", sites(
        r".*embeddings\.dropout", r".*attention\.attention_dropout", r".*attention\.output_dropout",
        r".*ffn_output\.1"), HIDDEN, none=NOT_INSIDE, unused=r".*albert_layers\.0\.dropout"),
    "distilbert": Case("distilbert", "DistilBertForMaskedLM", sites(
        r".*embeddings\.dropout", r".*attention\.dropout", None, r".*ffn\.dropout"),
        ("dropout", "attention_dropout"), none=NOT_INSIDE + "|" + ADDED),
    "gpt": Case("openai-gpt", "OpenAIGPTLMHeadModel", GPT_SITES, GPT_RATES, none=NOT_INSIDE),
    "gpt2": Case("gpt2", "GPT2LMHeadModel", GPT_SITES, GPT_RATES, none=NOT_INSIDE),
    "xlnet": Case("xlnet", "XLNetLMHeadModel", xlnet_sites(1), ("dropout",), unused=r".*layer\.\d+\.dropout"),
    "xlnet pre-training": Case("xlnet", "XLNetLMHeadModel", xlnet_sites(2), ("dropout",),
                               unused=r".*layer\.\d+\.dropout", streams=2),
    "t5": Case("t5", "T5ForConditionalGeneration", {**t5_sites("encoder", 1), **t5_sites("decoder", 2)},
               ("dropout_rate",)),
    "bart": Case("bart", "BartForConditionalGeneration", {**bart_sites("encoder"), **bart_sites("decoder")},
                 ("dropout", "attention_dropout", "activation_dropout"),
                 none=r"(en|de)coder\.output_dropout"),
}
MODERN = {"embedding": Site(EMBEDDING, r"model\.embeddings\.drop"), "inner": Site(INNER, r".*mlp\.drop"),
          "attention": Site(ATTENTION, r".*attn\.attention_dropout"),
          "attention output": Site(ADDED, r".*attn\.out_drop")}
MODERN_RATES = ("embedding_dropout", "attention_dropout", "mlp_dropout")
CASES |= {family: Case(family, kind, MODERN, MODERN_RATES, none=r"encoder\.output_dropout|" + TRANSITION)
          for family, kind in (("modernbert", "ModernBertForMaskedLM"),
                               ("modernbert-decoder", "ModernBertDecoderForCausalLM"))}
NAMES = pytest.mark.parametrize("name", CASES)
TEXT, WRITTEN = torch.tensor([[7, 3, 11, 5]]), torch.tensor([[2, 9, 4]])
ORDER, ASKED = torch.tensor([[2, 0, 3, 1]]), torch.tensor([[0, 2]])  # the last two of the order


def as_the_authors(theirs: nn.Module) -> nn.Module:
    """ALBERT with the dropout of the feed-forward's output, which is made and never called over there."""
    for part in theirs.modules():
        if type(part).__name__ == "AlbertLayer":
            part.ffn_output = nn.Sequential(part.ffn_output, nn.Dropout(part.dropout.p))
    return theirs


@cache
def pair(name: str, dropped: bool) -> tuple[stemma.Model, Any]:
    """A tiny random model of theirs, and ours read from its folder; nobody changes them."""
    case = CASES[name]
    settings = {**dict.fromkeys(case.rates, RATE if dropped else 0.0), **case.settings}
    theirs = random_reference(case.family, 3, case.kind, attn_implementation="eager", **settings)
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(Path(folder) / "model")
        ours = stemma.load(Path(folder) / "model")
    return ours, as_the_authors(theirs)


def text_of(name: str) -> dict[str, Tensor]:
    return {"input_ids": TEXT, **({"decoder_input_ids": WRITTEN} if CASES[name].family in ("t5", "bart") else {})}


def our_logits(network: nn.Module, name: str, inputs: dict[str, Tensor]) -> Tensor:
    model = copy.copy(pair(name, True)[0])
    model.network = network
    ids, part = inputs["input_ids"], "encoder"
    streams = {"encoder": model.encoder_stream(ids)}
    if "decoder_input_ids" in inputs:
        streams["decoder"], part = Stream(inputs["decoder_input_ids"], Causal()), "decoder"
    if CASES[name].streams == 2:
        rows = len(ids)
        streams["encoder"], part = Stream(ids, Permutation(ORDER.expand(rows, -1)),
                                          query_positions=ASKED.expand(rows, -1)), QUERY
    hidden = network(streams)[part]
    return network.heads["replaced_token"](hidden) if model.is_discriminator else model.lm_head()(hidden)


def their_logits(network: nn.Module, name: str, inputs: dict[str, Tensor]) -> Tensor:
    more: dict[str, Tensor] = {}
    if CASES[name].streams == 2:
        rows = len(inputs["input_ids"])
        more = {"perm_mask": (ORDER[:, None, :] >= ORDER[:, :, None]).float().expand(rows, -1, -1),
                "target_mapping": functional.one_hot(ASKED, TEXT.shape[1]).float().expand(rows, -1, -1)}
    return network(**inputs, **more).logits


@torch.no_grad()
def draws(name: str, chosen: list[Site], seed: int = 11) -> tuple[Tensor, Tensor]:
    """Logits of ours and theirs with the dropouts of these sites. The rows of one batch of ours have one mask for the
    positions in common, as in Transformer-XL's code: of those, each draw is a batch of its own."""
    ours, theirs = pair(name, True)
    one, other = (only(network, [site.where(mine) for site in chosen])
                  for network, mine in ((ours.network, True), (theirs, False)))
    torch.manual_seed(seed)
    inputs = repeated(text_of(name), DRAWS)
    if chosen != [CASES[name].sites.get("positions")]:
        return our_logits(one, name, inputs), their_logits(other, name, inputs)
    drawn = [our_logits(one, name, text_of(name)) for _ in range(DRAWS // 5)]
    return torch.cat(drawn), their_logits(other, name, inputs)


@pytest.mark.parametrize(("name", "site"), [(name, site) for name, case in CASES.items() for site in case.sites
                                            if (name, site) != ("xlnet pre-training", "positions")])
def test_each_dropout_by_itself(name, site):
    assert_same_draws(*draws(name, [CASES[name].sites[site]]))


@NAMES
def test_all_at_once(name):
    assert_same_draws(*draws(name, [site for key, site in CASES[name].sites.items() if key != "positions"]))


@NAMES
def test_every_rate_is_read_and_none_is_forgotten(name):
    """Neither a dropout of theirs that no site above names, nor one of ours that they do not have."""
    ours, theirs, case = *pair(name, True), CASES[name]
    for network, mine, unused in ((ours.network, True, case.none), (theirs, False, case.unused)):
        assert unassigned(network, [site.where(mine) for site in case.sites.values()], unused) == []
    assert rates(ours.network) == {key: 0.0 if re.fullmatch(case.none, key) else RATE for key in rates(ours.network)}


@torch.no_grad()
def test_what_transformers_leaves_out_of_albert():
    """Should they mend it, the reference above is to be used as it is."""
    theirs = only(pair("albert", True)[1], [Where(CASES["albert"].unused)])
    logits = theirs(**repeated(text_of("albert"), 5)).logits
    assert torch.equal(logits, logits[:1].expand_as(logits))


@NAMES
def test_gradients_are_equal_without_dropout(name):
    ours, theirs, family = *pair(name, False), families()[CASES[name].family]
    one, other = copy.deepcopy(ours.network).train(), copy.deepcopy(theirs).train()
    torch.manual_seed(5)
    logits, expected = our_logits(one, name, text_of(name)), their_logits(other, name, text_of(name))
    weights = torch.randn(expected.shape)
    (logits * weights).sum().backward()
    (expected * weights).sum().backward()
    found = {key: parameter.grad for key, parameter in one.named_parameters()}
    told = {key.replace("ffn_output.0.", "ffn_output."): torch.zeros_like(each) if each.grad is None else each.grad
            for key, each in other.named_parameters()}
    keys = family.tensor_keys(ours.network.heads, found, bare=False)
    for key, gradient in from_hf(keys, told, found_or_zeros(one)).items():
        mine = found_or_zeros(one)[key]
        assert gradient.abs().max() > 0 or "segment" in key or "tasks" in key or "query" in key, f"{key} learns nothing"
        largest = float(gradient.abs().max().clamp(min=1e-3))
        torch.testing.assert_close(mine / largest, gradient / largest, atol=2e-4, rtol=0, msg=f"{key} differs")


def found_or_zeros(network: nn.Module) -> dict[str, Tensor]:
    return {key: torch.zeros_like(each) if each.grad is None else each.grad for key, each in network.named_parameters()}


# --- Transformer-XL, by its transcription -----------------------------------------------------------------------------

XL_SITES = {"embedding": EMBEDDING, "positions": r"relative_positions\.dropout", "attention": ATTENTION,
            "attention output": ADDED, "inner": INNER, "feed-forward output": TRANSITION, "output": OUTPUT}
XL_TEXT = torch.tensor([[7, 33, 11]])


def transcribed_draws(model: stemma.Model, chosen: str, rows: int) -> Tensor:
    stack, words = transcribed(model)
    settings = model.network.settings
    cutoffs = list(settings.embedding.cutoffs)

    def drop(site: str, x: Tensor) -> Tensor:
        return x * (torch.rand_like(x) >= RATE) / (1 - RATE) if site == chosen else x

    def once(_: Tensor) -> Tensor:
        memory = transformer_xl.no_memory(settings.layers, settings.width, settings.memory.length)
        x = adaptive_softmax.embedded(XL_TEXT[0].tolist(), words, cutoffs, settings.width)
        hidden, _ = transformer_xl.segment(x, memory, stack, HEADS, settings.memory.length, settings.position.clamp,
                                           settings.memory.same_length, settings.norm.epsilon, drop)
        return torch.stack([adaptive_softmax.log_probabilities(each, words, cutoffs) for each in hidden])

    return torch.vmap(once, randomness="different")(torch.zeros(rows))


@torch.no_grad()
@pytest.mark.parametrize("site", XL_SITES)
def test_each_dropout_of_transformer_xl_by_itself(site):
    model = small()
    ours = only(model.network, [Where(XL_SITES[site])])
    torch.manual_seed(11)

    def draw(rows: int) -> Tensor:
        hidden = ours({"encoder": Stream(XL_TEXT.expand(rows, -1), Causal())})["encoder"]
        return ours.head("vocabulary")(hidden).log_softmax(-1)

    drawn = draw(DRAWS) if site != "positions" else torch.cat([draw(1) for _ in range(DRAWS // 5)])
    assert_same_draws(drawn, transcribed_draws(model, site, DRAWS))


def test_no_dropout_of_transformer_xl_is_forgotten():
    """And every one has the rate that its recipe, in each size, has for all of them but attention's."""
    assert unassigned(small().network, [Where(name) for name in XL_SITES.values()]) == []
    for recipe in ("transformer-xl", "transformer-xl@base", "transformer-xl@tiny", "transformer-xl@mini",
                   "transformer-xl@midi", "xlnet", "xlnet@large", "xlnet@tiny", "xlnet@mini", "xlnet@midi"):
        chosen = stemma.recipe(recipe).settings.network
        assert chosen.dropout == chosen.inner_dropout == chosen.output_dropout > 0, recipe
