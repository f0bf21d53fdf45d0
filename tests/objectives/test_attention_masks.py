"""Attention masks of UniLM's four cloze tasks and of the prefix language model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_corpora import draft_of, pieced_corpus, whole

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.network.inputs_outputs import Stream
from stemma.objectives import build_network, build_objectives, collate, group_objectives
from stemma.objectives.masked_lm import MaskedLM, MaskedLMSettings
from stemma.objectives.prefix_lm import PrefixLM, PrefixLMSettings
from stemma.visibility import Prefix, ReverseCausal

TASKS = ["full", "prefix", "causal", "later"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


def cloze(mask_kind: str, **settings) -> MaskedLM:
    values = {"kind": "masked_lm", "rate": 0.15, "unit": "ngram", "dynamic": True, "attention_mask": mask_kind,
              **settings}
    return MaskedLM(mask_kind, MaskedLMSettings(**values))


def batch_of(corpus, mask_kind: str, rows: int = 12):
    draft = draft_of(whole(corpus), "segment_pair", 40, rows, short=0.4)
    task = cloze(mask_kind)
    task.make_targets(draft, np.random.default_rng(0))
    return draft, collate(draft, task.attention_mask_kind)


@pytest.mark.parametrize("mask_kind", TASKS)
def test_the_four_attention_masks_of_unilm(corpus, mask_kind):
    draft, batch = batch_of(corpus, mask_kind)
    stream = batch.streams["encoder"]
    second = draft.segment_b_start()
    assert len(set(draft.lengths.tolist())) > 3 and (second < draft.lengths).any()
    for row in range(draft.rows):
        length = int(draft.lengths[row])
        grid = stream.attention_mask.grid(stream.input_ids.shape[1], row).tolist()
        assert all(any(line) for line in grid)  # padding attends to itself
        for query in range(length):
            for key in range(stream.input_ids.shape[1]):
                allowed = {"full": key < length, "causal": key <= query, "later": query <= key < length,
                           "prefix": key < second[row] or key <= query}[mask_kind]
                assert grid[query][key] == allowed, (row, query, key)


@pytest.mark.parametrize("mask_kind", TASKS)
def test_only_visible_positions_affect_an_output(corpus, mask_kind):
    """Also if the last block computes only the output positions."""
    _, batch = batch_of(corpus, mask_kind, rows=4)
    recipe = recipe_loading.recipe("unilm@tiny", ["network.dropout=0.0", "network.attention.dropout=0.0",
                                                   "network.initialization.zero_output=false"])
    torch.manual_seed(0)
    network = build_network(recipe, corpus.tokenizer.vocab_size).eval()
    stream = batch.streams["encoder"]
    scored = batch.token_targets["vocabulary"].index
    width = stream.input_ids.shape[1]

    def outputs(changed: Stream) -> torch.Tensor:
        with torch.no_grad():
            return network({"encoder": changed})["encoder"].flatten(0, 1)

    before = outputs(stream)
    everything = outputs(replace(stream, output_positions=None))
    assert torch.allclose(before[scored], everything[scored], atol=1e-5)
    assert torch.isfinite(everything).all()
    row, position = divmod(int(scored[len(scored) // 2]), width)
    visible = stream.attention_mask.grid(width, row)[position]
    ids = stream.input_ids.clone()
    ids[row, ~visible] = (ids[row, ~visible] + 7) % corpus.tokenizer.vocab_size
    assert torch.allclose(outputs(replace(stream, input_ids=ids, output_positions=None))[row * width + position],
                          everything[row * width + position], atol=1e-5)
    other = stream.input_ids.clone()
    visible_position = int(torch.nonzero(visible)[0 if mask_kind != "later" else -1])
    other[row, visible_position] = (other[row, visible_position] + 7) % corpus.tokenizer.vocab_size
    assert not torch.allclose(outputs(replace(stream, input_ids=other, output_positions=None))[row * width + position],
                              everything[row * width + position], atol=1e-5)


def test_slicing_rows_slices_the_attention_mask():
    lengths = torch.tensor([2, 5, 3])
    for kind in (ReverseCausal, Prefix):
        assert kind(lengths).rows(slice(1, 3)) == kind(lengths[1:])
        assert (kind(lengths).compile(5, 5).dense[1, 0] == kind(lengths).grid(5, 1)).all()
    assert ReverseCausal(lengths).grid(4, 0).int().tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def draft_with_prefix(corpus, kind: str, rows: int = 200, length: int = 24, single: str = "A end"):
    draft = draft_of(whole(corpus), kind, length, rows, single=single, pair="A separator B end")
    PrefixLM("prefix_lm", PrefixLMSettings(kind="prefix_lm")).make_targets(draft, np.random.default_rng(0))
    return draft


@pytest.mark.parametrize("kind", ["stream", "doc_sentences", "sentence_pair"])
def test_tokens_after_the_prefix_are_predicted(corpus, kind):
    draft = draft_with_prefix(corpus, kind)
    scored = draft.token_targets["vocabulary"]
    rows, positions = np.divmod(scored.index, draft.template.length)
    following = draft.next_tokens()
    assert (scored.labels == following[rows, positions]).all()
    for row in range(draft.rows):
        prefix, length = int(draft.prefix_lengths[row]), int(draft.lengths[row])
        assert 1 <= prefix < length
        assert positions[rows == row].tolist() == list(range(prefix - 1, length - 1))
        paired = draft.spans.part_lengths(1)[row] > 0
        assert not paired or prefix == draft.segment_b_start()[row]
    assert collate(draft, "prefix").streams["encoder"].attention_mask == Prefix(torch.from_numpy(draft.prefix_lengths))


def test_prefix_lengths_are_uniform(corpus):
    draft = draft_with_prefix(corpus, "stream", rows=4600, single="A")
    full = draft.lengths == 24
    counts = np.bincount(draft.prefix_lengths[full], minlength=24)
    assert counts[0] == 0 and len(counts) == 24
    expected = full.sum() / 23
    assert (np.abs(counts[1:] - expected) < 5 * expected**0.5).all()
    rows, positions = np.divmod(draft.token_targets["vocabulary"].index, 24)
    running = rows[positions == 23]  # the text continues after the window, so the last position has a target
    assert len(running) == full.sum()


def test_unilm_has_four_groups_with_different_segments():
    recipe = recipe_loading.recipe("unilm@tiny")
    groups = group_objectives(recipe, build_objectives(recipe))
    assert [group.attention_mask_kind for group in groups] == ["full", "prefix", "causal", "later"]
    assert [len(group.objectives) for group in groups] == [2, 1, 1, 1]
    assert len({(group.key.single_template, group.key.pair_template) for group in groups}) == 4


@pytest.mark.parametrize(("changes", "message"), [
    (["objective.masked_lm.ngrams=[0.8, 0.1]"], "must add up to 1"),
    (["objective.left_to_right.scored=second"], "needs segment_pair, sentence_pair or parallel"),
    (["objective.right_to_left.scored=second", "objective.right_to_left.packing=segment_pair"],
     "B cannot be predicted from it"),
    (["objective.sequence_to_sequence.packing=stream"], "objective.sequence_to_sequence needs segment_pair"),
    (["objective.left_to_right.single=start A:7 separator"], "segment 7"),
    (["objective.left_to_right.single=start A B"], "must hold A once and no B"),
    (["objective.left_to_right.attention_mask=both"], "must be one of full, prefix, causal, later"),
    (["objective.left_to_right.sampling_weight=0.0"], "must be greater than 0"),
])
def test_invalid_unilm_settings_are_refused(changes, message):
    with pytest.raises(UserError) as refused:
        recipe_loading.recipe("unilm@tiny", changes)
    assert message in str(refused.value)
