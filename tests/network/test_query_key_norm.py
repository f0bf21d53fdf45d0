"""QK-norm equals its formula, with rotary, relative and other positions, with padding, a cache and cross-attention; the
squared ReLU, RMSNorm under both names, and LM heads that are untied or soft-capped."""

from __future__ import annotations

import math

import pytest
import torch
from closeness import assert_close
from torch import Tensor

import stemma
from stemma.errors import UserError
from stemma.network.activation import ACTIVATIONS
from stemma.network.attention.query_key_norm import QueryKeyNorm
from stemma.network.heads import LMHead
from stemma.network.inputs_outputs import LayerContext, Stream
from stemma.network.network import Network
from stemma.network.position_kinds import RotaryPositionSettings
from stemma.network.prepacked_linear import prepacked_view
from stemma.network.rotary import RotaryRotation, build_rotation
from stemma.objectives import build_network
from stemma.recipe_loading import recipe
from stemma.visibility import Causal, CompiledMask, PaddingRule

pytestmark = pytest.mark.usefixtures("unpad_small_batches")

HEADS, WIDTH, LENGTH, EPSILON = 2, 12, 7, 0.05
SIZES = [f"network.width={WIDTH}", f"network.heads={HEADS}", "network.feedforward=20", "network.layers=2",
         f"network.norm.epsilon={EPSILON}", "network.dropout=0", "network.attention.dropout=0"]
ROTARY = ["network.position.kind=rotary", "network.position.maximum=64", "network.position.base=50.0"]


def build(name: str, *changes: str, sizes: list[str] = SIZES) -> Network:
    torch.manual_seed(0)
    network = build_network(recipe(f"{name}@tiny", [*sizes, "corpus.sequence_length=32", *changes]), 31).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return network


def ids(rows: int = 3, length: int = LENGTH) -> Tensor:
    return torch.randint(31, (rows, length), generator=torch.Generator().manual_seed(1))


