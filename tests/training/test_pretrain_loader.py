import numpy as np
import pytest
from conftest import small_text
from making import corpus_of

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
    made: list[PretrainLoader] = []

    def build(*changes: str, seed: int = 0, of: Corpus = corpus, name: str = "bert@tiny") -> PretrainLoader:
        recipe = recipe_loading.recipe(name, ["training.batch_size=8", "corpus.sequence_length=32", *changes])
        made.append(PretrainLoader(recipe, of, build_objectives(recipe), seed))
        return made[-1]

    yield build
    for supply in made:
        supply.close()


def same(one: Batch, other: Batch) -> bool:
    return contents(one) == contents(other)


def contents(batch: Batch) -> dict[str, list]:
    streams = {}
    for name, stream in batch.streams.items():
        tensors = {"ids": stream.input_ids, "segments": stream.segment_ids, "query": stream.query_positions,
                   "positions": stream.position_ids}
        streams |= {f"{key} of {name}": [] if value is None else value.tolist() for key, value in tensors.items()}
        streams[f"sees of {name}"] = [stream.attention_mask]
    return {**streams, "continues": [batch.continues_previous],
            **{f"labels of {head}": target.labels.tolist() for head, target in batch.row_targets.items()},
            **{f"answers of {head}": [target.index.tolist(), target.labels.tolist(), target.denominator]
               for head, target in batch.token_targets.items()}}


def chosen(supply: PretrainLoader, step: int, used: float = 0.0) -> tuple[Objective, ...]:
    """The tasks of a step."""
    return supply._choose_group(supply._batch_key(step, 32, used))[1]


def taken(supply: PretrainLoader, steps: int, length: int = 32, start: int = 0) -> list[PreparedBatch]:
    return [supply.get_batch(step, length) for step in range(start, start + steps)]


@pytest.mark.parametrize("changes", [(), (DYNAMIC,), ("objective.masked_lm.packing=full_sentences",)])
def test_the_same_seed_gives_the_same_batches_and_another_seed_others(make, changes):
    one, other, third = taken(make(*changes), 12), taken(make(*changes), 12), taken(make(*changes, seed=1), 12)
    assert all(same(a.batch, b.batch) and a.cursors == b.cursors for a, b in zip(one, other, strict=True))
    assert not any(same(a.batch, b.batch) for a, b in zip(one, third, strict=True))


@pytest.mark.parametrize(("changes", "told"), [
    (("remove=objective.next_sentence",), "corpus.packing=full_sentences, which"),  # one sentence a row
    ((), "corpus.sequence_length="),  # the sentence task needs its pairs
    (("remove=objective.next_sentence", "objective.masked_lm.packing=sentence_pair"),
     "objective.masked_lm.packing=full_sentences, which"),
    (("remove=objective.next_sentence", "corpus.packing=full_sentences"), None)])
def test_rows_of_mostly_padding_give_a_warning_with_advice(make, tmp_path, tokenizer_folder, changes, told):
    lines = [line for line in small_text(documents=20).splitlines() if line]
    short = corpus_of(tmp_path, [[line] for line in lines], tokenizer_folder)
    supply = make(*changes, "corpus.sequence_length=96", of=short)
    found = padding_warning(supply)
    if told is None:
        assert found is None
        return
    lengths = np.concatenate([supply.build_draft(step, 96)[0].lengths for step in range(4)])
    assert 2 * lengths.mean() < 96
    assert told in found and ("full_sentences" in told) == ("full_sentences" in found)
    assert "mostly padding" in found and "corpus.sequence_length = 96" in found
    average = int(found.split("mostly padding: ")[1].split()[0])
    assert average == pytest.approx(lengths.mean(), rel=0.25)
    shorter = int(found.split("corpus.sequence_length=")[1].split(".")[0])
    assert padding_warning(make(*changes, f"corpus.sequence_length={shorter}", of=short)) is None


