import numpy as np
import pytest
from conftest import small_text
from small_corpora import corpus_of

from stemma import recipe_loading
from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.objectives import Batch, Objective, build_objectives
from stemma.text.parallel import PairSource
from stemma.training import samplers as feeds_module
from stemma.training.loader import PreparedBatch
from stemma.training.padding_check import padding_warning
from stemma.training.pretrain_loader import PretrainLoader

DYNAMIC = "objective.masked_lm.dynamic=true"


@pytest.fixture(scope="module")
def corpus(corpus_folder) -> Corpus:
    return Corpus.open(corpus_folder)


@pytest.fixture
def make(corpus):
    loaders: list[PretrainLoader] = []

    def build(*changes: str, seed: int = 0, of: Corpus = corpus, name: str = "bert@tiny") -> PretrainLoader:
        recipe = recipe_loading.recipe(name, ["training.batch_size=8", "corpus.sequence_length=32", *changes])
        loaders.append(PretrainLoader(recipe, of, build_objectives(recipe), seed))
        return loaders[-1]

    yield build
    for loader in loaders:
        loader.close()


def same(first: Batch, second: Batch) -> bool:
    return contents(first) == contents(second)


def contents(batch: Batch) -> dict[str, list]:
    streams = {}
    for name, stream in batch.streams.items():
        tensors = {"ids": stream.input_ids, "segments": stream.segment_ids, "query": stream.query_positions,
                   "positions": stream.position_ids}
        streams |= {f"{key} of {name}": [] if value is None else value.tolist() for key, value in tensors.items()}
        streams[f"attention mask of {name}"] = [stream.attention_mask]
    return {**streams, "continues": [batch.continues_previous],
            **{f"labels of {head}": target.labels.tolist() for head, target in batch.row_targets.items()},
            **{f"targets of {head}": [target.index.tolist(), target.labels.tolist(), target.denominator]
               for head, target in batch.token_targets.items()}}


def objectives_at(loader: PretrainLoader, step: int, used: float = 0.0) -> tuple[Objective, ...]:
    """The objectives of a step."""
    return loader._choose_group(loader._batch_key(step, 32, used))[1]


def get_batches(loader: PretrainLoader, steps: int, length: int = 32, start: int = 0) -> list[PreparedBatch]:
    return [loader.get_batch(step, length) for step in range(start, start + steps)]


@pytest.mark.parametrize("changes", [(), (DYNAMIC,), ("objective.masked_lm.packing=full_sentences",)])
def test_the_same_seed_gives_the_same_batches_and_another_seed_others(make, changes):
    first, second = get_batches(make(*changes), 12), get_batches(make(*changes), 12)
    third = get_batches(make(*changes, seed=1), 12)
    assert all(same(a.batch, b.batch) and a.cursors == b.cursors for a, b in zip(first, second, strict=True))
    assert not any(same(a.batch, b.batch) for a, b in zip(first, third, strict=True))


@pytest.mark.parametrize(("changes", "message"), [
    (("remove=objective.next_sentence",), "corpus.packing=full_sentences, which"),  # one sentence a row
    ((), "corpus.sequence_length="),  # the sentence task needs its pairs
    (("remove=objective.next_sentence", "objective.masked_lm.packing=sentence_pair"),
     "objective.masked_lm.packing=full_sentences, which"),
    (("remove=objective.next_sentence", "corpus.packing=full_sentences"), None)])
def test_rows_of_mostly_padding_give_a_warning_with_advice(make, tmp_path, tokenizer_folder, changes, message):
    lines = [line for line in small_text(documents=20).splitlines() if line]
    short = corpus_of(tmp_path, [[line] for line in lines], tokenizer_folder)
    loader = make(*changes, "corpus.sequence_length=96", of=short)
    result = padding_warning(loader)
    if message is None:
        assert result is None
        return
    lengths = np.concatenate([loader.build_draft(step, 96)[0].lengths for step in range(4)])
    assert 2 * lengths.mean() < 96
    assert message in result and ("full_sentences" in message) == ("full_sentences" in result)
    assert "mostly padding" in result and "corpus.sequence_length = 96" in result
    average = int(result.split("mostly padding: ")[1].split()[0])
    assert average == pytest.approx(lengths.mean(), rel=0.25)
    shorter = int(result.split("corpus.sequence_length=")[1].split(".")[0])
    assert padding_warning(make(*changes, f"corpus.sequence_length={shorter}", of=short)) is None