def by_formula(attention, x: Tensor, rotation: RotaryRotation | None, order: str) -> Tensor:
    """Causal attention of one sequence, a query at a time, with normalized queries and keys."""
    query, key, value = (part.view(LENGTH, HEADS, -1) for part in attention.input(x).chunk(3, -1))
    norm: QueryKeyNorm = attention.qk_norm

    def prepare(vectors: Tensor, weight: Tensor | None) -> Tensor:
        def normalize(vectors: Tensor) -> Tensor:
            scaled = vectors / torch.sqrt((vectors**2).mean(-1, keepdim=True) + EPSILON)
            return scaled if weight is None else scaled * weight
        vectors = normalize(vectors) if order == "before" else vectors
        vectors = vectors if rotation is None else rotation.key.rotate(vectors[None])[0]
        return normalize(vectors) if order == "after" else vectors

    query, key = prepare(query, norm.query.weight), prepare(key, norm.key.weight)
    rows = []
    for position in range(LENGTH):
        heads = []
        for head in range(HEADS):
            scores = key[: position + 1, head] @ query[position, head] / math.sqrt(WIDTH // HEADS)
            heads.append(scores.softmax(0) @ value[: position + 1, head])
        rows.append(torch.cat(heads))
    return attention.output(torch.stack(rows))


@torch.no_grad()
@pytest.mark.parametrize("weight", ["true", "false"])
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("rotary", [True, False], ids=["rotary", "learned"])
def test_attention_equals_the_formula(order, weight, rotary):
    network = build("gpt2", *(ROTARY if rotary else []), f"network.attention.qk_norm={order}",
                    f"network.attention.qk_norm_weight={weight}")
    attention = network.encoder.blocks[0].attention
    assert (attention.qk_norm.query.weight is not None) == (weight == "true")
    x = torch.randn(1, LENGTH, WIDTH, generator=torch.Generator().manual_seed(2))
    settings = RotaryPositionSettings(kind="rotary", maximum=64, base=50.0)
    rotation = build_rotation(settings, False, WIDTH // HEADS, torch.arange(LENGTH)) if rotary else None
    result = attention(x, LayerContext(CompiledMask(causal=True), rotation=rotation))
    assert_close(result[0], by_formula(attention, x[0], rotation, order))
    other = by_formula(attention, x[0], rotation, "before" if order == "after" else "after")
    # a rotation keeps the norm, so the order matters only with weights
    assert ((result[0] - other).abs().max() > 1e-3) == (rotary and weight == "true")


CAUSAL = {"nanochat": [], "gpt2": ["network.attention.qk_norm=before", "network.attention.qk_norm_weight=true"],
          "gpt2 rotary": [*ROTARY, "network.attention.qk_norm=before", "network.attention.qk_norm_weight=true"],
          "transformer-xl": ["network.attention.qk_norm=after", "network.attention.head_width=6"]}


@torch.no_grad()
@pytest.mark.parametrize("name", CAUSAL)
def test_decoding_with_a_cache_equals_one_pass(name):
    network, text = build(name.split()[0], *CAUSAL[name]), ids()
    expected = network({"encoder": Stream(text, Causal())})["encoder"]
    cache = network.new_cache()
    parts = [network({"encoder": Stream(text[:, start:stop], Causal())}, cache)["encoder"]
             for start, stop in ((0, 3), (3, 4), (4, LENGTH))]
    assert_close(torch.cat(parts, 1), expected)


@torch.no_grad()
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("positions", [ROTARY, []], ids=["rotary", "learned"])
def test_padding_and_few_outputs_change_nothing(order, positions):
    """Without padding, and with the last block at two positions only, outputs are those of single rows."""
    network = build("bert", *positions, f"network.attention.qk_norm={order}", "network.attention.qk_norm_weight=true")
    text, lengths = ids(), [LENGTH, 2, 3]
    mask = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    unpadded = network({"encoder": Stream(text, PaddingRule(mask), skip_padding=True)})["encoder"]
    outputs = Stream(text, PaddingRule(mask), output_positions=torch.tensor([4, LENGTH + 1]))
    few = network({"encoder": outputs})["encoder"]
    for row, length in enumerate(lengths):
        alone = text[row:row + 1, :length]
        expected = network({"encoder": Stream(alone, PaddingRule(torch.ones(1, length).bool()))})["encoder"][0]
        assert_close(unpadded[row, :length], expected)
        if row < 2:
            assert_close(few[row, (4, 1)[row]], expected[(4, 1)[row]])


@torch.no_grad()
def test_scores_shown_are_those_of_normalized_vectors():
    network = build("nanochat")
    scores = network({"encoder": Stream(ids(), Causal())}, keep_attention_scores=True).attention_scores["encoder"]
    finite = torch.cat([layer.flatten() for layer in scores])
    finite = finite[finite > torch.finfo(finite.dtype).min]
    assert finite.abs().max() <= math.sqrt(WIDTH // HEADS) + 1e-4  # the bound of QK-norm


@torch.no_grad()
def test_cross_attention_normalizes_too():
    network = build("transformer", "network.attention.qk_norm=before", "network.attention.qk_norm_weight=true")
    cross = network.decoder.blocks[0].cross
    source = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(3))
    key, value = cross.keys_and_values(source)
    raw, raw_value = (part.view(2, 5, HEADS, -1).transpose(1, 2) for part in cross.input(source).chunk(2, -1))
    expected = raw / torch.sqrt((raw**2).mean(-1, keepdim=True) + EPSILON) * cross.qk_norm.key.weight
    assert_close((key, value), (expected, raw_value))


def test_weights_without_a_norm_are_refused():
    with pytest.raises(UserError, match="1 problem") as error:
        recipe("bert@tiny", ["network.attention.qk_norm_weight=true"])
    assert "there is no norm to weight" in str(error.value)


# ---- other parts of nanochat ----

def test_squared_relu():
    x = torch.tensor([-2.0, 0.0, 0.5, 3.0], requires_grad=True)
    y = ACTIVATIONS["relu2"](x)
    y.sum().backward()
    assert y.tolist() == [0.0, 0.0, 0.25, 9.0] and x.grad.tolist() == [0.0, 0.0, 1.0, 6.0]


def test_rms_and_scale_are_one_norm():
    pre = ["network.norm.placement=pre", f"network.norm.epsilon={EPSILON}", "network.embedding.norm=false"]
    sizes = [change for change in SIZES if "epsilon" not in change]
    networks = [build("gpt2", f"network.norm.kind={kind}", *pre, sizes=sizes) for kind in ("rms", "scale")]
    outputs = [network({"encoder": Stream(ids(), Causal())})["encoder"] for network in networks]
    assert_close(*outputs)
    norm = networks[0].encoder.final_norm
    x = torch.randn(3, WIDTH)
    assert_close(norm(x), x / torch.sqrt((x**2).mean(-1, keepdim=True) + EPSILON) * norm.weight)


def test_an_untied_head_has_a_matrix_of_its_own():
    tied, untied = build("gpt2"), build("gpt2", "network.embedding.tied=false")
    head = untied.heads["vocabulary"]
    assert isinstance(head, LMHead) and head.weight is head.output.weight
    assert untied.parameter_count() == tied.parameter_count() + 31 * WIDTH
    hidden = torch.randn(4, WIDTH)
    assert_close(head(hidden), hidden @ head.output.weight.T)
    head.loss(hidden, torch.tensor([1, 2, 3, 4]), 4.0).backward()
    assert untied.embedding.tokens.weight.grad is None and head.output.weight.grad.abs().max() > 0
    zero = build_network(recipe("nanochat@tiny", SIZES), 31)  # so that the first prediction is uniform
    assert not zero.heads["vocabulary"].output.weight.any()
    assert zero.embedding.tokens.weight.detach().std().item() == pytest.approx(1.0, abs=0.1)


@torch.no_grad()
def test_soft_capped_logits_stay_below_the_cap():
    network = build("gpt2", "network.embedding.logit_softcap=2.5")
    head, hidden = network.heads["vocabulary"], 9 * torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0))
    raw = hidden @ network.embedding.tokens.weight.T
    assert raw.abs().max() > 2.5
    assert_close(head(hidden), 2.5 * torch.tanh(raw / 2.5))
    assert_close(prepacked_view(network, 8).heads["vocabulary"](hidden), head(hidden))