@pytest.mark.parametrize("changes", [(), (DYNAMIC,), ("objective.masked_lm.packing=full_sentences",)])
@pytest.mark.parametrize("stop", [1, 5, 40])
def test_restored_cursors_give_the_batches_of_an_uninterrupted_run(make, changes, stop):
    straight = taken(make(*changes), stop + 4)
    again = make(*changes)
    again.restore(straight[stop - 1].cursors)
    for expected, found in zip(straight[stop:], taken(again, 4, start=stop), strict=True):
        assert same(expected.batch, found.batch)
        assert expected.cursors == found.cursors
        assert [o.name for o in expected.objectives] == [o.name for o in found.objectives]


def test_a_prefetched_batch_equals_a_fresh_one(make):
    ahead, fresh = make(), make()
    for step in range(4):
        prepared = ahead.get_batch(step, 32)
        draft, _ = fresh.build_draft(step, 32)
        assert prepared.batch.streams["encoder"].input_ids.tolist() == draft.input_ids[:,
            :int(draft.lengths.max())].tolist()


def test_the_length_may_change_between_steps(make):
    supply = make()
    supply.get_batch(0, 16)
    supply.get_batch(1, 16)
    long = supply.get_batch(2, 32)
    assert long.batch.streams["encoder"].input_ids.shape[1] > 16
    again = make()
    again.restore(long.cursors)
    assert same(again.get_batch(3, 32).batch, supply.get_batch(3, 32).batch)


def test_two_phases(make):
    supply = make("corpus.first_phase.share=0.5", "corpus.first_phase.sequence_length=16")
    assert [supply.sequence_length_at(used) for used in (0.0, 0.49, 0.5, 1.0)] == [16, 16, 32, 32]
    assert make("corpus.first_phase.sequence_length=128").sequence_length_at(0.0) == 32


@pytest.mark.parametrize("packing", ["segment_pair", "contiguous"])
def test_each_phase_has_its_own_batch(make, packing):
    tasks = [] if packing == "segment_pair" else ["remove=objective.next_sentence", "remove=objective.masked_lm",
                                                    "objective.causal_lm.weight=1.0", f"corpus.packing={packing}"]
    supply = make(*tasks, "corpus.first_phase.share=0.5", "corpus.first_phase.sequence_length=16",
                  "corpus.first_phase.batch_size=20")
    assert [supply.get_batch(step, supply.sequence_length_at(used), used).batch.num_rows
            for step, used in enumerate((0.0, 0.4, 0.5, 0.9))] == [20, 20, 8, 8]
    alone = make(*tasks, "corpus.first_phase.sequence_length=128", "corpus.first_phase.batch_size=20")
    assert alone.get_batch(0, alone.sequence_length_at(0.0), 0.0).batch.num_rows == 8  # one phase only


def rows_by_source(supply: PretrainLoader, epochs: int) -> list[dict[int, tuple[list[int], list[int], int]]]:
    """For each epoch (all of one length): where A begins -> (input, original, label) of that row."""
    found: list[dict[int, tuple[list[int], list[int], int]]] = [{} for _ in range(epochs)]
    step, rows = 0, supply.samplers.sampler(0, 32).first_rows(10**9).num_rows
    while step * supply.batch_rows_at(32) < epochs * rows:
        draft, _ = supply.build_draft(step, 32)
        for row in range(draft.rows):
            epoch = (step * supply.batch_rows_at(32) + row) // rows
            start = int(draft.spans.start[np.searchsorted(draft.spans.row, row)])
            if epoch < epochs:
                found[epoch][start] = (draft.input_ids[row].tolist(), draft.original_ids[row].tolist(),
                                       int(draft.row_labels["next_sentence"][row]))
        step += 1
    return found


@pytest.mark.parametrize("unit", ["token", "word"])
def test_static_masks_belong_to_a_row_and_a_copy_not_to_a_batch(make, unit):
    changes = ["objective.masked_lm.duplicates=2", f"objective.masked_lm.unit={unit}", "corpus.short_probability=0.0"]
    first = rows_by_source(make(*changes), 3)
    assert first[0] == first[2]
    common = first[0].keys() & first[1].keys()
    assert len(common) > 10
    assert np.mean([first[0][start] != first[1][start] for start in common]) > 0.9
    # the same rows come in other company, and look the same
    other = rows_by_source(make(*changes, "training.batch_size=5"), 1)
    assert other[0] == first[0]


