from dataclasses import replace

import numpy as np
import pytest
import torch
from seq2seq_helpers import labels_of, rows_of
from small_corpora import PAIR, whole

from stemma import recipe_loading
from stemma.corpus.bucket_sampler import BucketSampler
from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.packers import Packer
from stemma.corpus.row_template import RowTemplate
from stemma.errors import UserError
from stemma.objectives import build_network, build_objectives, check_requirements, collate
from stemma.objectives.translation import TranslationObjective, TranslationSettings
from stemma.text.parallel import PairSource
from stemma.visibility import Bidirectional, Causal, PaddingRule

SOURCES = ["the clerk reads", "our neighbour repairs a letter by the window", "every scribe forgets",
           "seven pages in the cellar"]
TARGETS = ["a young reader copies the margin notes", "one missing leaf", "the river", "the old clerk reads seven pages"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer_folder) -> Corpus:
    folder = tmp_path_factory.mktemp("pairs")
    for name, lines in (("source", SOURCES), ("target", TARGETS)):
        (folder / name).write_text("\n".join(lines) + "\n")
    build_corpus([], tokenizer_folder, folder / "corpus", workers=1,
                 pairs=[PairSource(folder / "source", folder / "target")])
    return Corpus.open(folder / "corpus")


def drafted(corpus: Corpus, places: int = 400) -> Draft:
    layout = RowTemplate.from_tokenizer(corpus.tokenizer, "A end", PAIR, 32, decoder_start="begin")
    pieces, _ = BucketSampler(whole(corpus), Packer("parallel", layout), 0, places).next_rows(0)
    draft = Draft(whole(corpus), pieces, layout)
    TranslationObjective("translation", TranslationSettings(kind="translation")).make_targets(draft,
                                                                                              np.random.default_rng(0))
    return draft


def test_a_is_read_and_b_is_written(corpus):
    tokenizer = corpus.tokenizer
    draft = drafted(corpus)
    end, begin = tokenizer.special_id("end"), tokenizer.special_id("begin")

    def encoded(text: str) -> list[int]:
        return [*tokenizer.encode(text, special=False).ids, end]

    read, written = draft.seq2seq_rows["encoder"], draft.seq2seq_rows["decoder"]
    expected = {tuple(encoded(source)): encoded(target) for source, target in zip(SOURCES, TARGETS, strict=True)}
    assert len(rows_of(read)) == 4
    for source, given, target in zip(rows_of(read), rows_of(written), labels_of(written), strict=True):
        assert expected[tuple(source)] == target
        assert given == [begin, *target[:-1]]


def test_a_batch_has_two_streams_and_scores_all_that_is_written(corpus):
    draft = drafted(corpus)
    batch = collate(draft)
    read, written = draft.seq2seq_rows["encoder"], draft.seq2seq_rows["decoder"]
    assert batch.streams["encoder"].attention_mask == PaddingRule(
        torch.arange(read.input_ids.shape[1]) < torch.from_numpy(read.lengths)[:, None])
    assert batch.streams["decoder"].attention_mask == Causal() and batch.streams["decoder"].position_ids is None
    assert batch.num_tokens == int(read.lengths.sum() + written.lengths.sum()) and batch.num_rows == 4
    target = batch.token_targets["vocabulary"]
    assert target.labels.tolist() == [label for row in labels_of(written) for label in row]
    assert target.denominator == len(target.labels)
    rows, places = np.divmod(target.index.numpy(), target.row_stride)
    assert (written.labels[rows, places] == target.labels.numpy()).all()
    same = replace(draft.seq2seq_rows["encoder"], lengths=np.full(4, read.input_ids.shape[1]))
    draft.seq2seq_rows["encoder"] = same
    assert collate(draft).streams["encoder"].attention_mask == Bidirectional()


def test_a_step_in_slices_has_the_loss_of_the_whole(corpus):
    recipe = recipe_loading.recipe("transformer@tiny", ["network.dropout=0.0"])
    torch.manual_seed(0)
    network = build_network(recipe, corpus.tokenizer.vocab_size).eval()
    (task,) = build_objectives(recipe)
    batch = collate(drafted(corpus))
    with torch.no_grad():
        losses = [sum(float(task.loss(network, network(part.streams), part)["translation"])
                      for part in batch.slices(size)) for size in (4, 3, 1)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) == pytest.approx(losses[2], rel=1e-5)
    assert losses[0] > 3


def test_smoothing_is_for_learning_only(corpus):
    batch = collate(drafted(corpus))
    results = {}
    for smoothing in (0.0, 0.4):
        recipe = recipe_loading.recipe("transformer@tiny", [f"objective.translation.smoothing={smoothing}",
                                                     "network.dropout=0.0"])
        torch.manual_seed(0)
        network = build_network(recipe, corpus.tokenizer.vocab_size)
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        (task,) = build_objectives(recipe)
        for held_out in (True, False):
            asked = replace(batch, held_out=held_out)
            with torch.no_grad():
                losses = [float(task.loss(network.train(training), network(batch.streams), asked)["translation"])
                          for training in (True, False)]
            assert losses[0] == pytest.approx(losses[1])  # what was asked decides, not the mode of the network
            results[smoothing, held_out] = losses[0]
    assert results[0.0, True] == pytest.approx(results[0.0, False]) == pytest.approx(results[0.4, True])
    assert abs(results[0.4, False] - results[0.0, False]) > 0.01


def test_plain_text_is_no_parallel_corpus_and_pairs_serve_as_plain_text(corpus, corpus_folder):
    with pytest.raises(UserError, match=r"holds plain text, and objective.translation of transformer@tiny needs pairs"):
        check_requirements(recipe_loading.recipe("transformer@tiny"), Corpus.open(corpus_folder))
    check_requirements(recipe_loading.recipe("transformer@tiny"), corpus)
    check_requirements(recipe_loading.recipe("mass@tiny"), corpus)


def test_a_missing_decoder_start_is_named(corpus):
    roles = dict(corpus.tokenizer.special_token_ids)
    del corpus.tokenizer.special_token_ids["begin"]
    try:
        with pytest.raises(UserError) as refused:
            check_requirements(recipe_loading.recipe("transformer@tiny"), corpus)
    finally:
        corpus.tokenizer.special_token_ids.update(roles)
    assert ("corpus.decoder_start", 'is the special token "begin", which the tokenizer lacks') in refused.value.problems


@pytest.mark.parametrize(("name", "changes", "message"), [
    ("transformer@tiny", ["remove=network.decoder"], "writes with a decoder: set network.decoder.layers"),
    ("bert@tiny", ["network.decoder.layers=2"], "does not use it: remove=network.decoder"),
    ("transformer@tiny", ["corpus.packing=stream"], "objective.translation needs parallel"),
    ("transformer@tiny", ["objective.translation.smoothing=1.0"], "less than 1"),
    ("mass@tiny", ["objective.masked_span_to_span.share=0.0"], "greater than 0 and at most 1"),
    ("mass@tiny", ["objective.masked_span_to_span.mask=0.95"], "add up to more than 1"),
    ("t5@tiny", ["objective.span_corruption.mean_span=0.9"], "must be 1 or more"),
    ("transformer@tiny", ["corpus.decoder_start=start"], "must be one of begin, end, padding, mask"),
])
def test_what_cannot_be_is_refused_in_a_sentence(name, changes, message):
    with pytest.raises(UserError) as refused:
        recipe_loading.recipe(name, changes)
    assert message in str(refused.value)
