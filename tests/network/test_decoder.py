"""An encoder and a decoder: the paper's formulas, who sees what, one table for three uses, and text bit by bit."""

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
REAL = torch.arange(SOURCE)[None] < torch.tensor([6, 2, 4])[:, None]
KINDS = {"transformer": [], "bart": ["network.position.maximum=40", "corpus.sequence_length=40"],
         "t5": ["network.position.buckets=8", "network.position.distance=6"],
         "mass": ["network.norm.place=pre", "network.position.maximum=40", "corpus.sequence_length=40"]}
KIND = pytest.mark.parametrize("name", KINDS)


def build(name: str = "transformer", *changes: str, seed: int = 0) -> Network:
    settings = recipe_loading.recipe(f"{name}@tiny", ["network.width=12", "network.heads=3", "network.feedforward=20",
                                               "network.layers=2", "network.decoder.layers=3", *KINDS[name],
                                               *changes]).settings
    torch.manual_seed(seed)
    network = Network(settings.network, VOCABULARY, {"vocabulary": LMHeadSpec(transform=False, bias=False)}).eval()
    with torch.no_grad():  # nothing may be zero or one, or a forgotten bias would not be noticed
        for key, parameter in network.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4 + (1.0 if key.endswith("norm.weight") else 0.1))
    return network