def test_dynamic_masks_are_new_every_time(make):
    first = rows_by_source(make(DYNAMIC, "corpus.packing=sentence_pair"), 2)  # these pairs are the same in each epoch
    common = first[0].keys() & first[1].keys()
    assert len(common) > 10
    assert np.mean([first[0][start][0] != first[1][start][0] for start in common]) > 0.9


def test_training_never_shows_held_out_text(make):
    supply = make("corpus.validation=0.2")
    held = np.zeros(supply.corpus.num_tokens, dtype=bool)
    for start, stop in supply.validation.document_ranges:
        held[start:stop] = True
    assert 0.1 < held.mean() < 0.35
    for step in range(60):
        draft, _ = supply.build_draft(step, 32)
        assert not held[draft.corpus_offsets[draft.is_text]].any()


def test_held_out_batches_are_the_same_each_time_and_only_held_out(make):
    supply = make("corpus.validation=0.2")
    one, other = supply.validation_batches(32), supply.validation_batches(32)
    taken(supply, 3)
    third = supply.validation_batches(32)
    assert len(one) >= 2
    for a, b, c in zip(one, other, third, strict=True):
        assert same(a[1], b[1]) and same(a[1], c[1]) and a[1].held_out
    assert not any(prepared.batch.held_out for prepared in taken(supply, 2))
    assert [o.name for o in one[0][0]] == ["next_sentence", "masked_lm"]


def test_nothing_held_out_gives_no_batches(make, tmp_path, tokenizer_folder):
    supply = make(of=corpus_of(tmp_path, [["the clerk reads a letter"]], tokenizer_folder))
    assert supply.validation_batches(32) == []
    assert supply.get_batch(0, 32).batch.num_rows == 8


def test_unigram_counts_the_training_text_only(make):
    supply = make("corpus.validation=0.2")
    tokens = np.concatenate([supply.corpus.values_between("tokens", int(start), int(stop))
                             for start, stop in supply.training.document_ranges])
    size = supply.corpus.tokenizer.vocab_size
    expected = np.log((np.bincount(tokens, minlength=size) + 1) / (len(tokens) + size))
    np.testing.assert_allclose(supply.unigram(), expected)
    assert np.exp(supply.unigram()).sum() == pytest.approx(1.0)


def test_groups_take_their_turns_and_wait_for_their_step(make):
    supply = make("objective.masked_lm.packing=full_sentences", "objective.masked_lm.turns=3.0",
                  "objective.masked_lm.weight=0.5", "objective.next_sentence.start_step=100")
    names = [tuple(o.name for o in chosen(supply, step)) for step in range(1100)]
    assert set(names[:100]) == {("masked_lm",)}
    share = np.mean([name == ("masked_lm",) for name in names[100:]])
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 1000) ** 0.5
    assert names == [tuple(o.name for o in chosen(supply, step)) for step in range(1100)]


def test_two_masked_objectives_each_mask_at_their_own_rate(make):
    supply = make("objective.words.kind=masked_lm", "objective.words.rate=0.5", "objective.words.unit=word",
                  "objective.words.dynamic=true")
    seen = {}
    for step in range(20):
        draft, active = supply.build_draft(step, 32)
        seen[active[-1].name] = len(draft.token_targets["vocabulary"].index) / draft.is_text.sum()
    assert seen["masked_lm"] == pytest.approx(0.15, abs=0.05)
    assert seen["words"] == pytest.approx(0.5, abs=0.05)


def test_an_error_while_prefetching_reaches_the_caller(make, monkeypatch):
    supply = make()
    supply.get_batch(0, 32)
    supply._prefetched[1].result()
    monkeypatch.setattr(supply, "_choose_group", lambda key: 1 / 0)
    supply.get_batch(1, 32)  # prepared before
    with pytest.raises(ZeroDivisionError):
        supply.get_batch(2, 32)


