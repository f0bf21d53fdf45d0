"""RoBERTa agrees with `transformers` to 1e-4, in both directions, wherever the filling stands."""

from __future__ import annotations

import pytest
import torch
import transformers
from closeness import assert_close
from parity import reference
from parity.reference import SEEDS, assert_agrees_both_ways, assert_same_outputs, config_of, configure

import stemma
from stemma.errors import UserError
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer

CLASSES = [("RobertaForMaskedLM", {}), ("RobertaModel", {}), ("RobertaModel", {"add_pooling_layer": False})]
NAMES = ["masked-lm", "model", "model-without-pooler"]
LINES = ["The old clerk copies a letter.", "A <mask> letter", "two  spaces  here ", "na\u00efve Zo\u00eb", " before"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "arguments"), CLASSES, ids=NAMES)
def test_roberta_agrees_with_transformers(tmp_path, seed, kind, arguments):
    model = assert_agrees_both_ways(reference.random_reference("roberta", seed, kind, arguments), tmp_path, seed)
    stated = config_of(tmp_path / "theirs")["max_position_embeddings"]
    assert model.recipe.settings.network.position.maximum == stated - 2
    assert config_of(tmp_path / "ours")["max_position_embeddings"] == stated


def test_left_padding_is_not_counted_in_positions(tmp_path):
    """The comparison can fail: a network that counts every place is not the same."""
    theirs = reference.random_reference("roberta", 1, "RobertaForMaskedLM")
    theirs.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    model.recipe = model.recipe.with_changes({"network.position.counts": "places"}, "test")
    with pytest.raises(AssertionError, match="of input 3 differs by"):
        assert_same_outputs(model, theirs)


def test_the_published_sizes_are_the_defaults(tmp_path):
    """Where nothing is said transformers takes BERT's places and norm, so that we must too."""
    theirs = reference.random_reference("roberta", 2, "RobertaForMaskedLM", max_position_embeddings=512,
                                        type_vocab_size=2, layer_norm_eps=1e-12)
    theirs.save_pretrained(tmp_path)
    configure(tmp_path, max_position_embeddings=..., type_vocab_size=..., layer_norm_eps=..., pad_token_id=...)
    network = stemma.load(tmp_path).recipe.settings.network
    assert (network.position.maximum, network.embedding.segments, network.norm.epsilon) == (510, 2, 1e-12)