def texts(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return (torch.randint(VOCABULARY, (ROWS, SOURCE), generator=rng),
            torch.randint(VOCABULARY, (ROWS, TARGET), generator=rng))


def streams(source: torch.Tensor, target: torch.Tensor) -> dict[str, Stream]:
    return {"encoder": Stream(source, PaddingRule(REAL)), "decoder": Stream(target, Causal())}


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# --- the paper --------------------------------------------------------------------------------------------------------


def weights_of(network: Network) -> transformer.Weights:
    return {name: value.detach().double().numpy() for name, value in network.state_dict().items()}


@pytest.mark.parametrize("seed", range(3))
def test_the_transformer_of_2017_computes_the_paper_s_formulas(seed):
    """Row by row without its filling; scores, and the smoothed loss that is trained."""
    network = build(seed=seed)
    source, target = texts(seed)
    labels = target.roll(-1, 1)
    with torch.no_grad():
        decoded = network(streams(source, target))["decoder"]
        scores = network.head("vocabulary")(decoded)
        loss = network.head("vocabulary").loss(decoded.flatten(0, 1), labels.flatten(), float(ROWS * TARGET), 0.1)
    expected = []
    for row in range(ROWS):
        given = source[row][REAL[row]].tolist()
        found = transformer.encoder_decoder(given, target[row].tolist(), weights_of(network), network.settings)
        np.testing.assert_allclose(scores[row].softmax(-1).numpy(), found, atol=2e-5)
        expected.append(transformer.smoothed_loss(found, labels[row].tolist(), 0.1))
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_the_formulas_are_told_apart():
    """The comparison can fail: another activation is not the same."""
    network = build("transformer", "network.activation=gelu")
    source, target = texts()
    with torch.no_grad():
        scores = network.head("vocabulary")(network(streams(source, target))["decoder"])
    found = transformer.encoder_decoder(source[0].tolist(), target[0].tolist(), weights_of(network),
                                        network.settings.model_copy(update={"activation": "relu"}))
    assert np.abs(scores[0].softmax(-1).numpy() - found).max() > 1e-3


# --- who sees what ----------------------------------------------------------------------------------------------------


@KIND
def test_nobody_sees_filling(name):
    network = build(name)
    source, target = texts()
    other = torch.where(REAL, source, (source + 5) % VOCABULARY)
    with torch.no_grad():
        same(network(streams(source, target))["decoder"], network(streams(other, target))["decoder"])
        alone = network({"encoder": Stream(source[1:2, :2], Bidirectional()), "decoder": Stream(target[1:2], Causal())})
        same(network(streams(source, target))["decoder"][1:2], alone["decoder"])


@KIND
def test_what_is_not_written_yet_is_not_seen_and_all_that_was_read_is(name):
    network = build(name)
    source, target = texts()
    whole = network(streams(source, target))
    later = target.clone()
    later[:, 5:] = (later[:, 5:] + 3) % VOCABULARY
    changed = network(streams(source, later))
    same(changed["decoder"][:, :5], whole["decoder"][:, :5])
    same(changed["encoder"], whole["encoder"])
    assert (changed["decoder"][:, 5:] - whole["decoder"][:, 5:]).abs().amax(2).min() > 1e-3
    first = source.clone()
    first[:, 1] = (first[:, 1] + 3) % VOCABULARY
    moved = (network(streams(first, target))["decoder"] - whole["decoder"]).abs()
    assert moved.amax(2).min() > 1e-3  # every place of every row


def test_places_of_the_target_may_be_stated():
    """MASS writes a span where it stands in the sentence."""
    network = build("mass")
    source, target = texts()
    plain = network(streams(source, target))["decoder"]
    stated = {"encoder": Stream(source, PaddingRule(REAL)),
              "decoder": Stream(target, Causal(), position_ids=torch.arange(TARGET).expand(ROWS, TARGET))}
    same(network(stated)["decoder"], plain)
    stated["decoder"] = Stream(target, Causal(), position_ids=torch.arange(4, 4 + TARGET).expand(ROWS, TARGET))
    assert (network(stated)["decoder"] - plain).abs().max() > 1e-2


@KIND
def test_layers_are_kept_of_both_parts_where_asked_for(name):
    network = build(name)
    hidden = network(streams(*texts()), keep_hidden_states=True)
    assert [len(hidden.hidden_states[part]) for part in ("encoder", "decoder")] == [1 + 2, 1 + 3]
    same(hidden["decoder"], network(streams(*texts()))["decoder"])


# --- one table for three uses -----------------------------------------------------------------------------------------


@KIND
def test_the_table_is_stored_and_counted_once(name):
    network = build(name)
    rows = [key for key, value in network.state_dict().items() if VOCABULARY in value.shape]
    assert rows == ["embedding.tokens.weight"]
    assert sum(parameter.shape == (VOCABULARY, 12) for parameter in network.parameters()) == 1


@KIND
def test_the_table_learns_from_all_three_uses(name):
    network = build(name)
    source, target, label = torch.tensor([[3, 3]]), torch.tensor([[7, 7]]), torch.tensor([11, 11])
    hidden = network({"encoder": Stream(source), "decoder": Stream(target, Causal())})["decoder"]
    network.head("vocabulary").loss(hidden.flatten(0, 1), label, 2.0).backward()
    learnt = network.embedding.tokens.weight.grad.abs().sum(1)
    others = [token for token in range(VOCABULARY) if token not in (3, 7, 11)]
    assert learnt[others].min() > 0  # as outputs they all do
    assert all((learnt[token] - learnt[others]).abs().min() > 1e-4 for token in (3, 7, 11))


# --- bit by bit -------------------------------------------------------------------------------------------------------


def in_pieces(network: Network, source: torch.Tensor, target: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    cache, made = network.new_cache(), []
    given = {"encoder": Stream(source, PaddingRule(REAL))}
    for start, stop in zip([0, *cuts], [*cuts, TARGET], strict=True):
        given["decoder"] = Stream(target[:, start:stop], Causal())
        made.append(network(given, cache)["decoder"])
        given = {}
    assert cache.length == TARGET
    return torch.cat(made, 1)


@torch.no_grad()
@KIND
@pytest.mark.parametrize("cuts", [list(range(1, TARGET)), [3, 4], [], [1, 7]], ids=["tokens", "bits", "whole", "ends"])
def test_text_in_pieces_is_the_same(name, cuts):
    network = build(name)
    source, target = texts()
    same(in_pieces(network, source, target, cuts), network(streams(source, target))["decoder"])


@torch.no_grad()
@KIND
def test_one_row_may_become_several_and_several_one(name):
    """As beams do: the first step has one row a text, then several, which change places, branch and end."""
    network = build(name)
    source, target = texts()
    cache, written, texts_of = network.new_cache(), target[:, :1], torch.arange(ROWS)
    given = {"encoder": Stream(source, PaddingRule(REAL)), "decoder": Stream(written, Causal())}
    rng = torch.Generator().manual_seed(3)
    choices = [[0, 0, 0, 1, 1, 1, 2, 2, 2], [1, 0, 0, 5, 3, 4, 8, 8, 6], [3, 4, 5, 6, 7, 8], [2, 5], [1]]
    network(given, cache)
    for rows in choices:
        cache.reorder(torch.tensor(rows))
        written, texts_of = written[rows], texts_of[rows]
        new = torch.randint(VOCABULARY, (len(rows), 1), generator=rng)
        written = torch.cat([written, new], 1)
        found = network({"decoder": Stream(new, Causal())}, cache)["decoder"]
        expected = network({"encoder": Stream(source[texts_of], PaddingRule(REAL[texts_of])),
                            "decoder": Stream(written, Causal())})["decoder"]
        same(found, expected[:, -1:])
    assert texts_of.tolist() == [2]


@torch.no_grad()
def test_what_was_read_is_turned_into_keys_once():
    network = build()
    calls = []
    for block in network.decoder.blocks:
        block.cross.input.register_forward_hook(lambda *_: calls.append(1))
    source, target = texts()
    in_pieces(network, source, target, list(range(1, TARGET)))
    assert len(calls) == len(network.decoder.blocks)


def test_a_decoder_without_anything_to_look_at_is_a_mistake_of_ours():
    network = build()
    with pytest.raises(AssertionError, match="has no input yet"):
        network({"decoder": Stream(texts()[1], Causal())}, KVCache())


# --- where it starts --------------------------------------------------------------------------------------------------


def test_t5_starts_with_matrices_by_what_enters_them_and_smaller_queries():
    """As released: scores are never scaled down, so that is done to the matrix that makes the queries."""
    settings = recipe_loading.recipe("t5@tiny").settings.network
    torch.manual_seed(0)
    network = Network(settings, 500, {})
    width, inner = settings.width, settings.feedforward
    head = width // settings.heads
    block, reading = network.decoder.blocks[0], network.encoder.blocks[0]
    query, key, value = block.attention.input.weight.chunk(3)
    expected = {(width * head) ** -0.5: [query, reading.attention.input.weight[:width], block.cross.query.weight],
                width**-0.5: [key, value, block.attention.output.weight, block.cross.input.weight,
                              block.cross.output.weight, block.feedforward.input.weight],
                inner**-0.5: [block.feedforward.output.weight],
                1.0: [network.embedding.tokens.weight]}
    for spread, weights in expected.items():
        for weight in weights:
            assert weight.detach().std().item() == pytest.approx(spread, rel=0.05)


def test_queries_start_like_the_rest_where_scores_are_scaled():
    network = Network(recipe_loading.recipe("transformer@tiny").settings.network, 50, {})
    spreads = [part.detach().std() for part in network.decoder.blocks[0].attention.input.weight.chunk(3)]
    assert max(spreads) / min(spreads) < 1.05