MEMORIES = ["transformer-xl@tiny", "xlnet@tiny"]


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("stop", [1, 2, 30])
def test_contiguous_rows_continue_after_a_restore(make, name, stop):
    straight = taken(make(name=name), stop + 4)
    again = make(name=name)
    again.restore(straight[stop - 1].cursors)
    for expected, found in zip(straight[stop:], taken(again, 4, start=stop), strict=True):
        assert same(expected.batch, found.batch)
        assert expected.cursors == found.cursors and expected.sampler_key == found.sampler_key == "0:32"


@pytest.mark.parametrize("name", MEMORIES)
def test_a_batch_says_whether_it_goes_on_from_the_one_before(make, name):
    supply = make(name=name)
    prepared = taken(supply, 60)
    for one, other in zip(prepared[:-1], prepared[1:], strict=True):
        assert other.batch.continues_previous == (one.cursors["0:32"][2] > 0)  # 0: its epoch was over
    assert not prepared[0].batch.continues_previous and sum(not p.batch.continues_previous for p in prepared) > 2
    assert not supply.get_batch(60, 16).batch.continues_previous  # another length is another feed


def test_the_next_batch_of_a_row_goes_on_in_the_text(make):
    """What the last place of one batch guesses is the first token of the next."""
    supply = make(name="transformer-xl@tiny")
    drafts = [supply.build_draft(step, 32)[0] for step in range(4)]
    for one, other in zip(drafts[:-1], drafts[1:], strict=True):
        assert other.continues_previous
        assert one.next_tokens()[:, -1].tolist() == other.original_ids[:, 0].tolist()


def test_a_backward_model_reads_on_towards_the_beginning(make):
    supply = make("objective.causal_lm.direction=backward", name="transformer-xl@tiny")
    drafts = [supply.build_draft(step, 32)[0] for step in range(4)]
    sources = np.concatenate([draft.corpus_offsets for draft in drafts], axis=1)
    for row in sources:
        assert (np.diff(row[row >= 0]) < 0).all()
    assert supply.get_batch(4, 32).batch.streams["encoder"].reversed_rows.all()


