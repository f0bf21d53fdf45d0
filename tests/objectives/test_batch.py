from dataclasses import replace

import numpy as np
import pytest
import torch
from small_corpora import draft_of, whole

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.objectives import Batch, build_network, build_objectives, collate
from stemma.visibility import Bidirectional, PaddingRule

SMALL = ["network.width=16", "network.heads=2", "network.feedforward=24", "network.dropout=0.0",
         "network.attention.dropout=0.0", "corpus.sequence_length=40"]


@pytest.fixture(scope="module")
def corpus(corpus_folder) -> Corpus:
    return Corpus.open(corpus_folder)


def bert(*changes: str) -> recipe_loading.Recipe:
    return recipe_loading.recipe("bert@tiny", [*SMALL, *changes])


def corrupt(corpus: Corpus, kind: str = "segment_pair", rows: int = 7, length: int = 40):
    draft = draft_of(whole(corpus), kind, length, rows, short=0.3)
    objectives = build_objectives(bert())
    rng = np.random.default_rng(0)
    for objective in objectives:
        objective.make_targets(draft, rng)
    return draft, objectives


def test_a_batch_is_the_draft_truncated_to_its_longest_row(corpus):
    draft, _ = corrupt(corpus, rows=3, length=300)
    batch = collate(draft)
    longest = int(draft.lengths.max())
    assert longest < 300
    stream = batch.streams["encoder"]
    assert stream.input_ids.tolist() == draft.input_ids[:, :longest].tolist()
    assert stream.segment_ids.tolist() == draft.segment_ids[:, :longest].tolist()
    assert isinstance(stream.attention_mask, PaddingRule)
    assert stream.attention_mask.token_mask.tolist() == [[position < length for position in range(longest)]
                                                         for length in draft.lengths]
    assert batch.num_tokens == draft.lengths.sum() and batch.num_rows == 3
    target = batch.token_targets["vocabulary"]
    original = torch.from_numpy(draft.original_ids[:, :longest].astype("int64")).flatten()
    assert (original[target.index] == target.labels).all()
    assert target.denominator == len(target.index) == len(draft.token_targets["vocabulary"].index)
    assert batch.row_targets["next_sentence"].labels.tolist() == draft.row_labels["next_sentence"].tolist()


def test_a_batch_without_padding_has_no_padding_mask(corpus):
    draft = draft_of(whole(corpus), "stream", 16, rows=4)
    draft.spans = draft.spans.select(np.flatnonzero(draft.spans.part_lengths(0) == 14)[:2])
    assert collate(draft).streams["encoder"].attention_mask == Bidirectional()


def losses_and_gradients(network, objectives, batches: list[Batch]) -> tuple[dict[str, float], list[torch.Tensor]]:
    network.zero_grad()
    losses: dict[str, float] = {}
    for batch in batches:
        hidden = network(batch.streams)
        results: dict[str, torch.Tensor] = {}
        for objective in objectives:
            results |= objective.loss(network, hidden, batch)
        sum(results.values()).backward()
        for name, loss in results.items():
            losses[name] = losses.get(name, 0.0) + loss.item()
    return losses, [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_losses_and_gradients_of_slices_add_up_to_the_batch(corpus, rows):
    draft, objectives = corrupt(corpus)
    batch = collate(draft)
    torch.manual_seed(0)
    network = build_network(bert(), corpus.tokenizer.vocab_size)
    slices = batch.slices(rows)
    assert [part.num_rows for part in slices] == [min(rows, 7 - start) for start in range(0, 7, rows)]
    assert all(part.token_targets["vocabulary"].denominator == batch.token_targets["vocabulary"].denominator
               for part in slices)
    losses, gradients = losses_and_gradients(network, objectives, [batch])
    sliced, sliced_gradients = losses_and_gradients(network, objectives, slices)
    assert set(losses) == {"masked_lm", "next_sentence"}
    assert sliced == pytest.approx(losses, rel=1e-5)
    assert len(gradients) == len(sliced_gradients) > 10
    for first, second in zip(gradients, sliced_gradients, strict=True):
        torch.testing.assert_close(second, first, rtol=1e-4, atol=1e-6)


def test_a_slice_without_targets_adds_no_loss(corpus):
    draft, objectives = corrupt(corpus)
    only_first = draft.token_targets["vocabulary"].index < 40
    draft.add_token_targets("vocabulary", at=np.isin(np.arange(7 * 40),
                                                     draft.token_targets["vocabulary"].index[only_first]),
                labels=draft.original_ids)
    batch = collate(draft)
    network = build_network(bert(), corpus.tokenizer.vocab_size)
    losses, gradients = losses_and_gradients(network, objectives, [batch])
    sliced, sliced_gradients = losses_and_gradients(network, objectives, batch.slices(2))
    assert sliced == pytest.approx(losses, rel=1e-5)
    for first, second in zip(gradients, sliced_gradients, strict=True):
        torch.testing.assert_close(second, first, rtol=1e-4, atol=1e-6)


def test_output_positions_do_not_change_losses_and_gradients(corpus):
    draft, objectives = corrupt(corpus)
    batch = collate(draft)
    stream = batch.streams["encoder"]
    firsts = [row * stream.input_ids.shape[1] for row in range(7)]
    assert stream.output_positions.tolist() == sorted({*batch.token_targets["vocabulary"].index.tolist(), *firsts})
    network = build_network(bert(), corpus.tokenizer.vocab_size)
    all_positions = replace(batch, streams={"encoder": replace(stream, output_positions=None)})
    losses, gradients = losses_and_gradients(network, objectives, [batch])
    expected, expected_gradients = losses_and_gradients(network, objectives, [all_positions])
    assert losses == pytest.approx(expected, rel=1e-5)
    for first, second in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)


def test_moving_a_batch_to_a_device_keeps_its_content(corpus):
    draft, _ = corrupt(corpus)
    batch = collate(draft)
    moved = batch.to("cpu")
    assert moved.num_tokens == batch.num_tokens and moved.num_rows == batch.num_rows
    assert moved.streams["encoder"].attention_mask == batch.streams["encoder"].attention_mask
    assert torch.equal(moved.token_targets["vocabulary"].index, batch.token_targets["vocabulary"].index)
    assert torch.equal(moved.row_targets["next_sentence"].labels, batch.row_targets["next_sentence"].labels)
