from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from literal import span_boundary as literal
from small_corpora import draft_of, pieced_corpus, whole

import stemma
from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.model import Model
from stemma.objectives import build_network, build_objectives, collate, group_objectives
from stemma.objectives.batch import Target
from stemma.objectives.masked_lm import LM_HEAD_NAME as VOCABULARY
from stemma.objectives.span_boundary import HEAD_NAME, span_edges

SMALL = {"network.layers": 2, "network.width": 24, "network.heads": 2, "network.feedforward": 32,
         "network.dropout": 0.0, "network.attention.dropout": 0.0, "corpus.sequence_length": 60}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


def small(**changes):
    return recipe_loading.recipe("spanbert@tiny", changes=SMALL | changes)


def prepared(recipe, corpus, packing="doc_sentences", seed=0, rows=6):
    """A draft, its objectives and the batch, as in a run."""
    draft = draft_of(whole(corpus), packing, 60, rows=rows, seed=seed, short=0.3)
    objectives = build_objectives(recipe)
    for objective in objectives:
        objective.make_targets(draft, np.random.default_rng(seed))
    return draft, objectives, collate(draft)


def network_for(recipe, corpus, seed=0):
    torch.manual_seed(seed)
    network = build_network(recipe, corpus.tokenizer.vocab_size).eval()
    for parameter in network.parameters():  # also norms and biases
        parameter.data += 0.3 * torch.randn_like(parameter)
    return network


@pytest.mark.parametrize("packing", ["doc_sentences", "segment_pair", "full_sentences"])
@pytest.mark.parametrize("places", [15, 3])
def test_the_loss_matches_the_papers_formula(corpus, packing, places):
    recipe = small(**{"objective.span_boundary.places": places, "objective.masked_lm.rate": 0.4})
    network = network_for(recipe, corpus)
    draft, objectives, batch = prepared(recipe, corpus, packing)
    with torch.no_grad():
        result = objectives[1].loss(network, network(batch.streams), batch)["span_boundary"]
        all_positions = replace(batch.streams["encoder"], output_positions=None)
        outputs = network({"encoder": all_positions})["encoder"]
    width = draft.template.length
    rows, positions = np.divmod(draft.token_targets[VOCABULARY].index, width)
    masked = [positions[rows == row].tolist() for row in range(draft.rows)]
    assert max(map(len, masked)) > 15
    head = {name.removeprefix("heads.span_boundary."): tensor for name, tensor in network.state_dict().items()
            if name.startswith("heads.span_boundary.")}
    weights = head | {"places": head["places.weight"], "table": network.embedding.tokens.weight.detach()}
    original = torch.from_numpy(draft.original_ids.astype(np.int64))
    expected = literal.loss(outputs, masked, original, weights, recipe.settings.network.norm.epsilon)
    assert result.item() == pytest.approx(expected.item(), rel=1e-5)


def test_span_edges_are_the_positions_around_each_span():
    width = 10
    target = Target(torch.tensor([1, 2, 3, 5, 18, 21, 22]), torch.zeros(7), 1.0, width)
    left, right, offset = (values.tolist() for values in span_edges(target))
    assert left == [0, 0, 0, 4, 17, 20, 20] and right == [4, 4, 4, 6, 19, 23, 23]
    assert offset == [0, 1, 2, 0, 0, 0, 1]
    row_end = Target(torch.tensor([8, 9, 10, 11]), torch.zeros(4), 1.0, width)  # consecutive indices in different rows
    assert span_edges(row_end)[0].tolist() == [7, 7, 9, 9]
    no_targets = Target(torch.zeros(0, dtype=torch.long), torch.zeros(0), 1.0, width)
    assert [len(values) for values in span_edges(no_targets)] == [0, 0, 0]