@pytest.mark.parametrize("changes", [(), (DYNAMIC,), ("objective.masked_lm.packing=full_sentences",)])
@pytest.mark.parametrize("stop", [1, 5, 40])
def test_restored_cursors_give_the_batches_of_an_uninterrupted_run(make, changes, stop):
    uninterrupted = get_batches(make(*changes), stop + 4)
    resumed = make(*changes)
    resumed.restore(uninterrupted[stop - 1].cursors)
    for expected, result in zip(uninterrupted[stop:], get_batches(resumed, 4, start=stop), strict=True):
        assert same(expected.batch, result.batch)
        assert expected.cursors == result.cursors
        assert [o.name for o in expected.objectives] == [o.name for o in result.objectives]


def test_a_prefetched_batch_equals_a_fresh_one(make):
    ahead, fresh = make(), make()
    for step in range(4):
        prepared = ahead.get_batch(step, 32)
        draft, _ = fresh.build_draft(step, 32)
        assert prepared.batch.streams["encoder"].input_ids.tolist() == draft.input_ids[:,
            :int(draft.lengths.max())].tolist()


def test_the_sequence_length_may_change_between_steps(make):
    loader = make()
    loader.get_batch(0, 16)
    loader.get_batch(1, 16)
    long = loader.get_batch(2, 32)
    assert long.batch.streams["encoder"].input_ids.shape[1] > 16
    resumed = make()
    resumed.restore(long.cursors)
    assert same(resumed.get_batch(3, 32).batch, loader.get_batch(3, 32).batch)


def test_the_first_phase_has_its_own_sequence_length(make):
    loader = make("corpus.first_phase.fraction=0.5", "corpus.first_phase.sequence_length=16")
    assert [loader.sequence_length_at(used) for used in (0.0, 0.49, 0.5, 1.0)] == [16, 16, 32, 32]
    assert make("corpus.first_phase.sequence_length=128").sequence_length_at(0.0) == 32


@pytest.mark.parametrize("packing", ["segment_pair", "contiguous"])
def test_each_phase_has_its_own_batch_size(make, packing):
    tasks = [] if packing == "segment_pair" else ["remove=objective.next_sentence", "remove=objective.masked_lm",
                                                    "objective.causal_lm.weight=1.0", f"corpus.packing={packing}"]
    loader = make(*tasks, "corpus.first_phase.fraction=0.5", "corpus.first_phase.sequence_length=16",
                  "corpus.first_phase.batch_size=20")
    assert [loader.get_batch(step, loader.sequence_length_at(used), used).batch.num_rows
            for step, used in enumerate((0.0, 0.4, 0.5, 0.9))] == [20, 20, 8, 8]
    alone = make(*tasks, "corpus.first_phase.sequence_length=128", "corpus.first_phase.batch_size=20")
    assert alone.get_batch(0, alone.sequence_length_at(0.0), 0.0).batch.num_rows == 8  # one phase only


def rows_by_source(loader: PretrainLoader, epochs: int) -> list[dict[int, tuple[list[int], list[int], int]]]:
    """For each epoch, the (input, original, label) of every row, by the corpus offset where its A begins."""
    result: list[dict[int, tuple[list[int], list[int], int]]] = [{} for _ in range(epochs)]
    step, rows = 0, loader.samplers.sampler(0, 32).first_rows(10**9).num_rows
    while step * loader.batch_rows_at(32) < epochs * rows:
        draft, _ = loader.build_draft(step, 32)
        for row in range(draft.rows):
            epoch = (step * loader.batch_rows_at(32) + row) // rows
            start = int(draft.spans.start[np.searchsorted(draft.spans.row, row)])
            if epoch < epochs:
                result[epoch][start] = (draft.input_ids[row].tolist(), draft.original_ids[row].tolist(),
                                        int(draft.row_labels["next_sentence"][row]))
        step += 1
    return result


