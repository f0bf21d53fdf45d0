"""The built-in inputs against their formulas: characters, boxes, entities and the gate; and their values in a batch."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from closeness import assert_close

import stemma
from stemma import recipe_loading, registry
from stemma.corpus.annotate import annotate
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.row_template import RowTemplate
from stemma.corpus.seq2seq_rows import EncoderDraft
from stemma.corpus.subset import CorpusSubset
from stemma.errors import UserError
from stemma.network.inputs.characters import BEGINS, ENDS, CharacterSettings, token_symbols
from stemma.network.inputs_outputs import Stream
from stemma.objectives import build_objectives, collate
from stemma.visibility import Causal

WIDTH = 16
SMALL = [f"network.width={WIDTH}", "network.heads=2", "network.feedforward=24", "network.layers=1"]
CHARACTERS = ["network.inputs.letters.kind=characters", "network.inputs.letters.longest=6",
              "network.inputs.letters.size=3", "network.inputs.letters.widths=[1, 2]",
              "network.inputs.letters.filters=[2, 5]"]
IDS = torch.tensor([[1, 3, 1], [2, 0, 3]])


def embedding_of(name: str, *changes: str):
    return stemma.build(name, 40, [*SMALL, *changes]).network.eval().embedding


@pytest.fixture(scope="module")
def annotated_corpus(tmp_path_factory, corpus_folder) -> Path:
    """A corpus with a field for each kind of input; all fields contain the token id."""
    folder = tmp_path_factory.mktemp("annotated") / "corpus"
    shutil.copytree(corpus_folder, folder)
    corpus = Corpus.open(folder)
    ids = corpus.values_between("tokens", 0, corpus.num_tokens).astype(np.float32)
    box = np.stack([ids / 1000, ids / 900, ids / 500, ids / 450], 1)
    annotate(folder, token_fields={"hint": np.stack([ids, -ids], 1), "boxes": box, "entity": ids, "pixels": box * 900,
                                   "below": -ids})
    return folder


def test_the_text_inputs_are_registered_and_come_from_the_embedding():
    settings = recipe_loading.recipe("ernie-2@tiny").settings.network
    (part,) = settings.parts().values()
    reading = settings.inputs_of(part)
    assert list(reading) == ["tokens", "segments", "tasks"]
    assert [input_settings.kind for input_settings in reading.values()] == list(reading)
    assert (reading["segments"].count, reading["tasks"].count) == (settings.embedding.segments,
                                                                    settings.embedding.tasks)
    for name, rows in (("tokens", 50), ("segments", reading["segments"].count), ("tasks", reading["tasks"].count)):
        assert registry.get("input", name).build(reading[name], settings, 8, 50).weight.shape == (rows, 8)
    stream = Stream(IDS, segment_ids=IDS * 0, task_ids=torch.zeros(2, dtype=torch.long),
                    inputs={"hint": IDS[..., None]})
    assert set(stream.inputs) == {"tokens", "segments", "tasks", "hint"} and stream.task_ids.shape == (2,)
    other = stream.with_input_ids(IDS + 1)
    assert torch.equal(other.input_ids, IDS + 1) and torch.equal(other.segment_ids, stream.segment_ids)
    assert (replace(stream, output_positions=None).input_ids is stream.input_ids) and stream.rows(slice(1,
        2)).inputs["hint"].shape[0] == 1
    alone = Stream(task_ids=torch.zeros(2, dtype=torch.long), inputs={"hint": torch.zeros(2, 5, 3)})
    assert (alone.batch, alone.length, alone.input_ids) == (2, 5, None)  # a task id per row has no length


def test_the_symbols_of_a_token_spell_it():
    def vocabulary(kind: str, *tokens: str):
        token_ids = {token: index for index, token in enumerate(tokens)}
        return SimpleNamespace(kind=kind, vocab_size=len(tokens), backend=SimpleNamespace(get_vocab=lambda: token_ids))

    def symbols(tokenizer, longest):
        return token_symbols(tokenizer, CharacterSettings(kind="characters", longest=longest))

    result = symbols(vocabulary("wordpiece", "ab", "##é", "longer"), 6)
    assert result.tolist() == [[BEGINS, 98, 99, ENDS, 0, 0], [BEGINS, 36, 36, 0xC3 + 1, 0xA9 + 1, ENDS],
                               [BEGINS, *(ord(letter) + 1 for letter in "long"), ENDS]]
    # a byte-level vocabulary writes a space as Ġ and the two bytes of é as Ã and ©
    assert symbols(vocabulary("byte_bpe", "Ġa", "Ã©"), 5).tolist() == [[BEGINS, 33, 98, ENDS, 0],
                                                                       [BEGINS, 0xC3 + 1, 0xA9 + 1, ENDS, 0]]


@torch.no_grad()
def test_character_convolutions_match_their_formula():
    """With loops: convolutions over bytes, max-pooling, one highway layer and a linear layer."""
    module = embedding_of("bert@tiny", *CHARACTERS).inputs["letters"]
    spelling = np.array([[0] * 6, [BEGINS, 98, ENDS, 0, 0, 0], [BEGINS, 99, 98, ENDS, 0, 0]], np.int16)
    module.spell(spelling)
    assert module.characters(IDS).shape == (2, 3, 6) and module.characters(IDS)[1, 0].tolist() == spelling[2].tolist()
    assert not module.characters(IDS)[0, 1].any()  # rows of the embedding that no token has
    result = module(IDS)
    assert result.shape == (2, 3, WIDTH) and torch.equal(result[0, 0], result[0, 2])
    for row, position in ((0, 0), (1, 0)):
        vectors = [module.table.weight[symbol] if symbol else torch.zeros(3) for symbol in spelling[IDS[row, position]]]
        pooled = []
        for span, filters in zip((1, 2), module.filters, strict=True):
            windows = [torch.cat(vectors[first:first + span]) for first in range(6 - span + 1)]
            pooled.append(torch.stack([(filters.weight @ window + filters.bias).relu() for window in windows]).amax(0))
        x = torch.cat(pooled)
        (layer,) = module.highway
        carried = torch.sigmoid(layer.carry.weight @ x + layer.carry.bias)
        x = carried * x + (1 - carried) * (layer.transform.weight @ x + layer.transform.bias).relu()
        assert_close(result[row, position], module.output.weight @ x + module.output.bias)
    assert not torch.allclose(result[0, 0], result[1, 0])


@torch.no_grad()
@pytest.mark.parametrize(("area", "norms"), [(False, True), (True, False)])
def test_box_inputs_match_their_formula(area, norms):
    embedding = embedding_of("bert@tiny", "network.inputs.region.kind=boxes", "network.inputs.region.size=3",
                             f"network.inputs.region.area={str(area).lower()}",
                             f"network.inputs.region.norms={str(norms).lower()}")
    module = embedding.inputs["region"]
    for parameter in module.parameters():
        parameter.normal_()
    vector, box = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.1, 0.2, 0.6, 0.4])
    values = torch.zeros(1, 3, 7)
    values[0, 0], values[0, 2, 3:] = torch.cat([vector, box]), box
    box_features = torch.tensor([0.1, 0.2, 0.6, 0.4, 0.5 * 0.2]) if area else box

    def normed(x, norm):
        return (x - x.mean()) / (x.var(correction=0) + norm.eps).sqrt() * norm.weight + norm.bias if norms else x

    expected = normed(module.vector.weight @ vector + module.vector.bias, module.norms[0] if norms else None) + \
        normed(module.box.weight @ box_features + module.box.bias, module.norms[1] if norms else None)
    result = module(values)
    assert_close(result[0, 0], expected)
    assert not result[0, 1].any() and result[0, 2].any()  # no region; a box without a vector


@torch.no_grad()
@pytest.mark.parametrize("trained", [False, True])
def test_entity_inputs_match_their_formula(trained, tmp_path):
    np.save(tmp_path / "vectors.npy", np.arange(12).reshape(4, 3))
    changes = ["network.inputs.entity.kind=entities", "network.inputs.entity.count=4", "network.inputs.entity.size=3",
               f"network.inputs.entity.trained={str(trained).lower()}"]
    network = stemma.build("bert@tiny", 40, [*SMALL, *changes, f"network.inputs.entity.file={tmp_path}/vectors.npy"]
                           ).network.eval()
    network.start_inputs(None)
    module = network.embedding.inputs["entity"]
    result = module(torch.tensor([[0, 1, 3]]))
    assert not result[0, 0].any()
    assert_close(result[0, 2], module.project.weight @ torch.tensor([9.0, 10.0, 11.0]))
    assert ("vectors" in dict(module.named_parameters())) is trained
    for file, message in ((tmp_path / "none.npy", "No such file"),
                          (tmp_path / "short.npy", "of the shape (4, 3), and")):
        np.save(tmp_path / "short.npy", np.zeros((3, 3)))
        wrong = stemma.build("bert@tiny", 40, [*SMALL, *changes, f"network.inputs.entity.file={file}"]).network
        with pytest.raises(UserError) as refused:
            wrong.start_inputs(None)
        assert message in str(refused.value.problems)


@torch.no_grad()
def test_the_gate_depends_on_token_and_input():
    embedding = embedding_of("bert@tiny", "network.embedding.fusion=gate", "network.inputs.hint.kind=vectors",
                             "network.inputs.hint.size=2", "network.inputs.other.kind=vectors",
                             "network.inputs.other.size=1")
    fusion = embedding.fusion
    for parameter in fusion.parameters():
        parameter.normal_()
    tokens, hint = torch.randn(2, 3, WIDTH), torch.randn(2, 3, WIDTH)
    result = fusion({"tokens": tokens, "hint": hint})
    for row in range(2):
        for position in range(3):
            gate, token, input_vector = fusion.gates["hint"], tokens[row, position], hint[row, position]
            gate_values = [1 / (1 + math.exp(-float(value)))
                           for value in gate.weight @ torch.cat([token, input_vector]) + gate.bias]
            assert_close(result[row, position], token + torch.tensor(gate_values) * input_vector)
    assert torch.equal(fusion({"tokens": tokens}), tokens)  # a missing input adds nothing
    assert fusion({"hint": hint}).shape == (2, 3, WIDTH)


KINDS = {"boxes": ["network.inputs.hint.kind=boxes", "network.inputs.hint.size=2"],
         "entities": ["network.inputs.entity.kind=entities", "network.inputs.entity.size=2",
                      "network.inputs.entity.count=400"]}


@pytest.mark.parametrize("keep", [False, True])
def test_batches_contain_the_values_of_boxes_and_entities(annotated_corpus, keep):
    corpus = Corpus.open(annotated_corpus)
    changes = [*KINDS["boxes"], *KINDS["entities"], f"network.inputs.entity.keep_masked={str(keep).lower()}",
               *CHARACTERS]
    layout = RowTemplate.from_tokenizer(corpus.tokenizer, "start A separator", "start A separator B:1 separator:1", 12)
    draft = Draft(CorpusSubset.all_documents(corpus), RowSpans.from_tuples(1, [(0, 3, 8, 0, False)]), layout)
    ids = draft.input_ids.copy()
    ids[0, 2] = corpus.tokenizer.special_id("mask")
    draft.input_ids = ids
    inputs = collate(draft, "full", None, recipe_loading.recipe("bert@tiny", changes).settings.network.inputs
                   ).streams["encoder"].inputs
    assert "letters" not in inputs  # computed from the ids, which contain the mask token
    tokens = corpus.values_between("tokens", 3, 11).astype(np.float32)
    assert_close(inputs["hint"][0, 1], torch.tensor([tokens[0], -tokens[0], tokens[0] / 1000, tokens[0] / 900,
                                                     tokens[0] / 500, tokens[0] / 450]))
    assert not inputs["hint"][0, 2].any() and inputs["entity"].dtype == torch.int64
    expected = [0, *tokens.astype(int).tolist(), 0]
    expected[2] = expected[2] if keep else 0
    assert inputs["entity"][0, :10].tolist() == expected and not inputs["entity"][0, 10:].any()


@pytest.mark.parametrize(("name", "change"), [("t5@tiny", []), ("bart@tiny", ["objective.denoise.mask=0.1",
                         "objective.denoise.delete=0.1", "objective.denoise.rotate=0.5"]), ("mass@tiny", [])])
def test_encoder_inputs_are_aligned_with_their_tokens(annotated_corpus, name, change):
    """The field contains the token id: it equals the id at text positions and is 0 at other positions."""
    corpus = Corpus.open(annotated_corpus)
    recipe = recipe_loading.recipe(name, [*KINDS["entities"], *change])
    settings = recipe.settings.corpus
    layout = RowTemplate.from_tokenizer(corpus.tokenizer, settings.single, settings.pair, 40, decoder_start="start")
    draft = Draft(CorpusSubset.all_documents(corpus), RowSpans.from_tuples(3,
        [(0, 3, 30, 0, False), (1, 60, 25, 0, False), (2, 90, 8, 0, False)]),
                  layout)
    (objective,) = build_objectives(recipe)
    objective.make_targets(draft, np.random.default_rng(1))
    streams = collate(draft, "full", None, recipe.settings.network.inputs).streams
    ids, inputs = streams["encoder"].input_ids, streams["encoder"].inputs["entity"]
    assert "entity" not in streams["decoder"].inputs and inputs.shape == ids.shape
    text = inputs > 0
    assert torch.equal(inputs[text], ids[text]) and text.sum() > 20
    special = torch.isin(ids, torch.from_numpy(corpus.tokenizer.special_ids))
    assert not (text & special).any()
    replaced = EncoderDraft.from_rows(corpus, draft.seq2seq_rows["encoder"])
    assert torch.equal(~text, special | torch.from_numpy(replaced.input_ids != replaced.original_ids))
    draft.seq2seq_rows["encoder"] = replace(draft.seq2seq_rows["encoder"], corpus_offsets=None)
    with pytest.raises(UserError, match="does not say where the tokens"):
        collate(draft, "full", None, recipe.settings.network.inputs)


@pytest.mark.parametrize(("name", "change", "is_kept"), [
    ("t5@tiny", [], False), ("bart@tiny", [], False), ("mass@tiny", [], True),
    ("bart@tiny", ["objective.denoise.infill=0", "objective.denoise.mask=0.3"], True)])
def test_which_inputs_remain_at_masked_tokens(annotated_corpus, name, change, is_kept):
    """With keep_masked a masked token keeps its entity; a mask for a whole span has none."""
    corpus = Corpus.open(annotated_corpus)
    recipe = recipe_loading.recipe(name, [*KINDS["entities"], "network.inputs.entity.keep_masked=true", *change])
    settings = recipe.settings.corpus
    layout = RowTemplate.from_tokenizer(corpus.tokenizer, settings.single, settings.pair, 40, decoder_start="start")
    draft = Draft(CorpusSubset.all_documents(corpus), RowSpans.from_tuples(1, [(0, 3, 30, 0, False)]), layout)
    (objective,) = build_objectives(recipe)
    objective.make_targets(draft, np.random.default_rng(1))
    stream = collate(draft, "full", None, recipe.settings.network.inputs).streams["encoder"]
    masks = torch.isin(stream.input_ids, torch.tensor([corpus.tokenizer.special_id("mask"),
                                                       *corpus.tokenizer.sentinels]))
    inputs = stream.inputs["entity"]
    assert masks.any() and bool(inputs[masks].all()) is is_kept and bool(inputs[masks].any()) is is_kept
    if is_kept:  # no token is removed, so all entities of the text remain
        assert sorted(inputs[inputs > 0].tolist()) == sorted(corpus.values_between("tokens", 3, 33).tolist())


@torch.no_grad()
@pytest.mark.parametrize("decodes", [False, True])
def test_a_decoder_has_tokens_and_inputs_computed_from_them(decodes):
    changes = [*CHARACTERS, "network.inputs.hint.kind=vectors", "network.inputs.hint.size=2",
               *(["network.inputs.letters.decoder=true"] if decodes else [])]
    model = stemma.build("t5@tiny", 40, [*SMALL, "network.decoder.layers=1", *changes])
    network = model.network.eval()
    network.embedding.inputs["letters"].spell(np.random.default_rng(0).integers(1, 257, (40, 6)).astype(np.int16))
    assert list(network.decoder_embedding.input_settings) == ["tokens", *(["letters"] if decodes else [])]
    streams = {"encoder": Stream(IDS, inputs={"hint": torch.ones(2, 3, 2)}), "decoder": Stream(IDS, Causal())}
    result = network(streams)
    without = network({**streams, "encoder": Stream(IDS)})
    assert not torch.allclose(result["encoder"], without["encoder"])
    embedded = network.decoder_embedding(Stream(IDS))
    expected = network.embedding.tokens(IDS) + (network.embedding.inputs["letters"](IDS) if decodes else 0)
    assert_close(embedded, expected)
    names = [name for name in network.state_dict() if "letters" in name]
    assert names and all(name.startswith("embedding.") for name in names)  # one shared module, stored once
    with pytest.raises(AssertionError, match="no input for hint"):
        network({**streams, "decoder": Stream(IDS, Causal(), inputs={"hint": torch.ones(2, 3, 2)})})


@pytest.mark.parametrize(("changes", "key", "expected"), [
    ([*CHARACTERS, "network.inputs.letters.filters=[2]"], "filters", "2 widths and 1 numbers of filters"),
    ([*CHARACTERS, "network.inputs.letters.longest=3", "network.inputs.letters.widths=[1, 4]"], "widths",
     "a filter of 4 bytes does not fit into the 3"),
    (["network.inputs.tasks.kind=vectors", "network.inputs.tasks.size=2"], "tasks", "not tokens, segments or tasks"),
])
def test_invalid_input_settings_are_refused(changes, key, expected):
    with pytest.raises(UserError) as refused:
        recipe_loading.recipe("bert@tiny", changes)
    assert any(key in path and expected in message for path, message in refused.value.problems), refused.value.problems


@pytest.mark.parametrize(("changes", "message"), [
    (["hint.kind=boxes", "hint.size=3"], "set network.inputs.hint.size=2"),
    (["hint.kind=boxes", "hint.size=2", "hint.boxes=entity"], 'the field "entity" has 1 numbers a token: it must have'),
    (["hint.kind=boxes", "hint.size=2", "hint.boxes=pixels"], "divide x by the width of the image"),
    (["entity.kind=entities", "entity.size=2", "entity.count=5"], "set network.inputs.entity.count="),
    (["below.kind=entities", "below.size=2", "below.count=5"], "number entities from 1 on"),
    (["none.kind=entities", "none.size=2", "none.count=5"], 'the corpus has no field "none"'),
])
def test_missing_or_unfit_corpus_fields_are_reported(annotated_corpus, changes, message):
    recipe = recipe_loading.recipe("bert@tiny", [f"network.inputs.{change}" for change in changes])
    ((name, input_settings),) = recipe.settings.network.inputs.items()
    assert message in input_settings.missing_data(name, Corpus.open(annotated_corpus))