@pytest.mark.parametrize("segments", [1, 2])
def test_transformers_agrees_with_ours(tmp_path, segments):
    sizes = reference.random_sizes(12)
    changes = {"layers": sizes["layers"], "width": sizes["width"], "heads": sizes["heads"],
               "feedforward": sizes["inner"], "position.maximum": 29, "embedding.segments": segments}
    model = stemma.build("roberta", sizes["vocabulary"], [*(f"network.{key}={value}" for key, value in changes.items()),
                                                          "corpus.sequence_length=29"])
    reference.perturb(model.network, 3)
    stemma.save(model, tmp_path / "ours")
    theirs = reference.assert_loads_into("RobertaForMaskedLM", tmp_path / "ours")
    assert type(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours")) is type(theirs)
    assert_same_outputs(model, theirs)
    assert model.parameter_count() == theirs.num_parameters()
    again = stemma.load(tmp_path / "ours")
    assert_same_outputs(again, theirs)
    stemma.save(again, tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_checkpoint_with_an_untrained_pooler_keeps_it(tmp_path):
    """As the published files are: the pooler's tensors beside the head's."""
    theirs = reference.random_reference("roberta", 3, "RobertaForMaskedLM")
    body = transformers.RobertaModel(theirs.config).eval()
    theirs.save_pretrained(tmp_path, state_dict={**theirs.state_dict(), **{
        f"roberta.{name}": tensor for name, tensor in body.state_dict().items() if name.startswith("pooler.")}})
    model = stemma.load(tmp_path)
    assert set(model.network.heads) == {"pooler", "vocabulary"} and model.load_warnings == []
    ids = torch.arange(2, 12)[None]
    torch.testing.assert_close(model.logits(ids), theirs(ids).logits.detach(), atol=1e-4, rtol=0)


def test_all_differences_from_roberta_are_reported_at_once(tmp_path):
    reference.random_reference("roberta", 1, "RobertaForMaskedLM").save_pretrained(tmp_path)
    configure(tmp_path, pad_token_id=0, is_decoder=True, hidden_act="relu")
    with pytest.raises(UserError, match="family roberta, of a kind that is not supported") as told:
        stemma.load(tmp_path)
    assert {place for place, _ in told.value.problems} == {"is_decoder = True", "pad_token_id = 0", "hidden_act = relu"}


NOT_ROBERTA = {"pre-norm": ["network.norm.place=pre"], "another bend": ["network.activation=relu"],
               "counted filling": ["network.position.counts=places"], "no offset": ["network.position.offset=1"],
               "shared": ["network.sharing=all"], "shared in part": ["network.sharing=feedforward"],
               "next sentence": ["corpus.packing=segment_pair", "objective.next_sentence.random=0.5"]}


@pytest.mark.parametrize("changes", NOT_ROBERTA.values(), ids=NOT_ROBERTA)
def test_what_is_not_roberta_is_saved_under_our_own_name(tmp_path, changes):
    small = ["network.width=24", "network.heads=2", "network.feedforward=96"]
    model = stemma.build("roberta@tiny", 40, [*small, *changes])
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    again = stemma.load(tmp_path / "m")
    ids = torch.arange(40)[None]
    assert_close(model.logits(ids), again.logits(ids))
    assert again.recipe == model.recipe


# --- with its tokenizer -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs_folder(tmp_path_factory, text_file):
    """As published: a vocabulary with the mask at its end, and merges."""
    folder = tmp_path_factory.mktemp("roberta")
    reference.write_byte_pairs(folder, text_file)
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    return folder


@pytest.mark.parametrize("layout", ["slow", "fast"])
def test_their_tokenizer_gives_the_same_ids(tmp_path, theirs_folder, layout):
    theirs = transformers.AutoTokenizer.from_pretrained(theirs_folder)
    theirs.save_pretrained(tmp_path)
    ours = Tokenizer.load(theirs_folder if layout == "slow" else tmp_path)
    assert [ours.encode(line).ids for line in LINES] == [theirs(line)["input_ids"] for line in LINES]
    pairs = zip(LINES, reversed(LINES), strict=True)
    assert all(ours.encode(*pair).ids == theirs(*pair)["input_ids"] for pair in pairs)
    assert ours.special_token_ids["padding"] == 1 and ours.special_token_ids["mask"] == ours.vocab_size - 1


def saved(folder, kind: str, text: str) -> stemma.Model:
    tokenizer = train_tokenizer(iter([text]), kind, 320, lowercase=False, roles={"start", "separator", "mask"})
    model = stemma.build("roberta@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, folder)
    return model


def test_what_transformers_needs_is_there(tmp_path, text_file):
    model = saved(tmp_path / "m", "byte_bpe", text_file.read_text())
    assert config_of(tmp_path / "m")["pad_token_id"] == 1
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    start, end = model.tokenizer.special_id("start"), model.tokenizer.special_id("separator")
    for line in LINES:
        assert tokens(line)["input_ids"] == [start, *model.tokenizer.encode(line, special=False).ids, end]
    first, second = (tokens(line)["input_ids"] for line in LINES[:2])
    assert tokens(*LINES[:2])["input_ids"] == [*first, end, *second[1:]]
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m").eval()
    for side in ("right", "left"):
        given = tokens(LINES, padding=True, padding_side=side, return_tensors="pt")
        real = given["attention_mask"].bool()
        assert not real.all() and "token_type_ids" not in given
        with torch.no_grad():
            expected = theirs(**given).logits[real]
        torch.testing.assert_close(model.logits(**given)[real], expected, atol=1e-4, rtol=0)


def test_another_padding_token_makes_it_no_roberta(tmp_path, text_file):
    """Over there its number says where places begin: [PAD] is 0, and the table has two rows before the first place."""
    model = saved(tmp_path / "m", "wordpiece", text_file.read_text())
    assert model.tokenizer.special_id("padding") == 0
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    ids = torch.arange(30)[None]
    assert_close(stemma.load(tmp_path / "m").logits(ids), model.logits(ids))