@pytest.mark.parametrize("unit", ["token", "word"])
def test_static_masks_depend_on_the_row_and_copy_not_on_the_batch(make, unit):
    changes = ["objective.masked_lm.duplicates=2", f"objective.masked_lm.unit={unit}", "corpus.short_probability=0.0"]
    first = rows_by_source(make(*changes), 3)
    assert first[0] == first[2]
    common = first[0].keys() & first[1].keys()
    assert len(common) > 10
    assert np.mean([first[0][start] != first[1][start] for start in common]) > 0.9
    # the same rows in other batches have the same masks
    second = rows_by_source(make(*changes, "training.batch_size=5"), 1)
    assert second[0] == first[0]


def test_dynamic_masks_differ_in_every_epoch(make):
    first = rows_by_source(make(DYNAMIC, "corpus.packing=sentence_pair"), 2)  # every epoch has the same pairs
    common = first[0].keys() & first[1].keys()
    assert len(common) > 10
    assert np.mean([first[0][start][0] != first[1][start][0] for start in common]) > 0.9


def test_training_batches_contain_no_held_out_text(make):
    loader = make("corpus.validation=0.2")
    held = np.zeros(loader.corpus.num_tokens, dtype=bool)
    for start, stop in loader.validation.document_ranges:
        held[start:stop] = True
    assert 0.1 < held.mean() < 0.35
    for step in range(60):
        draft, _ = loader.build_draft(step, 32)
        assert not held[draft.corpus_offsets[draft.is_text]].any()


def test_validation_batches_are_always_the_same(make):
    loader = make("corpus.validation=0.2")
    first, second = loader.validation_batches(32), loader.validation_batches(32)
    get_batches(loader, 3)
    third = loader.validation_batches(32)
    assert len(first) >= 2
    for a, b, c in zip(first, second, third, strict=True):
        assert same(a[1], b[1]) and same(a[1], c[1]) and a[1].held_out
    assert not any(prepared.batch.held_out for prepared in get_batches(loader, 2))
    assert [o.name for o in first[0][0]] == ["next_sentence", "masked_lm"]


def test_without_held_out_text_there_are_no_validation_batches(make, tmp_path, tokenizer_folder):
    loader = make(of=corpus_of(tmp_path, [["the clerk reads a letter"]], tokenizer_folder))
    assert loader.validation_batches(32) == []
    assert loader.get_batch(0, 32).batch.num_rows == 8


def test_unigram_counts_the_training_text_only(make):
    loader = make("corpus.validation=0.2")
    tokens = np.concatenate([loader.corpus.values_between("tokens", int(start), int(stop))
                             for start, stop in loader.training.document_ranges])
    size = loader.corpus.tokenizer.vocab_size
    expected = np.log((np.bincount(tokens, minlength=size) + 1) / (len(tokens) + size))
    np.testing.assert_allclose(loader.unigram(), expected)
    assert np.exp(loader.unigram()).sum() == pytest.approx(1.0)


def test_objective_groups_alternate_by_turns_and_wait_for_their_start_step(make):
    loader = make("objective.masked_lm.packing=full_sentences", "objective.masked_lm.sampling_weight=3.0",
                  "objective.masked_lm.weight=0.5", "objective.next_sentence.start_step=100")
    names = [tuple(o.name for o in objectives_at(loader, step)) for step in range(1100)]
    assert set(names[:100]) == {("masked_lm",)}
    fraction = np.mean([name == ("masked_lm",) for name in names[100:]])
    assert abs(fraction - 0.75) < 4 * (0.75 * 0.25 / 1000) ** 0.5
    assert names == [tuple(o.name for o in objectives_at(loader, step)) for step in range(1100)]


def test_two_masked_objectives_have_their_own_masking_rates(make):
    loader = make("objective.words.kind=masked_lm", "objective.words.rate=0.5", "objective.words.unit=word",
                  "objective.words.dynamic=true")
    masking_rates = {}
    for step in range(20):
        draft, active = loader.build_draft(step, 32)
        masking_rates[active[-1].name] = len(draft.token_targets["vocabulary"].index) / draft.is_text.sum()
    assert masking_rates["masked_lm"] == pytest.approx(0.15, abs=0.05)
    assert masking_rates["words"] == pytest.approx(0.5, abs=0.05)


