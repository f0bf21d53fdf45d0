from itertools import chain

import numpy as np
import pytest
import torch
from literal import xlnet_data
from small_corpora import draft_of, pieced_corpus, whole

from stemma import recipe_loading
from stemma.corpus.contiguous_sampler import ContiguousSampler
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.packers import Packer
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.row_template import RowTemplate
from stemma.errors import UserError
from stemma.network.heads import LMHeadSpec
from stemma.network.inputs_outputs import QUERY, NetworkOutput
from stemma.objectives import collate
from stemma.objectives.permutation_lm import LM_HEAD_NAME, PermutationLM, PermutationLMSettings
from stemma.objectives.xlnet_spans import choose_spans, sample_spans
from stemma.visibility import ExcludeSelf, Permutation

SINGLE, PAIR = "A separator start:2", "A separator B:1 separator:1 start:2"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


def permuting(**settings) -> PermutationLM:
    return PermutationLM("permutation_lm", PermutationLMSettings(kind="permutation_lm", **settings))


def xlnet_draft(corpus: Corpus, length: int, rows: int, objective: PermutationLM) -> Draft:
    """Rows as XLNet packs them: reused text, then a pair."""
    layout = RowTemplate.from_tokenizer(corpus.tokenizer, SINGLE, PAIR, length, length // 2)
    backward = objective.reversed_rows(rows)
    sampler = ContiguousSampler(whole(corpus), Packer("contiguous_pair", layout), 0, rows, backward)
    return Draft(whole(corpus), sampler.next_rows(rows)[0], layout, backward)


def build_draft(corpus: Corpus, kind: str, length: int, rows: int, objective: PermutationLM) -> Draft:
    if kind == "contiguous_pair":
        return xlnet_draft(corpus, length, rows, objective)
    draft = draft_of(whole(corpus), kind, length, rows, short=0.3)
    return Draft(draft.subset, draft.spans, draft.template, objective.reversed_rows(rows))


def targets_of(draft: Draft) -> np.ndarray:
    selected = np.zeros(draft.original_ids.size, dtype=bool)
    selected[draft.token_targets[LM_HEAD_NAME].index] = True
    return selected.reshape(draft.original_ids.shape)


KINDS = ["contiguous_pair", "full_sentences", "segment_pair", "doc_sentences", "stream"]


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("context", [2, 3, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_one_token_in_k_is_a_target_and_special_tokens_never(corpus, kind, context, unit):
    objective = permuting(context=context, unit=unit)
    for length in (24, 61):
        draft = build_draft(corpus, kind, length, 12, objective)
        objective.make_targets(draft, np.random.default_rng(1))
        selected = targets_of(draft)
        assert (draft.input_ids == draft.original_ids).all()
        assert not selected[~draft.is_text].any()
        assert (draft.token_targets[LM_HEAD_NAME].labels == draft.original_ids[selected]).all()
        position = np.arange(length)
        for row in range(12):
            expected = max(1, int(draft.lengths[row]) // context)
            text, late = draft.is_text[row], position >= draft.reuse_lengths[row]
            if kind == "contiguous_pair":
                later = expected // 2
                assert (selected[row] & late).sum() == min(later, (text & late).sum() - 1)
                assert (selected[row] & ~late).sum() == min(expected - later, (text & ~late).sum() - 1)
            else:
                assert selected[row].sum() == min(expected, text.sum() - 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_attention_mask_matches_a_double_loop_over_the_factorization_order(corpus, kind, seed):
    objective = permuting(context=3)
    draft = build_draft(corpus, kind, 24, 8, objective)
    objective.make_targets(draft, np.random.default_rng(seed))
    batch = collate(draft, "permuted")
    stream, longest, selected = batch.streams["encoder"], int(draft.lengths.max()), targets_of(draft)
    assert isinstance(stream.attention_mask, Permutation) and stream.output_positions is None
    for row in range(8):
        length, reused = int(draft.lengths[row]), int(draft.reuse_lengths[row])
        order = draft.factorization_order[row].tolist()
        single = [position for position in range(length) if selected[row, position] or not draft.is_text[row, position]]
        orders = [order[position] for position in single]
        assert len(set(orders)) == len(orders)
        content = stream.attention_mask.grid(longest, row)
        query = (stream.attention_mask & ExcludeSelf()).grid(longest, row)
        for q in range(length):
            for k in range(longest):
                if k >= length:
                    visible = False  # padding
                elif k < reused <= q:
                    visible = True  # the second half attends to all of the first
                elif q < reused <= k:
                    visible = False
                elif k not in single:
                    visible = True  # context
                else:
                    visible = q in single and order[k] < order[q]
                assert bool(content[q, k]) == (visible or q == k)
                if selected[row, q]:
                    assert bool(query[q, k]) == (visible and q != k)
        assert all(query[q].any() for q in range(length) if selected[row, q])


@pytest.mark.parametrize("seed", range(4))
def test_the_attention_mask_matches_the_released_code_for_the_same_order(corpus, seed):
    objective = permuting(context=3)
    draft = xlnet_draft(corpus, 30, 6, objective)
    objective.make_targets(draft, np.random.default_rng(seed))
    attention_mask, selected = collate(draft, "permuted").streams["encoder"].attention_mask, targets_of(draft)
    for row in range(6):
        halves = []
        for part in (slice(0, 15), slice(15, 30)):
            orders = draft.factorization_order[row, part]
            is_context = draft.is_text[row, part] & ~selected[row, part]
            halves.append((np.where(is_context, -1, orders).tolist(), selected[row, part].tolist()))
        blocked = torch.tensor(xlnet_data.row_blocked(*halves))
        itself = torch.eye(30, dtype=torch.bool)
        assert torch.equal(attention_mask.grid(30, row), ~blocked | itself)
        positions = torch.from_numpy(np.flatnonzero(selected[row]))
        assert torch.equal((attention_mask & ExcludeSelf()).grid(30, row)[positions], ~blocked[positions])


class ReplayedNumbers:
    """A generator that replays the random numbers of `sample_spans` for the literal code, and then random ones."""

    def __init__(self, numbers: np.ndarray):
        self.numbers = chain(numbers.reshape(-1).tolist(), np.random.default_rng(0).random(10_000).tolist())

    def choice(self, count: int, p: list[float]) -> int:
        number = next(self.numbers)
        return next(n for n in range(count) if number < sum(p[:n + 1]) or n == count - 1)

    def integers(self, stop: int) -> int:
        return int(next(self.numbers) * stop)


@pytest.mark.parametrize("words", [0.4, 1.1])  # probability that a token starts a word; 1.1: every token
@pytest.mark.parametrize("goal", [None, 4, 10])
def test_sampled_spans_match_the_released_code_for_the_same_random_numbers(words, goal):
    rng = np.random.default_rng(1)
    rows, length = 60, 70
    starts = rng.random((rows, length)) < words
    starts[:, 0] = True
    uniform = rng.random((rows, length // 7 + 1, 2))
    zeros = np.zeros(rows, dtype=np.int64)
    result = sample_spans(np.cumsum(starts, axis=1), zeros, zeros + length, zeros + (goal or length), 6, 5, uniform)
    for row in range(rows):
        rng = ReplayedNumbers(uniform[row])
        expected = np.array(xlnet_data.spans(starts[row].tolist(), goal, rng, whole_words=True))
        if goal is None:
            assert (result[row] == expected).all()
        else:  # the literal code adds single tokens up to the goal
            assert expected[result[row]].all() and expected.sum() == max(goal, result[row].sum())
    assert result.any(1).mean() > 0.5


@pytest.mark.parametrize("context", [2, 6])
def test_span_length_n_has_probability_proportional_to_1_over_n(context):
    rows, length, longest = 400, 600, 5
    units = np.arange(rows * length).reshape(rows, length)
    zeros = np.zeros(rows, dtype=np.int64)
    uniform = np.random.default_rng(0).random((rows, length // (context + 1) + 1, 2))
    result = sample_spans(units, zeros, zeros + length, zeros + length, context, longest, uniform)
    edges = np.diff(result.astype(int), axis=1, prepend=0, append=0)
    sizes = np.flatnonzero(edges.reshape(-1) == -1) - np.flatnonzero(edges.reshape(-1) == 1)
    assert sizes.min() == 1 and sizes.max() == longest
    fractions = np.bincount(sizes, minlength=longest + 1)[1:] / len(sizes)
    expected = (1 / np.arange(1, 6)) / (1 / np.arange(1, 6)).sum()
    np.testing.assert_allclose(fractions, expected, atol=4 * np.sqrt(0.25 / len(sizes)))
    assert result.mean() == pytest.approx(1 / (context + 1), abs=0.01)  # n of every n + n x context


def test_spans_are_whole_words_and_single_tokens_fill_up_to_the_goal(corpus):
    draft = draft_of(whole(corpus), "stream", 300, rows=6)
    zeros = np.zeros(6, dtype=np.int64)
    uniform = np.random.default_rng(3).random((6, 60, 2))
    result = sample_spans(draft.word_ids, zeros, draft.lengths, zeros + 1000, 6, 5, uniform)
    num_split = sum(len(set(result[draft.word_ids == unit])) > 1 for unit in np.unique(draft.word_ids[draft.is_text]))
    selected_words = np.unique(draft.word_ids[result & draft.is_text])
    num_multi_token = sum((draft.word_ids == unit).sum() > 1 for unit in selected_words)
    assert num_split == 0 and num_multi_token > 5
    goal = zeros + 60
    selected = choose_spans(draft.word_ids, zeros, draft.lengths, goal, 6, 5, np.random.default_rng(3))
    assert (selected.sum(1) == 60).all() and not (selected & ~draft.is_text).any()


def test_words_that_exceed_the_goal_are_truncated():
    units = np.repeat(np.arange(10), 10)[None]  # ten words of ten tokens
    zeros = np.zeros(1, dtype=np.int64)
    for seed in range(20):
        selected = choose_spans(units, zeros, zeros + 100, zeros + 4, 2, 5, np.random.default_rng(seed))
        assert selected.sum() == 4


def test_spans_are_sampled_separately_in_both_halves_of_a_row():
    """A word across the boundary counts as two."""
    units = np.repeat(np.arange(20), 5)[None]
    for seed in range(30):
        for start, stop in ((0, 48), (48, 100)):
            edges = np.array([start]), np.array([stop])
            selected = choose_spans(units, *edges, np.array([9]), 3, 5, np.random.default_rng(seed))
            assert selected.sum() == 9 and not selected[0, :start].any() and not selected[0, stop:].any()
    first = sample_spans(units, np.array([48]), np.array([100]), np.array([9]), 3, 5, np.zeros((1, 1, 2)))
    assert np.flatnonzero(first).tolist() == [48, 49]


def test_targets_are_at_all_positions_and_in_any_order(corpus):
    objective = permuting(unit="token")
    draft = xlnet_draft(corpus, 256, 2, objective)
    counts, firsts = np.zeros((2, 256)), np.zeros((2, 256))
    for seed in range(300):
        objective.make_targets(draft, np.random.default_rng(seed))
        counts += targets_of(draft)
        firsts += draft.factorization_order == 1
    rates = [counts[0, start:start + 16][draft.is_text[0, start:start + 16]].mean() / 300 for start in range(0, 256,
                                                                                                             16)]
    assert min(rates) > 0.09 and max(rates) < 0.25 and np.mean(rates) == pytest.approx(1 / 6, abs=0.01)
    assert (firsts[:, :128].reshape(2, 8, 16).sum(2) > 0).all() and not firsts[:, 128:].any()


def test_targets_and_order_depend_on_the_seed(corpus):
    objective = permuting()
    results = []
    for seed in (0, 0, 1):
        draft = xlnet_draft(corpus, 32, 4, objective)
        objective.make_targets(draft, np.random.default_rng(seed))
        results.append((draft.factorization_order.tolist(), draft.token_targets[LM_HEAD_NAME].index.tolist()))
    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize("kind", KINDS)
def test_the_query_stream_has_each_target_once_and_in_order(corpus, kind):
    objective = permuting(context=3)
    draft = build_draft(corpus, kind, 24, 7, objective)
    objective.make_targets(draft, np.random.default_rng(2))
    batch = collate(draft, "permuted")
    stream, target, selected = batch.streams["encoder"], batch.token_targets[LM_HEAD_NAME], targets_of(draft)
    counts = selected.sum(1)
    assert stream.query_positions.shape == (7, counts.max()) and target.row_stride == counts.max()
    assert target.denominator == len(target.index) == counts.sum()
    for row in range(7):
        positions_of_row = stream.query_positions[row, :counts[row]].tolist()
        assert positions_of_row == np.flatnonzero(selected[row]).tolist()
        assert (stream.query_positions[row] < int(draft.lengths[row])).all()
    positions = stream.input_ids.gather(1, stream.query_positions).flatten()
    assert torch.equal(positions[target.index], target.labels)
    assert stream.reuse_length == (12 if kind == "contiguous_pair" else None)
    assert stream.reversed_rows.tolist() == [False] * 4 + [True] * 3


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("kind", ["contiguous_pair", "segment_pair"])
def test_slices_have_the_rows_and_targets_of_the_batch(corpus, kind, rows):
    objective = permuting(context=3)
    draft = build_draft(corpus, kind, 24, 7, objective)
    objective.make_targets(draft, np.random.default_rng(2))
    batch = collate(draft, "permuted")
    stream, result, start = batch.streams["encoder"], [], 0
    for batch_slice in batch.slices(rows):
        part, selected = batch_slice.streams["encoder"], slice(start, start + batch_slice.num_rows)
        assert torch.equal(part.input_ids, stream.input_ids[selected]) and torch.equal(part.query_positions,
                                                                                       stream.query_positions[selected])
        assert torch.equal(part.reversed_rows,
                           stream.reversed_rows[selected]) and part.reuse_length == stream.reuse_length
        assert torch.equal(part.attention_mask.order, stream.attention_mask.order[selected])
        target = batch_slice.token_targets[LM_HEAD_NAME]
        assert torch.equal(part.input_ids.gather(1, part.query_positions).flatten()[target.index], target.labels)
        assert target.denominator == batch.token_targets[LM_HEAD_NAME].denominator
        result += target.labels.tolist()
        start += batch_slice.num_rows
    assert result == batch.token_targets[LM_HEAD_NAME].labels.tolist() and start == 7


def test_the_loss_uses_the_query_stream(corpus):
    objective = permuting()
    draft = xlnet_draft(corpus, 32, 4, objective)
    objective.make_targets(draft, np.random.default_rng(0))
    batch = collate(draft, "permuted")
    recorded = {}

    class Network:
        def head(self, name):
            return self

        def loss(self, positions, labels, total):
            recorded.update(positions=positions, labels=labels)
            return positions.sum() / total

    query = batch.streams["encoder"].query_positions
    positions = query + 100 * torch.arange(4)[:, None]
    hidden = NetworkOutput({"encoder": torch.zeros(4, 32, 1), QUERY: positions[..., None].float()})
    assert objective.loss(Network(), hidden, batch).keys() == {"permutation_lm"}
    row, position = np.divmod(draft.token_targets[LM_HEAD_NAME].index, 32)
    assert recorded["positions"][:, 0].tolist() == (100 * row + position).tolist()
    assert recorded["labels"].tolist() == draft.original_ids[row, position].tolist()


def test_rows_of_one_or_two_tokens_have_at_most_one_target(corpus):
    layout = RowTemplate.from_tokenizer(corpus.tokenizer, SINGLE, PAIR, 24)
    spans = RowSpans.from_tuples(3, [(0, 5, 1, 0, False), (1, 5, 2, 0, False), (2, 5, 22, 0, False)])
    draft, objective = Draft(whole(corpus), spans, layout), permuting(context=2)
    objective.make_targets(draft, np.random.default_rng(0))
    assert draft.lengths.tolist()[:2] == [3, 4]
    assert targets_of(draft).sum(1).tolist()[:2] == [0, 1]
    stream = collate(draft, "permuted").streams["encoder"]
    assert stream.query_positions.shape == (3, 12)
    for row in range(3):
        # every query attends to something, also in padding
        assert (stream.attention_mask & ExcludeSelf()).grid(24, row)[stream.query_positions[row]].any(1).all()


def test_requirements_and_reversed_rows():
    objective = permuting()
    assert objective.predicts_tokens and objective.attention_mask_kind == "permuted"
    assert objective.settings.needs_query_stream
    assert objective.requirements().heads == {LM_HEAD_NAME: LMHeadSpec(transform=False, bias=True)}
    assert objective.reversed_rows(5).tolist() == [False, False, False, True, True]
    assert objective.reversed_rows(1).tolist() == [False]
    assert not permuting(both_directions=False).reversed_rows(6).any()


@pytest.mark.parametrize("context", [1, 0, -3])
def test_a_context_below_2_is_refused(context):
    with pytest.raises(UserError) as error:
        recipe_loading.recipe("xlnet@tiny", [f"objective.permutation_lm.context={context}"])
    (key, message), = error.value.problems
    assert f"context = {context}" in key and "2 or more" in message and "none is left as context" in message
