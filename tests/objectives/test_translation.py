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


def build_draft(corpus: Corpus, max_tokens: int = 400) -> Draft:
    layout = RowTemplate.from_tokenizer(corpus.tokenizer, "A end", PAIR, 32, decoder_start="begin")
    spans, _ = BucketSampler(whole(corpus), Packer("parallel", layout), 0, max_tokens).next_rows(0)
    draft = Draft(whole(corpus), spans, layout)
    TranslationObjective("translation", TranslationSettings(kind="translation")).make_targets(draft,
                                                                                              np.random.default_rng(0))
    return draft


def test_a_is_the_source_and_b_the_target(corpus):
    tokenizer = corpus.tokenizer
    draft = build_draft(corpus)
    end, begin = tokenizer.special_id("end"), tokenizer.special_id("begin")

    def encoded(text: str) -> list[int]:
        return [*tokenizer.encode(text, special=False).ids, end]

    encoder_rows, decoder_rows = draft.seq2seq_rows["encoder"], draft.seq2seq_rows["decoder"]
    expected = {tuple(encoded(source)): encoded(target) for source, target in zip(SOURCES, TARGETS, strict=True)}
    assert len(rows_of(encoder_rows)) == 4
    for source, decoder_input, target in zip(rows_of(encoder_rows), rows_of(decoder_rows), labels_of(decoder_rows),
                                             strict=True):
        assert expected[tuple(source)] == target
        assert decoder_input == [begin, *target[:-1]]


def test_a_batch_has_two_streams_and_scores_every_target_token(corpus):
    draft = build_draft(corpus)
    batch = collate(draft)
    encoder_rows, decoder_rows = draft.seq2seq_rows["encoder"], draft.seq2seq_rows["decoder"]
    assert batch.streams["encoder"].attention_mask == PaddingRule(
        torch.arange(encoder_rows.input_ids.shape[1]) < torch.from_numpy(encoder_rows.lengths)[:, None])
    assert batch.streams["decoder"].attention_mask == Causal() and batch.streams["decoder"].position_ids is None
    assert batch.num_tokens == int(encoder_rows.lengths.sum() + decoder_rows.lengths.sum()) and batch.num_rows == 4
    target = batch.token_targets["vocabulary"]
    assert target.labels.tolist() == [label for row in labels_of(decoder_rows) for label in row]
    assert target.denominator == len(target.labels)
    rows, positions = np.divmod(target.index.numpy(), target.row_stride)
    assert (decoder_rows.labels[rows, positions] == target.labels.numpy()).all()
    without_padding = replace(draft.seq2seq_rows["encoder"], lengths=np.full(4, encoder_rows.input_ids.shape[1]))
    draft.seq2seq_rows["encoder"] = without_padding
    assert collate(draft).streams["encoder"].attention_mask == Bidirectional()


def test_slices_have_the_loss_of_the_whole_batch(corpus):
    recipe = recipe_loading.recipe("transformer@tiny", ["network.dropout=0.0"])
    torch.manual_seed(0)
    network = build_network(recipe, corpus.tokenizer.vocab_size).eval()
    (task,) = build_objectives(recipe)
    batch = collate(build_draft(corpus))
    with torch.no_grad():
        losses = [sum(float(task.loss(network, network(part.streams), part)["translation"])
                      for part in batch.slices(size)) for size in (4, 3, 1)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) == pytest.approx(losses[2], rel=1e-5)
    assert losses[0] > 3


def test_label_smoothing_applies_to_training_batches_only(corpus):
    batch = collate(build_draft(corpus))
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
            variant = replace(batch, held_out=held_out)
            with torch.no_grad():
                losses = [float(task.loss(network.train(training), network(batch.streams), variant)["translation"])
                          for training in (True, False)]
            assert losses[0] == pytest.approx(losses[1])  # `held_out` decides, not the mode of the network
            results[smoothing, held_out] = losses[0]
    assert results[0.0, True] == pytest.approx(results[0.0, False]) == pytest.approx(results[0.4, True])
    assert abs(results[0.4, False] - results[0.0, False]) > 0.01


def test_plain_text_is_refused_for_translation_and_pairs_are_accepted_as_text(corpus, corpus_folder):
    with pytest.raises(UserError, match=r"holds plain text, and objective.translation of transformer@tiny needs pairs"):
        check_requirements(recipe_loading.recipe("transformer@tiny"), Corpus.open(corpus_folder))
    check_requirements(recipe_loading.recipe("transformer@tiny"), corpus)
    check_requirements(recipe_loading.recipe("mass@tiny"), corpus)


def test_a_missing_decoder_start_token_is_refused(corpus):
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
def test_invalid_seq2seq_settings_are_refused(name, changes, message):
    with pytest.raises(UserError) as refused:
        recipe_loading.recipe(name, changes)
    assert message in str(refused.value)