def test_it_masks_no_more_tokens_and_needs_the_outputs_around_each_span(corpus):
    recipe = small()
    draft, objectives, batch = prepared(recipe, corpus, rows=40)
    alone = draft_of(whole(corpus), "doc_sentences", 60, rows=40, short=0.3)
    objectives[0].make_targets(alone, np.random.default_rng(0))
    assert (draft.input_ids == alone.input_ids).all()
    assert (batch.token_targets[HEAD_NAME].labels == batch.token_targets[VOCABULARY].labels).all()
    left, right, _ = span_edges(batch.token_targets[HEAD_NAME])
    expected = set(batch.streams["encoder"].output_positions.tolist())
    assert expected == {*batch.token_targets[VOCABULARY].index.tolist(), *left.tolist(), *right.tolist()}
    masked = set(batch.token_targets[VOCABULARY].index.tolist())
    assert not masked & {*left.tolist(), *right.tolist()}
    lengths = torch.from_numpy(draft.lengths)
    width = batch.streams["encoder"].input_ids.shape[1]
    assert (right % width < lengths[right // width]).all()  # never padding


def test_slices_have_the_loss_of_the_whole_batch(corpus):
    recipe = small()
    network = network_for(recipe, corpus)
    _, objectives, batch = prepared(recipe, corpus, rows=7)
    whole_loss = objectives[1].loss(network, network(batch.streams), batch)["span_boundary"]
    parts = [objectives[1].loss(network, network(part.streams), part)["span_boundary"] for part in batch.slices(2)]
    assert torch.stack(parts).sum().item() == pytest.approx(whole_loss.item(), rel=1e-5)


def test_it_shares_a_group_and_the_baseline_with_masked_lm(corpus):
    recipe = small()
    objectives = build_objectives(recipe)
    assert [len(group.objectives) for group in group_objectives(recipe, objectives)] == [2]
    _, objectives, batch = prepared(recipe, corpus)
    unigram = np.log(np.arange(1, corpus.tokenizer.vocab_size + 1) / 1e4)
    first, second = (objective.baseline(batch, unigram) for objective in objectives)
    assert second["span_boundary"] == pytest.approx(first["masked_lm"])


def test_its_gradient_reaches_the_boundaries_and_not_the_masked_positions(corpus):
    recipe = small()
    network = network_for(recipe, corpus)
    _, objectives, batch = prepared(recipe, corpus)
    hidden = network(batch.streams)
    hidden["encoder"].retain_grad()
    objectives[1].loss(network, hidden, batch)["span_boundary"].backward()
    with_gradient = set(torch.nonzero(hidden["encoder"].grad.flatten(0, 1).abs().sum(1)).flatten().tolist())
    left, right, _ = span_edges(batch.token_targets[HEAD_NAME])
    assert with_gradient == {*left.tolist(), *right.tolist()}


def test_a_saved_model_keeps_its_head_and_loads_in_transformers_as_bert(corpus, tmp_path):
    recipe = small()
    network = network_for(recipe, corpus)
    model = Model(recipe, corpus.tokenizer, network)
    stemma.save(model, tmp_path / "model")
    loaded = stemma.load(tmp_path / "model")
    assert loaded.network.state_dict().keys() == network.state_dict().keys()
    assert all((loaded.network.state_dict()[name] == tensor).all() for name, tensor in network.state_dict().items())
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "model").eval()
    assert type(theirs).__name__ == "BertForMaskedLM"
    ids = torch.randint(5, corpus.tokenizer.vocab_size, (3, 20))
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits, model.logits(ids), atol=1e-4)


@pytest.mark.parametrize(("changes", "key"), [
    ({"objective.masked_lm.attention_mask": "causal"}, "objective.masked_lm"),
    ({"objective.masked_lm.packing": "stream"}, "objective.masked_lm"),
    ({"objective.masked_lm.start_step": 5}, "objective.masked_lm"),
    ({"objective.span_boundary.packing": "sentence"}, "objective.span_boundary"),
    ({"corpus.single": "A separator"}, "corpus.single"),
    ({"corpus.packing": "contiguous"}, "corpus.packing"),
])
def test_incompatible_settings_are_refused(changes, key):
    with pytest.raises(UserError, match="span_boundary") as error:
        small(**changes)
    assert any(name.startswith(key) for name, _ in error.value.problems)


def test_span_boundary_without_masked_lm_is_refused():
    with pytest.raises(UserError, match="needs a masked_lm before it"):
        recipe_loading.recipe("spanbert@tiny", changes={"remove": ["objective.masked_lm"]})
