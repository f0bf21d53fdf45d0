import numpy as np
import pytest
import torch
from small_corpora import corpus_of, draft_of, packing_of, pieced_corpus, whole

from stemma import recipe_loading
from stemma.corpus.contiguous_sampler import ContiguousSampler
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.errors import UserError
from stemma.network.heads import LMHeadSpec
from stemma.network.inputs_outputs import NetworkOutput
from stemma.objectives import build_objectives, check_requirements, collate, group_objectives
from stemma.objectives.causal_lm import LM_HEAD_NAME, CausalLM, CausalLMSettings
from stemma.text.train_tokenizer import train_tokenizer
from stemma.visibility import Causal


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


def causal(direction: str = "forward") -> CausalLM:
    return CausalLM("causal_lm", CausalLMSettings(kind="causal_lm", direction=direction))


def targets_by_position(draft: Draft, objective: CausalLM) -> dict[tuple[int, int], int]:
    objective.make_targets(draft, np.random.default_rng(0))
    result = draft.token_targets[LM_HEAD_NAME]
    assert (draft.input_ids == draft.original_ids).all()
    return {divmod(int(index), draft.template.length): int(label)
            for index, label in zip(result.index, result.labels, strict=True)}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("kind", "single"), [("stream", "A"), ("doc_sentences", "start A end"),
                                              ("full_sentences", "A end"), ("segment_pair", "start A separator")])
def test_every_position_predicts_the_next_token_and_padding_nothing(corpus, kind, single, direction):
    forward_draft = draft_of(whole(corpus), kind, 19, rows=8, short=0.3, single=single)
    objective = causal(direction)
    draft = Draft(forward_draft.subset, forward_draft.spans, forward_draft.template, objective.reversed_rows(8))
    result = targets_by_position(draft, objective)
    for row in range(8):
        length = int(draft.lengths[row])
        tokens = draft.original_ids[row].tolist()
        step = -1 if direction == "backward" else 1
        assert tokens[:length] == forward_draft.original_ids[row, :length].tolist()[::step]
        for position in range(length - 1):
            assert result.pop((row, position)) == tokens[position + 1]
        if kind == "stream":
            assert (row, length - 1) in result
            del result[row, length - 1]
    assert not result


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_over_an_epoch_each_token_of_running_text_is_predicted_once(corpus, direction):
    """Including document ends; only the very first token is never predicted."""
    view, objective = whole(corpus), causal(direction)
    packing = packing_of(corpus, "contiguous", 16, single="A")
    sampler = ContiguousSampler(view, packing, 0, 1, objective.reversed_rows(1))
    labels: list[int] = []
    for _ in range(sampler.num_batches):
        draft = Draft(view, sampler.next_rows(1)[0], sampler.packer.template, objective.reversed_rows(1))
        labels += targets_by_position(draft, objective).values()
    separator = corpus.tokenizer.special_id("separator")
    text: list[int] = []
    for start, stop in view.document_ranges:
        text += [*corpus.values_between("tokens", int(start), int(stop)).tolist(), separator]
    expected = [separator, *text[:-1]][::-1] if direction == "backward" else text
    assert labels == expected[1:]


def test_the_batch_is_causal_and_outputs_every_position(corpus):
    draft = draft_of(whole(corpus), "doc_sentences", 19, rows=8, single="A")
    causal().make_targets(draft, np.random.default_rng(0))
    assert len(set(draft.lengths.tolist())) > 1
    batch = collate(draft, "causal")
    stream = batch.streams["encoder"]
    longest = int(draft.lengths.max())
    assert stream.attention_mask == Causal() and stream.output_positions is None and stream.query_positions is None
    assert stream.reversed_rows is None and stream.reuse_length is None
    target = batch.token_targets[LM_HEAD_NAME]
    assert target.row_stride == longest and target.denominator == len(target.index) == draft.lengths.sum() - 8
    ids = stream.input_ids.flatten()
    assert (ids[target.index + 1] == target.labels).all()


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_slices_have_the_targets_and_flags_of_the_batch(corpus, rows):
    draft = draft_of(whole(corpus), "doc_sentences", 19, rows=8, single="A")
    draft.continues_previous, draft.reversed_rows = True, np.arange(8) >= 4
    causal().make_targets(draft, np.random.default_rng(0))
    batch = collate(draft, "causal")
    result, start = [], 0
    for part in batch.slices(rows):
        assert part.continues_previous
        assert part.token_targets[LM_HEAD_NAME].denominator == batch.token_targets[LM_HEAD_NAME].denominator
        reversed_rows = [row >= 4 for row in range(start, start + part.num_rows)]
        assert part.streams["encoder"].reversed_rows.tolist() == reversed_rows
        offset = start * batch.token_targets[LM_HEAD_NAME].row_stride
        result += zip((part.token_targets[LM_HEAD_NAME].index + offset).tolist(),
                      part.token_targets[LM_HEAD_NAME].labels.tolist(), strict=True)
        start += part.num_rows
    assert result == list(zip(batch.token_targets[LM_HEAD_NAME].index.tolist(),
                              batch.token_targets[LM_HEAD_NAME].labels.tolist(), strict=True))


class RecordingNetwork:
    """A network whose head records the inputs of its loss."""

    def head(self, name):
        assert name == LM_HEAD_NAME
        return self

    def loss(self, hidden, labels, total):
        self.hidden, self.labels = hidden, labels
        return hidden.sum() / total


