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
MASKS: dict[str, Visibility] = {"full": Bidirectional(), "right": PaddingRule(RIGHT), "left": PaddingRule(LEFT),
                                          "causal": Causal(),
                                          "causal and padded": Causal() & PaddingRule(RIGHT),
                                          "prefix band": Prefix(torch.tensor([2, 4, 1])) & SlidingWindow(1, 2)}


def build(*changes: str, seed: int = 0) -> Network:
    settings = recipe_loading.recipe("bert@tiny", ["network.width=12", "network.heads=3", "network.feedforward=20",
                                            "network.layers=2", "network.norm.epsilon=0.001", *changes]).settings
    torch.manual_seed(seed)
    heads = {"pooler": Pooler(), "pair": ClassHead(2), "vocabulary": LMHeadSpec()}
    network = Network(settings.network, VOCABULARY, heads).eval()
    with torch.no_grad():  # no parameter stays 0 or 1, so that a missing bias is detected
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + 0.1)
    return network


def weights_of(network: Network) -> transformer.Weights:
    return {name: value.detach().double().numpy() for name, value in network.state_dict().items()}


def stream(mask: Visibility, **more) -> Stream:
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=rng)
    segments = torch.randint(0, 2, (BATCH, LENGTH), generator=rng)
    return Stream(input_ids=ids, attention_mask=mask, segment_ids=segments, **more)


@pytest.mark.parametrize("place", ["post", "pre"])
@pytest.mark.parametrize("mask", MASKS)
def test_the_stack_matches_the_papers_formulas(place, mask):
    network = build(f"network.norm.placement={place}")
    inputs = stream(MASKS[mask])
    with torch.no_grad():
        embedded = network.embedding(inputs)
        result = network({"encoder": inputs})["encoder"]
    for row in range(BATCH):
        allowed = MASKS[mask].grid(LENGTH, row)
        expected = transformer.encoder(embedded[row].double().numpy(), weights_of(network), network.settings,
                                       lambda q, k, allowed=allowed: bool(allowed[q, k]))
        np.testing.assert_allclose(result[row].numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("place", ["post", "pre"])
@pytest.mark.parametrize("mask", ["full", "right", "left", "causal", "prefix band"])
@pytest.mark.parametrize("output_positions", [[0, 3, 9, 15], [2], [], [0, 7, 14], list(range(21))])
def test_outputs_do_not_depend_on_which_other_output_positions_are_requested(place, mask, output_positions):
    network = build(f"network.norm.placement={place}")
    positions = torch.tensor(output_positions, dtype=torch.long)
    full = network({"encoder": stream(MASKS[mask])})["encoder"].flatten(0, 1)
    partial = network({"encoder": stream(MASKS[mask], output_positions=positions)})["encoder"].flatten(0, 1)
    torch.testing.assert_close(partial[positions], full[positions], rtol=1e-4, atol=1e-5)
    parameters = list(network.encoder.parameters())
    full_gradients = torch.autograd.grad(full[positions].square().sum(), parameters, retain_graph=True)
    partial_gradients = torch.autograd.grad(partial[positions].square().sum(), parameters, allow_unused=True)
    for expected, result in zip(full_gradients, partial_gradients, strict=True):
        torch.testing.assert_close(torch.zeros_like(expected) if result is None else result, expected,
                                   rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("token_mask", [RIGHT, LEFT], ids=["right", "left"])
def test_the_content_of_padding_does_not_change_the_output(token_mask):
    network = build()
    inputs = stream(PaddingRule(token_mask))
    other = Stream(input_ids=torch.where(token_mask, inputs.input_ids, (inputs.input_ids + 5) % VOCABULARY),
                   attention_mask=inputs.attention_mask,
                   segment_ids=torch.where(token_mask, inputs.segment_ids, 1 - inputs.segment_ids))
    with torch.no_grad():
        first, second = (network({"encoder": stream_})["encoder"] for stream_ in (inputs, other))
    torch.testing.assert_close(first[token_mask], second[token_mask])
    assert not torch.allclose(first[~token_mask], second[~token_mask])


def test_hidden_states_of_every_layer_are_returned_on_request():
    network = build()
    inputs = stream(Bidirectional())
    with torch.no_grad():
        hidden = network({"encoder": inputs}, keep_hidden_states=True)
        torch.testing.assert_close(hidden.hidden_states["encoder"][0], network.embedding(inputs))
    assert len(hidden.hidden_states["encoder"]) == 3
    torch.testing.assert_close(hidden.hidden_states["encoder"][-1], hidden["encoder"])
    assert network({"encoder": inputs}).hidden_states == {}


def test_heads_match_the_formulas_of_bert():
    """The LM head: dense, gelu, norm and the tied embedding. The pooler: first position, dense and tanh."""
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
    settings = recipe_loading.recipe("bert@base", [
        "network.layers=2", "network.width=128", "network.heads=2", "network.feedforward=512",
        "network.initialization.std=0.05"]).settings.network
    torch.manual_seed(0)
    network = Network(settings, 500, {"vocabulary": LMHeadSpec()})
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        elif "norm" in name:
            assert (parameter == 1).all()
        else:
            assert parameter.abs().max() <= 0.1
            assert parameter.std().item() == pytest.approx(0.05 * 0.88, rel=0.1)  # truncation lowers it


def test_parameters_are_counted_once():
    network = build()
    everything = sum(p.numel() for p in network.parameters())
    assert network.parameter_count() == everything
    above = sum(p.numel() for name in ("pair", "vocabulary") for p in network.heads[name].parameters()
                if p is not network.embedding.tokens.weight)
    assert network.parameter_count(heads=False) == everything - above
    assert not any("vocabulary" in name and "table" in name for name in network.state_dict())