@pytest.mark.parametrize("change", ["network.embedding.tied=false", "network.embedding.logit_softcap=9"])
def test_an_adaptive_softmax_refuses_both(change):
    with pytest.raises(UserError, match="1 problem") as error:
        recipe("transformer-xl@tiny", [change])
    assert "adaptive softmax" in str(error.value)


def test_a_tied_embedding_has_no_learning_rate_of_its_own():
    with pytest.raises(UserError) as error:
        stemma.recipe("modernbert@tiny", ["training.optimizer.embedding_learning_rate=0.1"])
    assert "set network.embedding.tied=false" in str(error.value)


@torch.no_grad()
def test_disentangled_positions_are_normalized_as_queries_and_as_keys():
    attention = build("ltg-bert", "network.attention.qk_norm=before").encoder.blocks[0].attention
    for norm in (attention.qk_norm.query, attention.qk_norm.key):
        norm.weight = None
    query, key = attention.project_some(10 * torch.randn(1, 5, WIDTH), 0, 2)
    for part in (query, key):
        torch.testing.assert_close(part.square().mean(-1), torch.ones_like(part[..., 0]), atol=0.05, rtol=0)


def test_a_norm_with_weights_computes_in_the_type_of_its_input(recwarn):
    norm = QueryKeyNorm(8, 1e-5, True, True)
    x = torch.randn(3, 8)
    half = norm(x.bfloat16(), 0)
    assert half.dtype == torch.bfloat16 and not recwarn.list
    torch.testing.assert_close(half.float(), norm(x, 0), atol=0.05, rtol=0)