@pytest.mark.parametrize("kind", ["doc_sentences", "contiguous"])
def test_the_head_runs_on_exactly_the_scored_positions(corpus, kind):
    view = whole(corpus)
    if kind == "contiguous":
        sampler = ContiguousSampler(view, packing_of(corpus, kind, 19, single="A"), 0, 8)
        draft = Draft(view, sampler.next_rows(8)[0], sampler.packer.template)
    else:
        draft = draft_of(view, kind, 19, rows=8, single="A")
    objective, network = causal(), RecordingNetwork()
    objective.make_targets(draft, np.random.default_rng(0))
    batch = collate(draft, "causal")
    hidden = torch.arange(8.0 * int(draft.lengths.max())).reshape(8, -1, 1)
    losses = objective.loss(network, NetworkOutput({"encoder": hidden}), batch)
    target = batch.token_targets[LM_HEAD_NAME]
    assert losses.keys() == {"causal_lm"}
    assert network.hidden[:, 0].tolist() == target.index.tolist() and network.labels is target.labels
    assert (len(target.index) == hidden.numel()) == (kind == "contiguous")


def test_requirements_and_unigram_baseline(corpus):
    objective = causal()
    assert objective.predicts_tokens and objective.attention_mask_kind == "causal"
    assert objective.num_static_copies is None
    assert objective.requirements().heads == {LM_HEAD_NAME: LMHeadSpec(transform=False, bias=False)}
    unigram = np.log(np.random.default_rng(0).dirichlet(np.ones(corpus.tokenizer.vocab_size)))
    draft = draft_of(whole(corpus), "stream", 19, rows=3, single="A")
    objective.make_targets(draft, np.random.default_rng(0))
    expected = -np.mean([unigram[label] for label in draft.token_targets[LM_HEAD_NAME].labels])
    assert objective.baseline(collate(draft, "causal"), unigram)["causal_lm"] == pytest.approx(expected)


def test_the_end_token_is_optional_but_template_tokens_are_required(tmp_path, text_file):
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "wordpiece", 300, lowercase=True, roles=set())
    tokenizer.save(tmp_path / "tokenizer")
    corpus = corpus_of(tmp_path, [["the clerk"], ["a letter"]], tmp_path / "tokenizer")
    # a new tokenizer has an end token
    assert "end" in recipe_loading.required_special_tokens(recipe_loading.recipe("gpt@tiny"))
    check_requirements(recipe_loading.recipe("gpt@tiny"), corpus)
    with pytest.raises(UserError) as error:
        check_requirements(recipe_loading.recipe("gpt@tiny", ["corpus.single=A end"]), corpus)
    assert any('"end"' in message for _, message in error.value.problems)


def test_forward_and_backward_objectives_are_two_groups(corpus):
    recipe = recipe_loading.recipe("gpt@tiny", ["objective.back.kind=causal_lm", "objective.back.direction=backward"])
    groups = group_objectives(recipe, build_objectives(recipe))
    assert [[objective.name for objective in group.objectives] for group in groups] == [["causal_lm"], ["back"]]
    assert [group.attention_mask_kind for group in groups] == ["causal", "causal"]
    assert groups[0].reversed_rows(3) is None and groups[1].reversed_rows(3).tolist() == [True] * 3


def test_static_masks_with_contiguous_rows_are_refused():
    changes = ["remove=objective.next_sentence", "corpus.packing=contiguous"]
    with pytest.raises(UserError, match="1 problem") as error:
        recipe_loading.recipe("bert@tiny", changes)
    assert "contiguous" in error.value.problems[0][0] and "stream" in error.value.problems[0][1]
    recipe_loading.recipe("bert@tiny", [*changes, "objective.masked_lm.dynamic=true"])
    with pytest.raises(UserError) as error:
        recipe_loading.recipe("bert@tiny", ["objective.next_sentence.packing=contiguous_pair"])
    assert any("segment_pair or sentence_pair" in message for _, message in error.value.problems)


def test_only_b_is_predicted_if_a_is_context(tmp_path, tokenizer_folder):
    """The targets are B and its end token. A row without B has no target."""
    documents = [["the old clerk reads", "seven pages."], ["our neighbour", "forgets the notes."], ["at the river"]]
    corpus = corpus_of(tmp_path, documents, tokenizer_folder)
    resolved = recipe_loading.recipe("gpt2@tiny", [
        "corpus.packing=sentence_pair", "corpus.pair=begin A separator B end", "corpus.sequence_length=24",
        "objective.causal_lm.scored=second"])
    draft = draft_of(whole(corpus), "sentence_pair", 24, 3, single="begin A end", pair="begin A separator B end")
    (objective,) = build_objectives(resolved)
    objective.make_targets(draft, np.random.default_rng(0))
    results = set()
    for row in range(3):
        index = draft.token_targets["vocabulary"].index
        labels = draft.token_targets["vocabulary"].labels[index // 24 == row]
        results.add(" ".join(corpus.tokenizer.ids_to_tokens(labels)))
        positions = index[index // 24 == row] % 24
        assert len(positions) == 0 or positions.max() == draft.lengths[row] - 2
    end = corpus.tokenizer.id_to_token(corpus.tokenizer.special_id("end"))
    expected = [" ".join(corpus.tokenizer.encode(pair[1], special=False).tokens) + f" {end}" for pair in documents[:2]]
    assert results == {*expected, ""}


@pytest.mark.parametrize(("changes", "message"), [
    (["objective.causal_lm.scored=second"], "needs segment_pair, sentence_pair or parallel in corpus.packing"),
    (["corpus.packing=sentence_pair", "objective.causal_lm.scored=second", "objective.causal_lm.direction=backward"],
     "cannot be predicted from A"),
])
def test_invalid_combinations_with_scored_second_are_refused(changes, message):
    with pytest.raises(UserError) as refused:
        recipe_loading.recipe("gpt2@tiny", changes)
    assert message in str(refused.value)
