"""A stack walked block by block: the same answers, layers that can be looked at, and rows that leave early."""

from __future__ import annotations

import pytest
import torch
from closeness import assert_close
from parity.reference import perturb

import stemma
from stemma.network.inputs_outputs import Stream
from stemma.network.stack_input import build_stack_input
from stemma.visibility import Bidirectional, Causal, PaddingRule

ROWS, LENGTH = 12, 40
SMALL = ["network.layers=3", "network.width=24", "network.heads=2", "network.feedforward=32",
         "corpus.sequence_length=48"]
LENGTHS = torch.tensor([40, 3, 9, 25, 12, 5, 38, 7, 6, 30, 11, 4])


def network_of(name):
    torch.manual_seed(0)
    network = stemma.build(f"{name}@tiny", 60, SMALL).network.eval()
    perturb(network, 0)  # some start as the identity
    return network


def walk_of(network, wanted=None, ids=None, lengths=LENGTHS, sees=Bidirectional):
    torch.manual_seed(1)
    ids = torch.randint(60, (ROWS, LENGTH)) if ids is None else ids
    real = torch.arange(LENGTH) < lengths[:, None]
    rule = PaddingRule(real) if sees is Bidirectional else sees() & PaddingRule(real)
    stream = Stream(ids, rule, output_positions=wanted, skip_padding=True)
    given = build_stack_input(network, stream, None, None)
    x = network.embedding(stream)
    return network.encoder.start_pass(x, given), stream, real


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "modernbert", "t5", "gpt2"])
def test_walked_to_the_end_it_is_the_forward_pass(name):
    network = network_of(name)
    walk, stream, real = walk_of(network, sees=Causal if name == "gpt2" else Bidirectional)
    while not walk.done:
        walk.run_next_layer()
    if network.decoder is None:
        expected = network({"encoder": stream})["encoder"]
        assert_close(walk.finish().last_hidden_state[real], expected[real])
    assert walk.layer_index == 3


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "modernbert", "t5"])
def test_a_layer_looked_at_is_the_output_of_a_shallower_network(name):
    network = network_of(name)
    walk, _, real = walk_of(network)
    walk.run_next_layer()
    walk.run_next_layer()
    shorter = network_of(name)
    shorter.encoder.blocks = shorter.encoder.blocks[:2]
    other, *_ = walk_of(shorter)
    while not other.done:
        other.run_next_layer()
    assert_close(walk.hidden_state()[real], other.finish().last_hidden_state[real])
    assert not torch.allclose(walk.hidden_state()[real], walk_of(network)[0].hidden_state()[real], atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("name", ["bert", "modernbert", "t5"])
def test_rows_that_leave_early_do_not_change_the_others(name, wanted):
    """Padding is still left out (one long row stays among short ones), and so are positions that nobody reads."""
    network = network_of(name)
    first = torch.arange(ROWS) * LENGTH if wanted else None
    walk, _, real = walk_of(network, first)
    expected, *_ = walk_of(network, first)
    while not expected.done:
        expected.run_next_layer()
    rows = torch.tensor([9, 1, 0, 4, 5, 7, 10, 2, 3])
    walk.run_next_layer()
    walk.select_rows(rows)
    assert walk.unpadded is not None
    walk.run_next_layer()
    walk.select_rows(torch.arange(8))
    walk.run_next_layer()
    left = rows[:8]
    found, whole = walk.finish().last_hidden_state, expected.finish().last_hidden_state[left]
    seen = torch.zeros(8, LENGTH, dtype=torch.bool)
    seen[:, 0] = True
    seen = seen if wanted else real[left]
    assert found.shape == (8, LENGTH, 24)
    assert_close(found[seen], whole[seen])
