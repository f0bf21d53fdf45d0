"""What a step costs, against a count by hand and against a whole run."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from stemma.corpus.corpus import Corpus
from stemma.lab.flops import step_cost
from stemma.network.attention.flops import CPU_ATTENTION
from stemma.objectives import build_network, build_objectives
from stemma.recipe_loading import recipe
from stemma.training.corpus_cache import adopt_tokenizer
from stemma.training.forward_backward import ForwardBackward
from stemma.training.pretrain_loader import PretrainLoader

SMALL = ["network.width=32", "network.heads=2", "network.layers=2", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8"]


def test_fused_attention_costs_what_its_products_cost():
    query, key, value = (torch.randn(2, 4, 48, 16, requires_grad=True) for _ in range(3))
    counts = []
    for fused in (True, False):
        with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
            mixed = functional.scaled_dot_product_attention(query, key, value) if fused else \
                (query @ key.transpose(-1, -2) / 4).softmax(-1) @ value
            mixed.sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * (2 * 2 * 4 * 48 * 48 * (16 + 16))


def test_one_matrix_is_counted_by_hand(corpus_folder):
    """A step of a network costs three times its forward products: 2 x tokens x weights each."""
    corpus = Corpus.open(corpus_folder)
    wanted = adopt_tokenizer(recipe("gpt2@tiny", [*SMALL, "network.dropout=0", "network.attention.dropout=0"]), corpus)
    cost = step_cost(wanted, corpus)
    places, width, inner, layers = 8 * 32, 32, 64, 2
    body = layers * (width * 3 * width + width * width + 2 * width * inner)
    attention = layers * 2 * 8 * 2 * 32 * 32 * (16 + 16)
    scores = width * wanted.settings.tokenizer.vocab_size
    assert cost.flops == pytest.approx(3 * (2 * places * (body + scores) + attention), rel=0.02)
    assert cost.tokens == pytest.approx(places, rel=0.02)


@pytest.mark.parametrize("name", ["bert@tiny", "electra@tiny", "unilm@tiny"])
def test_a_few_steps_stand_for_a_run(corpus_folder, name):
    corpus = Corpus.open(corpus_folder)
    wanted = adopt_tokenizer(recipe(name, SMALL), corpus)
    objectives = build_objectives(wanted)
    network, supply = build_network(wanted), PretrainLoader(wanted, corpus, objectives, seed=5)
    passes = ForwardBackward(network.train(), objectives, wanted.settings.training, torch.device("cpu"), torch.float32)
    counted = []
    for step in range(40):
        prepared = supply.get_batch(step, supply.sequence_length_at(step / 40), step / 40)
        with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
            passes.forward_backward(prepared)
        counted.append(counter.get_total_flops())
    supply.close()
    # 40 steps are few where tasks take turns at random
    assert step_cost(wanted, corpus).flops == pytest.approx(sum(counted) / len(counted), rel=0.05)


def test_each_sort_of_step_counts_as_often_as_it_comes(corpus_folder):
    """Nine tenths of the steps read rows of a quarter of the length."""
    corpus = Corpus.open(corpus_folder)

    def cost(*changes: str) -> float:
        return step_cost(adopt_tokenizer(recipe("bert@tiny", [*SMALL, *changes]), corpus), corpus).flops

    short, long = (cost("remove=corpus.first_phase", f"corpus.sequence_length={length}") for length in (8, 32))
    both = cost("corpus.first_phase.share=0.9", "corpus.first_phase.sequence_length=8")
    assert long > 2 * short
    assert both == pytest.approx(0.9 * short + 0.1 * long, rel=0.1)
