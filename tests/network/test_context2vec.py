"""context2vec equals its literal transcription; its negatives follow the counts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_close

import stemma
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.network.inputs_outputs import Stream
from stemma.objectives import build_objectives, collate, group_objectives
from stemma.objectives.batch import Batch, Target
from stemma.recipe_loading import recipe
from stemma.training.samplers import RowSamplers
from stemma.visibility import PaddingRule

sys.path.append(str(Path(__file__).parent.parent))
from literal import context2vec as literal  # noqa: E402

BEGIN, END = 5, 6
SENTENCES = ([0, 1, 2, 3], [4, 1], [3])
SMALL = ["tokenizer.vocab_size=7", "network.width=6", "network.embedding.width=8", "network.depth.hidden=5",
         "objective.context2vec.negatives=3"]


def small():
    torch.manual_seed(0)
    network = stemma.build("context2vec", changes=SMALL).network
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.7)
    words, body = network.embedding.tokens.weight, network.encoder
    weights = {"words.0": words[:, :4], "words.1": words[:, 4:], "join": body.join.weight, "join_bias": body.join.bias,
               "output": body.output.weight, "output_bias": body.output.bias,
               "targets": network.head("vocabulary").weight}
    weights |= {f"{direction}.{name}": parameter for direction, layer in enumerate(body.directions)
                for name, parameter in layer.named_parameters()}
    return network, weights


def rows() -> tuple[Stream, torch.Tensor]:
    longest = max(map(len, SENTENCES)) + 2
    ids = torch.zeros(len(SENTENCES), longest, dtype=torch.long)
    for row, sentence in enumerate(SENTENCES):
        ids[row, :len(sentence) + 2] = torch.tensor([BEGIN, *sentence, END])
    lengths = torch.tensor([len(sentence) + 2 for sentence in SENTENCES])
    positions = torch.arange(longest)
    words = (positions > 0) & (positions < lengths[:, None] - 1)
    return Stream(ids, PaddingRule(positions < lengths[:, None])), words.flatten().nonzero()[:, 0]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_contexts_loss_and_gradients_equal_the_literal_model(training):
    network, weights = small()
    network.train(training)
    stream, index = rows()
    labels = torch.randint(7, (len(index), 4), generator=torch.Generator().manual_seed(1))
    output = network({"encoder": stream})
    expected = [vector for sentence in SENTENCES for vector in literal.contexts(sentence, BEGIN, END, weights)]
    assert_close(output["encoder"].flatten(0, 1)[index], torch.stack(expected))
    (objective,) = build_objectives(recipe("context2vec", SMALL))
    batch = Batch({"encoder": stream}, {"vocabulary": Target(index, labels, float(len(index)), stream.length)},
                  num_rows=len(SENTENCES))
    loss = objective.loss(network, output, batch)["context2vec"]
    mean = torch.stack([literal.loss(vector, word, drawn, weights) for vector, (word, *drawn) in
                        zip(expected, labels.tolist(), strict=True)]).mean()
    assert_close(loss, mean)
    parameters = list(network.parameters())
    gradients = [torch.autograd.grad(value, parameters, retain_graph=True) for value in (loss, mean)]
    for parameter, ours, theirs in zip(parameters, *gradients, strict=True):
        assert_close(ours, theirs)
        assert ours.abs().max() > 1e-4, parameter.shape


@torch.no_grad()
def test_the_word_itself_is_not_read():
    network = small()[0].eval()
    ids = torch.tensor([[BEGIN, 0, 1, 2, 3, END]])
    first = network({"encoder": Stream(ids)})["encoder"][0]
    changed = ids.clone()
    changed[0, 2] = 4
    second = network({"encoder": Stream(changed)})["encoder"][0]
    assert (first == second).all(-1).tolist() == [False, False, True, False, False, False]


def test_negatives_follow_the_counts_to_a_power(corpus_folder):
    corpus = Corpus.open(corpus_folder)
    resolved = recipe("context2vec", [
        "tokenizer.kind=wordpiece", "tokenizer.vocab_size=320", "corpus.single=start A separator",
        "corpus.pair=start A separator B separator", "corpus.sequence_length=32", "objective.context2vec.power=0.5",
        "objective.context2vec.negatives=40"])
    (objective,) = objectives = build_objectives(resolved)
    (group,) = groups = group_objectives(resolved, objectives)
    draft = RowSamplers(resolved.settings, corpus, groups, 0).sample_draft(group, 32)
    drawn = []
    for seed in range(20):
        objective.make_targets(draft, np.random.default_rng(seed))
        target = collate(draft).token_targets["vocabulary"]
        drawn.append(target.labels[:, 1:])
        assert torch.equal(target.labels[:, 0], collate(draft).streams["encoder"].input_ids.flatten()[target.index])
    ids = torch.cat([part.flatten() for part in drawn]).numpy()
    shares = np.bincount(ids, minlength=len(corpus.token_counts)) / len(ids)
    expected = corpus.token_counts**0.5 / (corpus.token_counts**0.5).sum()
    errors = (shares - expected) / np.sqrt(expected * (1 - expected) / len(ids)).clip(1e-12)
    assert np.abs(errors[expected > 0]).max() < 5 and not shares[expected == 0].any()
    unigram = np.log((corpus.token_counts + 1) / (corpus.token_counts + 1).sum())
    batch = Batch({}, {"vocabulary": Target(torch.arange(4), torch.tensor([[7, 8, 9]] * 4), 4.0, 1)})
    with np.errstate(all="raise"):
        assert np.isfinite(objective.baseline(batch, unigram)["context2vec"])


@pytest.mark.parametrize(("name", "changes", "message"), [
    ("context2vec", ["network.embedding.width=7"], "is shared by two directions, and 7 is odd"),
    ("context2vec", ["network.embedding.tied=true"], "vectors of its own"),
    ("lstm-lm", ["objective.context2vec={}"], "which a body of kind lstm reads"),
    ("lstm-lm", ["objective.bidirectional_lm={}"], "trains a network for each direction"),
    ("elmo", ["network.embedding.width=300"], "must be 512 or 1024"),
    ("elmo", ["network.embedding.tied=true"], "no token embedding to share"),
    ("elmo", ["remove=network.inputs.characters"], "another input must be made from the token ids then"),
    ("elmo", ["objective.bidirectional_lm.sampled=900_000"], "there are 793471 tokens to sample from")])
def test_recipes_that_do_not_fit_are_refused_in_a_sentence(name, changes, message):
    with pytest.raises(UserError) as caught:
        recipe(name, changes)
    assert message in str(caught.value)
