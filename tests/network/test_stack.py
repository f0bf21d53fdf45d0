import numpy as np
import pytest
import torch
from literal import transformer

from stemma import recipe_loading
from stemma.network.heads import ClassHead, LMHeadSpec, Pooler
from stemma.network.inputs_outputs import Stream
from stemma.network.network import Network
from stemma.visibility import Bidirectional, Causal, PaddingRule, Prefix, SlidingWindow, Visibility

BATCH, LENGTH, VOCABULARY = 3, 7, 23
RIGHT = torch.arange(LENGTH)[None, :] < torch.tensor([7, 4, 1])[:, None]
LEFT = RIGHT.flip(1)
SEES: dict[str, Visibility] = {"full": Bidirectional(), "right": PaddingRule(RIGHT), "left": PaddingRule(LEFT),
                               "causal": Causal(),
                               "causal and padded": Causal() & PaddingRule(RIGHT),
                               "prefix band": Prefix(torch.tensor([2, 4, 1])) & SlidingWindow(1, 2)}


def build(*changes: str, seed: int = 0) -> Network:
    settings = recipe_loading.recipe("bert@tiny", ["network.width=12", "network.heads=3", "network.feedforward=20",
                                            "network.layers=2", "network.norm.epsilon=0.001", *changes]).settings
    torch.manual_seed(seed)
    heads = {"pooler": Pooler(), "pair": ClassHead(2), "vocabulary": LMHeadSpec()}
    network = Network(settings.network, VOCABULARY, heads).eval()
    with torch.no_grad():  # nothing may be zero or one, or a forgotten bias would not be noticed
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + 0.1)
    return network


def weights_of(network: Network) -> transformer.Weights:
    return {name: value.detach().double().numpy() for name, value in network.state_dict().items()}


def stream(sees: Visibility, **more) -> Stream:
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=rng)
    segments = torch.randint(0, 2, (BATCH, LENGTH), generator=rng)
    return Stream(input_ids=ids, attention_mask=sees, segment_ids=segments, **more)


@pytest.mark.parametrize("place", ["post", "pre"])
@pytest.mark.parametrize("sees", SEES)
def test_the_stack_computes_the_paper_s_formulas(place, sees):
    network = build(f"network.norm.place={place}")
    given = stream(SEES[sees])
    with torch.no_grad():
        embedded = network.embedding(given)
        result = network({"encoder": given})["encoder"]
    for row in range(BATCH):
        seen = SEES[sees].grid(LENGTH, row)
        expected = transformer.encoder(embedded[row].double().numpy(), weights_of(network), network.settings,
                                       lambda q, k, seen=seen: bool(seen[q, k]))
        np.testing.assert_allclose(result[row].numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("place", ["post", "pre"])
@pytest.mark.parametrize("sees", ["full", "right", "left", "causal", "prefix band"])
@pytest.mark.parametrize("wanted", [[0, 3, 9, 15], [2], [], [0, 7, 14], list(range(21))])
def test_outputs_do_not_depend_on_which_other_output_positions_are_requested(place, sees, wanted):
    network = build(f"network.norm.place={place}")
    places = torch.tensor(wanted, dtype=torch.long)
    whole = network({"encoder": stream(SEES[sees])})["encoder"].flatten(0, 1)
    some = network({"encoder": stream(SEES[sees], output_positions=places)})["encoder"].flatten(0, 1)
    torch.testing.assert_close(some[places], whole[places], rtol=1e-4, atol=1e-5)
    one = torch.autograd.grad(whole[places].square().sum(), list(network.encoder.parameters()), retain_graph=True)
    other = torch.autograd.grad(some[places].square().sum(), list(network.encoder.parameters()), allow_unused=True)
    for expected, result in zip(one, other, strict=True):
        torch.testing.assert_close(torch.zeros_like(expected) if result is None else result, expected,
                                   rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("real", [RIGHT, LEFT], ids=["right", "left"])
def test_the_content_of_padding_does_not_change_the_output(real):
    network = build()
    given = stream(PaddingRule(real))
    other = Stream(input_ids=torch.where(real, given.input_ids, (given.input_ids + 5) % VOCABULARY),
                   attention_mask=given.attention_mask,
                   segment_ids=torch.where(real, given.segment_ids, 1 - given.segment_ids))
    with torch.no_grad():
        one, two = (network({"encoder": each})["encoder"] for each in (given, other))
    torch.testing.assert_close(one[real], two[real])
    assert not torch.allclose(one[~real], two[~real])


def test_hidden_states_of_every_layer_are_returned_on_request():
    network = build()
    given = stream(Bidirectional())
    with torch.no_grad():
        hidden = network({"encoder": given}, keep_hidden_states=True)
        torch.testing.assert_close(hidden.hidden_states["encoder"][0], network.embedding(given))
    assert len(hidden.hidden_states["encoder"]) == 3
    torch.testing.assert_close(hidden.hidden_states["encoder"][-1], hidden["encoder"])
    assert network({"encoder": given}).hidden_states == {}


def test_heads_are_the_published_ones():
    """BERT: dense, gelu, norm and the embedding matrix again; the first place, dense and tanh."""
    network = build()
    weights = weights_of(network)
    with torch.no_grad():
        hidden = network({"encoder": stream(Bidirectional())})["encoder"]
        logits, pooled = network.head("vocabulary")(hidden), network.pool(hidden)
        pair = network.head("pair")(pooled)
    x = hidden.double().numpy()
    transformed = transformer.layer_norm(transformer.gelu(transformer.linear(x, weights, "heads.vocabulary.dense")),
                                         weights, "heads.vocabulary.norm", network.settings.norm.epsilon)
    expected = transformed @ weights["embedding.tokens.weight"].T + weights["heads.vocabulary.bias"]
    np.testing.assert_allclose(logits.numpy(), expected, atol=2e-5)
    expected = np.tanh(transformer.linear(x[:, 0], weights, "heads.pooler.dense"))
    np.testing.assert_allclose(pooled.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(pair.numpy(), transformer.linear(expected, weights, "heads.pair.output"), atol=1e-5)


def test_initial_weights_are_truncated_at_two_standard_deviations():
    settings = recipe_loading.recipe("bert@tiny", ["network.initialization.spread=0.05"]).settings.network
    torch.manual_seed(0)
    network = Network(settings, 500, {"vocabulary": LMHeadSpec()})
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        elif "norm" in name:
            assert (parameter == 1).all()
        else:
            assert parameter.abs().max() <= 0.1
            assert parameter.std().item() == pytest.approx(0.05 * 0.88, rel=0.1)  # a normal cut at two spreads


def test_parameters_are_counted_once():
    network = build()
    everything = sum(p.numel() for p in network.parameters())
    assert network.parameter_count() == everything
    above = sum(p.numel() for name in ("pair", "vocabulary") for p in network.heads[name].parameters()
                if p is not network.embedding.tokens.weight)
    assert network.parameter_count(heads=False) == everything - above
    assert not any("vocabulary" in name and "table" in name for name in network.state_dict())
