"""FLOPs of a training step, against a count by hand and against a counted run."""

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


def test_fused_attention_has_the_flops_of_its_matrix_products():
    query, key, value = (torch.randn(2, 4, 48, 16, requires_grad=True) for _ in range(3))
    counts = []
    for fused in (True, False):
        with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
            mixed = functional.scaled_dot_product_attention(query, key, value) if fused else \
                (query @ key.transpose(-1, -2) / 4).softmax(-1) @ value
            mixed.sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * (2 * 2 * 4 * 48 * 48 * (16 + 16))


def test_flops_of_a_step_equal_a_count_by_hand(corpus_folder):
    """A step costs three times the forward pass, which is 2 x tokens x weights for each matrix."""
    corpus = Corpus.open(corpus_folder)
    adopted = adopt_tokenizer(recipe("gpt2@tiny", [*SMALL, "network.dropout=0", "network.attention.dropout=0"]), corpus)
    cost = step_cost(adopted, corpus)
    positions, width, inner, layers = 8 * 32, 32, 64, 2
    body = layers * (width * 3 * width + width * width + 2 * width * inner)
    attention = layers * 2 * 8 * 2 * 32 * 32 * (16 + 16)
    lm_head = width * adopted.settings.tokenizer.vocab_size
    assert cost.flops == pytest.approx(3 * (2 * positions * (body + lm_head) + attention), rel=0.02)
    assert cost.tokens == pytest.approx(positions, rel=0.02)


@pytest.mark.parametrize("name", ["bert@tiny", "electra@tiny", "unilm@tiny"])
def test_the_estimate_equals_the_mean_over_40_counted_steps(corpus_folder, name):
    corpus = Corpus.open(corpus_folder)
    adopted = adopt_tokenizer(recipe(name, SMALL), corpus)
    objectives = build_objectives(adopted)
    network, loader = build_network(adopted), PretrainLoader(adopted, corpus, objectives, seed=5)
    passes = ForwardBackward(network.train(), objectives, adopted.settings.training, torch.device("cpu"), torch.float32)
    counted = []
    for step in range(40):
        batch = loader.get_batch(step, loader.sequence_length_at(step / 40), step / 40)
        with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
            passes.forward_backward(batch)
        counted.append(counter.get_total_flops())
    loader.close()
    # 40 steps are few if objectives alternate at random
    assert step_cost(adopted, corpus).flops == pytest.approx(sum(counted) / len(counted), rel=0.05)


def test_phases_are_weighted_by_their_fraction_of_steps(corpus_folder):
    """90% of the steps have rows of a quarter of the length."""
    corpus = Corpus.open(corpus_folder)

    def cost(*changes: str) -> float:
        return step_cost(adopt_tokenizer(recipe("bert@tiny", [*SMALL, *changes]), corpus), corpus).flops

    short, long = (cost("remove=corpus.first_phase", f"corpus.sequence_length={length}") for length in (8, 32))
    both = cost("corpus.first_phase.fraction=0.9", "corpus.first_phase.sequence_length=8")
    assert long > 2 * short
    assert both == pytest.approx(0.9 * short + 0.1 * long, rel=0.1)


def test_growing_batches_are_few_kinds_of_steps(corpus_folder):
    """Each kind is counted; the mean batch is 5/8 of the largest."""
    corpus = Corpus.open(corpus_folder)
    changes = [*SMALL, "training.batch_size=32", "remove=corpus.first_phase"]
    full, growing = (adopt_tokenizer(recipe("bert@tiny", [*changes, *more]), corpus)
                     for more in ([], ["training.batch_schedule.start=0.25"]))
    loader = PretrainLoader(growing, corpus, build_objectives(growing), seed=0)
    assert len({loader.step_signature(step, 32, step / 1000) for step in range(1000)}) <= 4
    loader.close()
    assert step_cost(growing, corpus).flops == pytest.approx(5 / 8 * step_cost(full, corpus).flops, rel=0.1)