def test_an_error_while_prefetching_reaches_the_caller(make, monkeypatch):
    loader = make()
    loader.get_batch(0, 32)
    loader._prefetched[1].result()
    monkeypatch.setattr(loader, "_choose_group", lambda key: 1 / 0)
    loader.get_batch(1, 32)  # was prefetched
    with pytest.raises(ZeroDivisionError):
        loader.get_batch(2, 32)


MODELS_WITH_MEMORY = ["transformer-xl@tiny", "xlnet@tiny"]


@pytest.mark.parametrize("name", MODELS_WITH_MEMORY)
@pytest.mark.parametrize("stop", [1, 2, 30])
def test_contiguous_rows_continue_after_restored_cursors(make, name, stop):
    uninterrupted = get_batches(make(name=name), stop + 4)
    resumed = make(name=name)
    resumed.restore(uninterrupted[stop - 1].cursors)
    for expected, result in zip(uninterrupted[stop:], get_batches(resumed, 4, start=stop), strict=True):
        assert same(expected.batch, result.batch)
        assert expected.cursors == result.cursors and expected.sampler_key == result.sampler_key == "0:32"


@pytest.mark.parametrize("name", MODELS_WITH_MEMORY)
def test_a_batch_records_whether_it_continues_the_previous_one(make, name):
    loader = make(name=name)
    prepared = get_batches(loader, 60)
    for first, second in zip(prepared[:-1], prepared[1:], strict=True):
        assert second.batch.continues_previous == (first.cursors["0:32"][2] > 0)  # 0 at the end of an epoch
    assert not prepared[0].batch.continues_previous and sum(not p.batch.continues_previous for p in prepared) > 2
    assert not loader.get_batch(60, 16).batch.continues_previous  # another length has another sampler


def test_the_next_batch_continues_the_text_of_each_row(make):
    """The target of the last position of one batch is the first token of the next."""
    loader = make(name="transformer-xl@tiny")
    drafts = [loader.build_draft(step, 32)[0] for step in range(4)]
    for first, second in zip(drafts[:-1], drafts[1:], strict=True):
        assert second.continues_previous
        assert first.next_tokens()[:, -1].tolist() == second.original_ids[:, 0].tolist()


def test_a_backward_model_reads_towards_the_start_of_the_text(make):
    loader = make("objective.causal_lm.direction=backward", name="transformer-xl@tiny")
    drafts = [loader.build_draft(step, 32)[0] for step in range(4)]
    sources = np.concatenate([draft.corpus_offsets for draft in drafts], axis=1)
    for row in sources:
        assert (np.diff(row[row >= 0]) < 0).all()
    assert loader.get_batch(4, 32).batch.streams["encoder"].reversed_rows.all()


