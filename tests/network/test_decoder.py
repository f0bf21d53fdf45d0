"""Encoder and decoder: the paper's formulas, attention masks, the shared embedding, and incremental decoding."""

import numpy as np
import pytest
import torch
from literal import transformer

from stemma import recipe_loading
from stemma.network.cache import KVCache
from stemma.network.heads import LMHeadSpec
from stemma.network.inputs_outputs import Stream
from stemma.network.network import Network
from stemma.visibility import Bidirectional, Causal, PaddingRule

ROWS, SOURCE, TARGET, VOCABULARY = 3, 6, 8, 23
SOURCE_MASK = torch.arange(SOURCE)[None] < torch.tensor([6, 2, 4])[:, None]
KINDS = {"transformer": [], "bart": ["network.position.maximum=40", "corpus.sequence_length=40"],
         "t5": ["network.position.buckets=8", "network.position.distance=6"],
         "mass": ["network.norm.placement=pre", "network.position.maximum=40", "corpus.sequence_length=40"]}
KIND = pytest.mark.parametrize("name", KINDS)


def build(name: str = "transformer", *changes: str, seed: int = 0) -> Network:
    settings = recipe_loading.recipe(f"{name}@tiny", ["network.width=12", "network.heads=3", "network.feedforward=20",
                                               "network.layers=2", "network.decoder.layers=3", *KINDS[name],
                                               *changes]).settings
    torch.manual_seed(seed)
    network = Network(settings.network, VOCABULARY, {"vocabulary": LMHeadSpec(transform=False, bias=False)}).eval()
    with torch.no_grad():  # no parameter stays 0 or 1, so that a missing bias is detected
        for key, parameter in network.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4 + (1.0 if key.endswith("norm.weight") else 0.1))
    return network


