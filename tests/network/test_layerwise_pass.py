"""Running a stack layer by layer: the same outputs, intermediate hidden states, and rows that exit early."""

from __future__ import annotations

import pytest
import torch
from closeness import assert_close
from parity.reference import perturb

import stemma
from stemma.network.inputs_outputs import Stream
from stemma.network.stack_input import build_stack_input
from stemma.visibility import Bidirectional, Causal, PaddingRule

pytestmark = pytest.mark.usefixtures("unpad_small_batches")

ROWS, LENGTH = 12, 40
SMALL = ["network.layers=3", "network.width=24", "network.heads=2", "network.feedforward=32",
         "corpus.sequence_length=48"]
LENGTHS = torch.tensor([40, 3, 9, 25, 12, 5, 38, 7, 6, 30, 11, 4])


def network_of(name):
    torch.manual_seed(0)
    network = stemma.build(f"{name}@tiny", 60, SMALL).network.eval()
    perturb(network, 0)  # some blocks are initialized as the identity
    return network


def start_pass(network, output_positions=None, ids=None, lengths=LENGTHS, rule_type=Bidirectional):
    torch.manual_seed(1)
    ids = torch.randint(60, (ROWS, LENGTH)) if ids is None else ids
    token_mask = torch.arange(LENGTH) < lengths[:, None]
    rule = PaddingRule(token_mask) if rule_type is Bidirectional else rule_type() & PaddingRule(token_mask)
    stream = Stream(ids, rule, output_positions=output_positions, skip_padding=True)
    stack_input = build_stack_input(network, stream, None, None)
    x = network.embedding(stream)
    return network.encoder.start_pass(x, stack_input), stream, token_mask


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "modernbert", "neobert", "ltg-bert", "gpt-bert", "mdlm", "t5", "gpt2",
                                  "nanochat"])
def test_running_all_layers_equals_the_forward_pass(name):
    network = network_of(name)
    layer_pass, stream, token_mask = start_pass(network, rule_type=Causal if name == "gpt2" else Bidirectional)
    while not layer_pass.done:
        layer_pass.run_next_layer()
    if network.decoder is None:
        expected = network({"encoder": stream})["encoder"]
        assert_close(layer_pass.finish().last_hidden_state[token_mask], expected[token_mask])
    assert layer_pass.layer_index == 3


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "modernbert", "t5"])
def test_an_intermediate_hidden_state_is_the_output_of_a_shallower_network(name):
    network = network_of(name)
    layer_pass, _, token_mask = start_pass(network)
    layer_pass.run_next_layer()
    layer_pass.run_next_layer()
    shorter = network_of(name)
    shorter.encoder.blocks = shorter.encoder.blocks[:2]
    other, *_ = start_pass(shorter)
    while not other.done:
        other.run_next_layer()
    assert_close(layer_pass.hidden_state()[token_mask], other.finish().last_hidden_state[token_mask])
    embedded = start_pass(network)[0].hidden_state()
    assert not torch.allclose(layer_pass.hidden_state()[token_mask], embedded[token_mask], atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("name", ["bert", "modernbert", "t5"])
def test_rows_that_exit_early_do_not_change_the_others(name, first_only):
    """Padding and unused output positions are still skipped."""
    network = network_of(name)
    first = torch.arange(ROWS) * LENGTH if first_only else None
    layer_pass, _, token_mask = start_pass(network, first)
    expected, *_ = start_pass(network, first)
    while not expected.done:
        expected.run_next_layer()
    rows = torch.tensor([9, 1, 0, 4, 5, 7, 10, 2, 3])
    layer_pass.run_next_layer()
    layer_pass.select_rows(rows)
    assert layer_pass.unpadded is not None
    layer_pass.run_next_layer()
    layer_pass.select_rows(torch.arange(8))
    layer_pass.run_next_layer()
    remaining = rows[:8]
    result, expected_output = layer_pass.finish().last_hidden_state, expected.finish().last_hidden_state[remaining]
    compared = torch.zeros(8, LENGTH, dtype=torch.bool)
    compared[:, 0] = True
    compared = compared if first_only else token_mask[remaining]
    assert result.shape == (8, LENGTH, 24)
    assert_close(result[compared], expected_output[compared])