def test_half_of_an_xlnet_batch_is_reversed_and_half_a_window_is_reused(make):
    batch = make(name="xlnet@tiny").get_batch(0, 32).batch
    stream = batch.streams["encoder"]
    assert stream.reversed_rows.tolist() == [False] * 4 + [True] * 4 and stream.reuse_length == 16
    assert stream.query_positions.shape == (8, 32 // 6) and batch.token_targets["vocabulary"].row_stride == 32 // 6


@pytest.mark.parametrize("name", ["gpt@tiny", *MODELS_WITH_MEMORY])
def test_contiguous_validation_batches_continue_each_other(make, name):
    loader = make("corpus.validation=0.3", name=name)
    first, second = loader.validation_batches(32), loader.validation_batches(32)
    assert len(first) > 1 and all(same(a[1], b[1]) for a, b in zip(first, second, strict=True))
    continues = [batch.continues_previous for _, batch in first]
    if name == "gpt@tiny":
        assert not any(continues)
    else:
        assert continues == [False] + [True] * (len(first) - 1) and len(first) >= 4
    if name == "transformer-xl@tiny":  # all held-out text is read
        assert sum(batch.num_tokens for _,
                   batch in first) == loader.validation.num_tokens + len(loader.validation.document_ranges) - 1


def test_validation_reads_at_most_a_limit_of_tokens(make, monkeypatch):
    monkeypatch.setattr(feeds_module, "VALIDATION_TOKENS", 640)
    for name in MODELS_WITH_MEMORY:
        batches = make("corpus.validation=0.5", name=name).validation_batches(32)
        assert 640 <= sum(batch.num_tokens for _, batch in batches) < 640 + 32 * batches[0][1].num_rows


def test_the_unigram_of_running_text_includes_document_ends(make):
    loader, plain = make(name="gpt@tiny"), make()
    end = loader.corpus.tokenizer.special_id("end")
    assert np.exp(loader.unigram()).sum() == pytest.approx(1.0)
    ratio = np.exp(loader.unigram()[end]) / np.exp(plain.unigram()[end])
    assert ratio == pytest.approx(1 + len(loader.training.document_ranges), rel=0.05)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, tokenizer_folder) -> Corpus:
    """Sources of many lengths; a target has the words in reverse order."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = [line.split() for line in small_text(60).split("\n") if line]
    sources = [" ".join(words[:2 + index % 9]) for index, words in enumerate(lines)]
    targets = [" ".join(reversed(source.split())) + " the river" for source in sources]
    for name, lines in (("source", sources), ("target", targets)):
        (folder / name).write_text("\n".join(lines) + "\n")
    build_corpus([], tokenizer_folder, folder / "corpus", workers=1,
                 pairs=[PairSource(folder / "source", folder / "target")])
    return Corpus.open(folder / "corpus")


UNILM_PAIRS = ("remove=objective.next_sentence", "remove=objective.left_to_right", "remove=objective.right_to_left",
               "remove=objective.masked_lm", "objective.sequence_to_sequence.packing=parallel",
               "objective.sequence_to_sequence.scored=second")
SEQ2SEQ_RECIPES = [("transformer@tiny", ()), ("mass@tiny", ()), ("bart@tiny", ()), ("t5@tiny", ()), ("unilm@tiny", ()),
                   ("prefix-lm@tiny", ()), ("unilm@tiny", UNILM_PAIRS)]


@pytest.mark.parametrize(("name", "changes"), SEQ2SEQ_RECIPES)
@pytest.mark.parametrize("stop", [1, 9])
def test_seq2seq_batches_continue_from_saved_cursors(make, pairs, name, changes, stop):
    uninterrupted = get_batches(make(*changes, of=pairs, name=name), stop + 4)
    resumed = make(*changes, of=pairs, name=name)
    resumed.restore(uninterrupted[stop - 1].cursors)
    for expected, result in zip(uninterrupted[stop:], get_batches(resumed, 4, start=stop), strict=True):
        assert same(expected.batch, result.batch)
        assert expected.cursors == result.cursors and expected.sampler_key == result.sampler_key


@pytest.mark.parametrize(("name", "changes"), SEQ2SEQ_RECIPES)
def test_seq2seq_batches_fit_the_sequence_length_and_have_validation_batches(make, pairs, name, changes):
    loader = make("corpus.validation=0.2", *changes, of=pairs, name=name)
    batches = [prepared.batch for prepared in get_batches(loader, 12)]
    first, second = loader.validation_batches(32), loader.validation_batches(32)
    assert len(first) >= 1 and all(same(a[1], b[1]) for a, b in zip(first, second, strict=True))
    for batch in [*batches, *(batch for _, batch in first)]:
        assert all(stream.input_ids.shape[1] <= 32 for stream in batch.streams.values())
        assert len(batch.token_targets["vocabulary"].index) > 0
        assert batch.num_rows == batch.streams["encoder"].input_ids.shape[0]
    assert np.exp(loader.unigram()).sum() == pytest.approx(1.0)


def test_pairs_longer_than_the_window_are_dropped(make, pairs):
    """With a decoder, source and target have a window each; without one they share it, so more are dropped."""
    separate, together = make(of=pairs, name="transformer@tiny"), make(*UNILM_PAIRS, of=pairs, name="unilm@tiny")
    widths = [max(prepared.batch.streams["encoder"].input_ids.shape[1] for prepared in get_batches(loader, 60, 16))
              for loader in (separate, together)]
    assert widths[0] <= 16 and widths[1] <= 16
    num_dropped = [loader.samplers.sampler(0, 16).num_dropped for loader in (separate, together)]
    assert num_dropped[1] > num_dropped[0]


def test_batches_of_pairs_have_similar_lengths_and_a_token_limit(make, pairs):
    loader = make(of=pairs, name="transformer@tiny")
    batches = [prepared.batch for prepared in get_batches(loader, 40)]
    sizes = [stream.input_ids.numel() for batch in batches for stream in batch.streams.values()]
    assert max(sizes) <= 8 * 32
    assert len({batch.num_rows for batch in batches}) > 3
    assert sum(batch.num_tokens for batch in batches) / sum(sizes) > 0.85


def test_each_source_row_has_its_own_target(make, pairs):
    loader = make(of=pairs, name="transformer@tiny")
    river = [pairs.tokenizer.token_to_id(token) for token in ("the", "river")]
    end = pairs.tokenizer.special_id("end")
    for prepared in get_batches(loader, 10):
        sources = prepared.batch.streams["encoder"].input_ids.tolist()
        target = prepared.batch.token_targets["vocabulary"]
        targets = np.full((prepared.batch.num_rows, target.row_stride), -1)
        targets.reshape(-1)[target.index.numpy()] = target.labels.numpy()
        for source, row in zip(sources, targets.tolist(), strict=True):
            source = source[:source.index(end)]
            assert row[:row.index(end)][-2:] == river
            assert sorted(row[:row.index(end) - 2]) == sorted(source)


def test_corrupted_text_fills_the_sequence_length(make, corpus):
    loader = make("corpus.boundary=end", of=corpus, name="t5@tiny")
    draft, _ = loader.build_draft(0, 32)
    task = loader.groups[0].objectives[0]
    assert task.raw_text_length(32) > 32 and draft.template.length == task.raw_text_length(32) + 1
    assert (draft.seq2seq_rows["encoder"].lengths == 32).all()


def test_the_unigram_of_pairs_counts_targets_and_their_ends(make, pairs):
    loader = make("corpus.validation=0.2", of=pairs, name="transformer@tiny")
    tokens, documents = [], loader.training.document_ranges
    for index in range(len(documents)):
        bounds = loader.training.sentence_bounds(index)
        assert len(bounds) == 3
        tokens.append(pairs.values_between("tokens", int(bounds[1]), int(bounds[2])))
    counts = np.bincount(np.concatenate(tokens), minlength=pairs.tokenizer.vocab_size)
    probability = np.exp(loader.unigram())
    end = pairs.tokenizer.special_id("end")
    total = counts.sum() + len(documents) + len(counts)
    assert probability[end] == pytest.approx(len(documents) / total, rel=0.25)  # estimated from a batch
    others = np.delete(np.arange(len(counts)), end)
    np.testing.assert_allclose(probability[others] / probability[others].sum(),
                               (counts[others] + 1) / (counts[others] + 1).sum(), rtol=1e-9)


def test_the_unigram_of_span_corruption_includes_sentinels(make, corpus):
    loader = make(of=corpus, name="t5@tiny")
    probability = np.exp(loader.unigram())
    labels = np.concatenate([p.batch.token_targets["vocabulary"].labels.numpy() for p in get_batches(loader, 20)])
    for token in (corpus.tokenizer.sentinels[0], corpus.tokenizer.special_id("end")):
        assert probability[token] == pytest.approx((labels == token).mean(), rel=0.1)


def test_unilm_samples_its_four_objectives_at_the_papers_fractions(make, corpus):
    loader = make(of=corpus, name="unilm@tiny")
    names = [objectives_at(loader, step)[-1].name for step in range(3000)]
    expected = {"masked_lm": 1 / 3, "sequence_to_sequence": 1 / 3, "left_to_right": 1 / 6, "right_to_left": 1 / 6}
    for name, fraction in expected.items():
        assert abs(names.count(name) / 3000 - fraction) < 4 * (fraction * (1 - fraction) / 3000) ** 0.5
    segments: dict[str, set[int]] = {}
    for step in range(40):
        prepared = loader.get_batch(step, 32)
        masking_rates = segments.setdefault(prepared.objectives[-1].name, set())
        masking_rates |= set(prepared.batch.streams["encoder"].segment_ids.unique().tolist()) - {0}
    assert segments == {"masked_lm": {1}, "sequence_to_sequence": {4, 5}, "left_to_right": {2}, "right_to_left": {3}}