def test_half_of_a_permuted_batch_is_read_backwards_and_keeps_half_a_window(make):
    batch = make(name="xlnet@tiny").get_batch(0, 32).batch
    stream = batch.streams["encoder"]
    assert stream.reversed_rows.tolist() == [False] * 4 + [True] * 4 and stream.reuse_length == 16
    assert stream.query_positions.shape == (8, 32 // 6) and batch.token_targets["vocabulary"].row_stride == 32 // 6


@pytest.mark.parametrize("name", ["gpt@tiny", *MEMORIES])
def test_held_out_text_goes_on_too(make, name):
    supply = make("corpus.validation=0.3", name=name)
    one, other = supply.validation_batches(32), supply.validation_batches(32)
    assert len(one) > 1 and all(same(a[1], b[1]) for a, b in zip(one, other, strict=True))
    goes_on = [batch.continues_previous for _, batch in one]
    if name == "gpt@tiny":
        assert not any(goes_on)
    else:
        assert goes_on == [False] + [True] * (len(one) - 1) and len(one) >= 4
    if name == "transformer-xl@tiny":  # all of it is read
        assert sum(batch.num_tokens for _,
                   batch in one) == supply.validation.num_tokens + len(supply.validation.document_ranges) - 1


def test_much_held_out_text_is_not_read_to_its_end(make, monkeypatch):
    monkeypatch.setattr(feeds_module, "VALIDATION_TOKENS", 640)
    for name in MEMORIES:
        batches = make("corpus.validation=0.5", name=name).validation_batches(32)
        assert 640 <= sum(batch.num_tokens for _, batch in batches) < 640 + 32 * batches[0][1].num_rows


def test_a_unigram_model_of_running_text_knows_how_often_documents_end(make):
    supply, plain = make(name="gpt@tiny"), make()
    end = supply.corpus.tokenizer.special_id("end")
    assert np.exp(supply.unigram()).sum() == pytest.approx(1.0)
    ratio = np.exp(supply.unigram()[end]) / np.exp(plain.unigram()[end])
    assert ratio == pytest.approx(1 + len(supply.training.document_ranges), rel=0.05)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, tokenizer_folder) -> Corpus:
    """Sources of many lengths, and their words from last to first."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = [line.split() for line in small_text(60).split("\n") if line]
    sources = [" ".join(words[:2 + number % 9]) for number, words in enumerate(lines)]
    targets = [" ".join(reversed(source.split())) + " the river" for source in sources]
    for name, lines in (("source", sources), ("target", targets)):
        (folder / name).write_text("\n".join(lines) + "\n")
    build_corpus([], tokenizer_folder, folder / "corpus", workers=1,
                 pairs=[PairSource(folder / "source", folder / "target")])
    return Corpus.open(folder / "corpus")


UNILM_PAIRS = ("remove=objective.next_sentence", "remove=objective.left_to_right", "remove=objective.right_to_left",
               "remove=objective.masked_lm", "objective.sequence_to_sequence.packing=parallel",
               "objective.sequence_to_sequence.scored=second")
TWO_SIDED = [("transformer@tiny", ()), ("mass@tiny", ()), ("bart@tiny", ()), ("t5@tiny", ()), ("unilm@tiny", ()),
             ("prefix-lm@tiny", ()), ("unilm@tiny", UNILM_PAIRS)]


@pytest.mark.parametrize(("name", "changes"), TWO_SIDED)
@pytest.mark.parametrize("stop", [1, 9])
def test_every_family_continues_from_saved_cursors(make, pairs, name, changes, stop):
    straight = taken(make(*changes, of=pairs, name=name), stop + 4)
    again = make(*changes, of=pairs, name=name)
    again.restore(straight[stop - 1].cursors)
    for expected, found in zip(straight[stop:], taken(again, 4, start=stop), strict=True):
        assert same(expected.batch, found.batch)
        assert expected.cursors == found.cursors and expected.sampler_key == found.sampler_key


@pytest.mark.parametrize(("name", "changes"), TWO_SIDED)
def test_every_family_fits_its_window_and_has_held_out_batches(make, pairs, name, changes):
    supply = make("corpus.validation=0.2", *changes, of=pairs, name=name)
    batches = [prepared.batch for prepared in taken(supply, 12)]
    one, other = supply.validation_batches(32), supply.validation_batches(32)
    assert len(one) >= 1 and all(same(a[1], b[1]) for a, b in zip(one, other, strict=True))
    for batch in [*batches, *(batch for _, batch in one)]:
        assert all(stream.input_ids.shape[1] <= 32 for stream in batch.streams.values())
        assert len(batch.token_targets["vocabulary"].index) > 0
        assert batch.num_rows == batch.streams["encoder"].input_ids.shape[0]
    assert np.exp(supply.unigram()).sum() == pytest.approx(1.0)


def test_a_pair_that_does_not_fit_one_window_is_left_out_where_it_must(make, pairs):
    """Source and target have a window each with a decoder, and share one without."""
    apart, together = make(of=pairs, name="transformer@tiny"), make(*UNILM_PAIRS, of=pairs, name="unilm@tiny")
    widths = [max(prepared.batch.streams["encoder"].input_ids.shape[1] for prepared in taken(supply, 60, 16))
              for supply in (apart, together)]
    assert widths[0] <= 16 and widths[1] <= 16
    left_out = [supply.samplers.sampler(0, 16).num_dropped for supply in (apart, together)]
    assert left_out[1] > left_out[0]


def test_batches_of_pairs_have_similar_lengths_and_a_token_limit(make, pairs):
    supply = make(of=pairs, name="transformer@tiny")
    batches = [prepared.batch for prepared in taken(supply, 40)]
    sizes = [stream.input_ids.numel() for batch in batches for stream in batch.streams.values()]
    assert max(sizes) <= 8 * 32
    assert len({batch.num_rows for batch in batches}) > 3
    assert sum(batch.num_tokens for batch in batches) / sum(sizes) > 0.85


def test_a_source_stands_beside_its_own_target(make, pairs):
    supply = make(of=pairs, name="transformer@tiny")
    river = [pairs.tokenizer.token_to_id(token) for token in ("the", "river")]
    end = pairs.tokenizer.special_id("end")
    for prepared in taken(supply, 10):
        read = prepared.batch.streams["encoder"].input_ids.tolist()
        target = prepared.batch.token_targets["vocabulary"]
        written = np.full((prepared.batch.num_rows, target.row_stride), -1)
        written.reshape(-1)[target.index.numpy()] = target.labels.numpy()
        for source, answer in zip(read, written.tolist(), strict=True):
            source = source[:source.index(end)]
            assert answer[:answer.index(end)][-2:] == river
            assert sorted(answer[:answer.index(end) - 2]) == sorted(source)


def test_raw_text_fills_the_sequence_after_corruption(make, corpus):
    supply = make("corpus.boundary=end", of=corpus, name="t5@tiny")
    draft, _ = supply.build_draft(0, 32)
    task = supply.groups[0].objectives[0]
    assert task.raw_text_length(32) > 32 and draft.template.length == task.raw_text_length(32) + 1
    assert (draft.seq2seq_rows["encoder"].lengths == 32).all()


def test_a_unigram_model_of_pairs_knows_the_targets_and_their_ends(make, pairs):
    supply = make("corpus.validation=0.2", of=pairs, name="transformer@tiny")
    tokens, documents = [], supply.training.document_ranges
    for number in range(len(documents)):
        bounds = supply.training.sentence_bounds(number)
        assert len(bounds) == 3
        tokens.append(pairs.values_between("tokens", int(bounds[1]), int(bounds[2])))
    counts = np.bincount(np.concatenate(tokens), minlength=pairs.tokenizer.vocab_size)
    probability = np.exp(supply.unigram())
    end = pairs.tokenizer.special_id("end")
    total = counts.sum() + len(documents) + len(counts)
    assert probability[end] == pytest.approx(len(documents) / total, rel=0.25)  # judged by a batch
    others = np.delete(np.arange(len(counts)), end)
    np.testing.assert_allclose(probability[others] / probability[others].sum(),
                               (counts[others] + 1) / (counts[others] + 1).sum(), rtol=1e-9)


def test_a_unigram_model_of_corrupted_spans_knows_the_sentinels(make, corpus):
    supply = make(of=corpus, name="t5@tiny")
    probability = np.exp(supply.unigram())
    labels = np.concatenate([p.batch.token_targets["vocabulary"].labels.numpy() for p in taken(supply, 20)])
    for token in (corpus.tokenizer.sentinels[0], corpus.tokenizer.special_id("end")):
        assert probability[token] == pytest.approx((labels == token).mean(), rel=0.1)


def test_the_four_tasks_of_unilm_take_a_third_a_third_and_two_sixths(make, corpus):
    supply = make(of=corpus, name="unilm@tiny")
    names = [chosen(supply, step)[-1].name for step in range(3000)]
    wanted = {"masked_lm": 1 / 3, "sequence_to_sequence": 1 / 3, "left_to_right": 1 / 6, "right_to_left": 1 / 6}
    for name, share in wanted.items():
        assert abs(names.count(name) / 3000 - share) < 4 * (share * (1 - share) / 3000) ** 0.5
    segments: dict[str, set[int]] = {}
    for step in range(40):
        prepared = supply.get_batch(step, 32)
        seen = segments.setdefault(prepared.objectives[-1].name, set())
        seen |= set(prepared.batch.streams["encoder"].segment_ids.unique().tolist()) - {0}
    assert segments == {"masked_lm": {1}, "sequence_to_sequence": {4, 5}, "left_to_right": {2}, "right_to_left": {3}}