def texts(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return (torch.randint(VOCABULARY, (ROWS, SOURCE), generator=rng),
            torch.randint(VOCABULARY, (ROWS, TARGET), generator=rng))


def streams(source: torch.Tensor, target: torch.Tensor) -> dict[str, Stream]:
    return {"encoder": Stream(source, PaddingRule(SOURCE_MASK)), "decoder": Stream(target, Causal())}


def assert_same(first: torch.Tensor, second: torch.Tensor) -> None:
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


# --- the paper --------------------------------------------------------------------------------------------------------


def weights_of(network: Network) -> transformer.Weights:
    return {name: value.detach().double().numpy() for name, value in network.state_dict().items()}


@pytest.mark.parametrize("seed", range(3))
def test_the_transformer_matches_the_papers_formulas(seed):
    """Row by row without padding: probabilities, and the label-smoothed loss."""
    network = build(seed=seed)
    source, target = texts(seed)
    labels = target.roll(-1, 1)
    with torch.no_grad():
        decoded = network(streams(source, target))["decoder"]
        scores = network.head("vocabulary")(decoded)
        loss = network.head("vocabulary").loss(decoded.flatten(0, 1), labels.flatten(), float(ROWS * TARGET), 0.1)
    expected = []
    for row in range(ROWS):
        tokens = source[row][SOURCE_MASK[row]].tolist()
        result = transformer.encoder_decoder(tokens, target[row].tolist(), weights_of(network), network.settings)
        np.testing.assert_allclose(scores[row].softmax(-1).numpy(), result, atol=2e-5)
        expected.append(transformer.smoothed_loss(result, labels[row].tolist(), 0.1))
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_another_activation_does_not_match_the_papers_formulas():
    """So the comparison above can fail."""
    network = build("transformer", "network.activation=gelu")
    source, target = texts()
    with torch.no_grad():
        scores = network.head("vocabulary")(network(streams(source, target))["decoder"])
    result = transformer.encoder_decoder(source[0].tolist(), target[0].tolist(), weights_of(network),
                                         network.settings.model_copy(update={"activation": "relu"}))
    assert np.abs(scores[0].softmax(-1).numpy() - result).max() > 1e-3


# --- attention masks --------------------------------------------------------------------------------------------------


@KIND
def test_no_query_attends_to_padding(name):
    network = build(name)
    source, target = texts()
    other = torch.where(SOURCE_MASK, source, (source + 5) % VOCABULARY)
    with torch.no_grad():
        assert_same(network(streams(source, target))["decoder"], network(streams(other, target))["decoder"])
        alone = network({"encoder": Stream(source[1:2, :2], Bidirectional()), "decoder": Stream(target[1:2], Causal())})
        assert_same(network(streams(source, target))["decoder"][1:2], alone["decoder"])


@KIND
def test_the_decoder_attends_to_earlier_tokens_and_to_the_whole_source(name):
    network = build(name)
    source, target = texts()
    expected = network(streams(source, target))
    later = target.clone()
    later[:, 5:] = (later[:, 5:] + 3) % VOCABULARY
    changed = network(streams(source, later))
    assert_same(changed["decoder"][:, :5], expected["decoder"][:, :5])
    assert_same(changed["encoder"], expected["encoder"])
    assert (changed["decoder"][:, 5:] - expected["decoder"][:, 5:]).abs().amax(2).min() > 1e-3
    first = source.clone()
    first[:, 1] = (first[:, 1] + 3) % VOCABULARY
    moved = (network(streams(first, target))["decoder"] - expected["decoder"]).abs()
    assert moved.amax(2).min() > 1e-3  # at every position of every row


def test_explicit_position_ids_of_the_target_are_used():
    """MASS decodes a span with its position ids in the sentence."""
    network = build("mass")
    source, target = texts()
    plain = network(streams(source, target))["decoder"]
    stated = {"encoder": Stream(source, PaddingRule(SOURCE_MASK)),
              "decoder": Stream(target, Causal(), position_ids=torch.arange(TARGET).expand(ROWS, TARGET))}
    assert_same(network(stated)["decoder"], plain)
    stated["decoder"] = Stream(target, Causal(), position_ids=torch.arange(4, 4 + TARGET).expand(ROWS, TARGET))
    assert (network(stated)["decoder"] - plain).abs().max() > 1e-2


@KIND
def test_hidden_states_of_both_parts_are_returned_on_request(name):
    network = build(name)
    hidden = network(streams(*texts()), keep_hidden_states=True)
    assert [len(hidden.hidden_states[part]) for part in ("encoder", "decoder")] == [1 + 2, 1 + 3]
    assert_same(hidden["decoder"], network(streams(*texts()))["decoder"])


# --- the shared embedding ---------------------------------------------------------------------------------------------


@KIND
def test_the_token_embedding_is_stored_and_counted_once(name):
    network = build(name)
    rows = [key for key, value in network.state_dict().items() if VOCABULARY in value.shape]
    assert rows == ["embedding.tokens.weight"]
    assert sum(parameter.shape == (VOCABULARY, 12) for parameter in network.parameters()) == 1


@KIND
def test_the_token_embedding_gets_gradients_from_all_three_uses(name):
    network = build(name)
    source, target, label = torch.tensor([[3, 3]]), torch.tensor([[7, 7]]), torch.tensor([11, 11])
    hidden = network({"encoder": Stream(source), "decoder": Stream(target, Causal())})["decoder"]
    network.head("vocabulary").loss(hidden.flatten(0, 1), label, 2.0).backward()
    gradient_norms = network.embedding.tokens.weight.grad.abs().sum(1)
    others = [token for token in range(VOCABULARY) if token not in (3, 7, 11)]
    assert gradient_norms[others].min() > 0  # every token is an output
    assert all((gradient_norms[token] - gradient_norms[others]).abs().min() > 1e-4 for token in (3, 7, 11))


# --- incremental decoding ---------------------------------------------------------------------------------------------


def decode_incrementally(network: Network, source: torch.Tensor, target: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    cache, outputs = network.new_cache(), []
    inputs = {"encoder": Stream(source, PaddingRule(SOURCE_MASK))}
    for start, stop in zip([0, *cuts], [*cuts, TARGET], strict=True):
        inputs["decoder"] = Stream(target[:, start:stop], Causal())
        outputs.append(network(inputs, cache)["decoder"])
        inputs = {}
    assert cache.length == TARGET
    return torch.cat(outputs, 1)


@torch.no_grad()
@KIND
@pytest.mark.parametrize("cuts", [list(range(1, TARGET)), [3, 4], [], [1, 7]],
                         ids=["tokens", "chunks", "at once", "ends"])
def test_incremental_decoding_equals_one_pass(name, cuts):
    network = build(name)
    source, target = texts()
    assert_same(decode_incrementally(network, source, target, cuts), network(streams(source, target))["decoder"])


@torch.no_grad()
@KIND
def test_rows_of_the_cache_can_be_reordered_copied_and_dropped(name):
    """As in beam search: one row per source at first, then several that are reordered, copied and dropped."""
    network = build(name)
    source, target = texts()
    cache, generated, source_rows = network.new_cache(), target[:, :1], torch.arange(ROWS)
    inputs = {"encoder": Stream(source, PaddingRule(SOURCE_MASK)), "decoder": Stream(generated, Causal())}
    rng = torch.Generator().manual_seed(3)
    choices = [[0, 0, 0, 1, 1, 1, 2, 2, 2], [1, 0, 0, 5, 3, 4, 8, 8, 6], [3, 4, 5, 6, 7, 8], [2, 5], [1]]
    network(inputs, cache)
    for rows in choices:
        cache.reorder(torch.tensor(rows))
        generated, source_rows = generated[rows], source_rows[rows]
        new = torch.randint(VOCABULARY, (len(rows), 1), generator=rng)
        generated = torch.cat([generated, new], 1)
        result = network({"decoder": Stream(new, Causal())}, cache)["decoder"]
        expected = network({"encoder": Stream(source[source_rows], PaddingRule(SOURCE_MASK[source_rows])),
                            "decoder": Stream(generated, Causal())})["decoder"]
        assert_same(result, expected[:, -1:])
    assert source_rows.tolist() == [2]


@torch.no_grad()
def test_keys_and_values_of_the_encoder_output_are_computed_once():
    network = build()
    calls = []
    for block in network.decoder.blocks:
        block.cross.input.register_forward_hook(lambda *_: calls.append(1))
    source, target = texts()
    decode_incrementally(network, source, target, list(range(1, TARGET)))
    assert len(calls) == len(network.decoder.blocks)


def test_a_decoder_without_encoder_input_fails_an_assertion():
    network = build()
    with pytest.raises(AssertionError, match="has no input yet"):
        network({"decoder": Stream(texts()[1], Causal())}, KVCache())


# --- initialization ---------------------------------------------------------------------------------------------------


def test_t5_initializes_matrices_by_fan_in_and_queries_smaller():
    """As in the released code: attention scores are not scaled, so the query matrix starts smaller."""
    settings = recipe_loading.recipe("t5@tiny").settings.network
    torch.manual_seed(0)
    network = Network(settings, 500, {})
    width, inner = settings.width, settings.feedforward
    head = width // settings.heads
    block, encoder_block = network.decoder.blocks[0], network.encoder.blocks[0]
    query, key, value = block.attention.input.weight.chunk(3)
    expected = {(width * head) ** -0.5: [query, encoder_block.attention.input.weight[:width], block.cross.query.weight],
                width**-0.5: [key, value, block.attention.output.weight, block.cross.input.weight,
                              block.cross.output.weight, block.feedforward.input.weight],
                inner**-0.5: [block.feedforward.output.weight],
                1.0: [network.embedding.tokens.weight]}
    for spread, weights in expected.items():
        for weight in weights:
            assert weight.detach().std().item() == pytest.approx(spread, rel=0.05)


def test_with_scaled_scores_queries_keys_and_values_have_the_same_initialization():
    network = Network(recipe_loading.recipe("transformer@tiny").settings.network, 50, {})
    spreads = [part.detach().std() for part in network.decoder.blocks[0].attention.input.weight.chunk(3)]
    assert max(spreads) / min(spreads) < 1.05
