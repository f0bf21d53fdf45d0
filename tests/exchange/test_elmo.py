"""ELMo's released files: a small model in their layout, made here, against the literal transcription."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
import torch

import stemma
from stemma.errors import UserError
from stemma.exchange.elmo import from_published, layout
from stemma.exchange.save import save
from stemma.network.inputs import characters
from stemma.tasks.runs.finetune import TaskArguments, finetune
from tests.closeness import assert_close
from tests.literal import elmo as literal

h5py = pytest.importorskip("h5py")

OPTIONS = {"lstm": {"cell_clip": 0.3, "use_skip_connections": True, "n_layers": 2, "proj_clip": 0.3,
                    "projection_dim": 6, "dim": 10},
           "char_cnn": {"embedding": {"dim": 3}, "filters": [[1, 4], [2, 5], [3, 7]], "n_highway": 2,
                        "n_characters": 262, "max_characters_per_token": 12, "activation": "relu"}}


def write_options(folder, changes=()):
    options = json.loads(json.dumps(OPTIONS))
    for section, key, value in changes:
        if value is None:
            del options[section][key]
        else:
            options[section][key] = value
    folder.mkdir(exist_ok=True)
    (folder / "small_options.json").write_text(json.dumps(options))
    return folder


SHAPES = {"char_embed": (261, 3), "CNN_proj/W_proj": (16, 6), "CNN_proj/b_proj": (6,),
          **{f"CNN/W_cnn_{index}": (1, span, 3, count) for index, (span, count) in enumerate([(1, 4), (2, 5), (3, 7)])},
          **{f"CNN/b_cnn_{index}": (count,) for index, count in enumerate([4, 5, 7])},
          **{f"CNN_high_{layer}/{kind}_{name}": (16, 16) if kind == "W" else (16,) for layer in range(2)
             for kind in "Wb" for name in ("carry", "transform")},
          **{f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{name}": shape for direction in range(2)
             for layer in range(2) for name, shape in (("W_0", (12, 40)), ("B", (40,)), ("W_P_0", (10, 6)))}}


def random_weights(seed=0):
    generator = np.random.default_rng(seed)
    return {name: generator.normal(0, 0.6, shape).astype("float32") for name, shape in SHAPES.items()}


def write_weights(folder, weights):
    with h5py.File(folder / "small_weights.hdf5", "w") as file:
        for name, array in weights.items():
            file[name] = array


@pytest.fixture
def folder(tmp_path):
    write_weights(write_options(tmp_path / "elmo"), random_weights())
    return tmp_path / "elmo"


SENTENCES = (["The", "cats", "sat", "."], ["a"], ["extraordinarily", "naïve", "ones", ",", "苹"])


def spelled_stream(model, words):
    """The network's input for a sentence between the tokens for its beginning and its end."""
    ids = torch.tensor([model.tokenizer.with_template("begin A end", "begin A end B end").encode(" ".join(words)).ids])
    assert ids.shape[1] == len(words) + 2
    spelled = model.recipe.settings.network.inputs["characters"].from_texts(model.tokenizer, ids[0].numpy(),
                                                                            ["", *words, ""])
    return model.encoder_stream(ids, inputs={"characters": spelled[None]})


@pytest.mark.parametrize(("seed", "words"), [(0, SENTENCES[0]), (1, SENTENCES[1]), (2, SENTENCES[2])])
def test_the_files_give_the_hidden_states_of_the_literal_model(tmp_path, seed, words):
    weights = random_weights(seed)
    write_weights(write_options(tmp_path / "elmo"), weights)
    model = stemma.load(tmp_path / "elmo")
    exact = {name: torch.from_numpy(array).double() for name, array in weights.items()}
    expected = literal.layers_of(["<S>", *words, "</S>"], exact, 2, 12, clip=0.3)
    with torch.no_grad():
        output = model.network({"encoder": spelled_stream(model, words)}, keep_hidden_states=True)
    for layer, states in zip(expected, output.hidden_states["encoder"], strict=True):
        assert_close(states[0].double(), torch.stack(layer), 1e-5)
    unclipped = literal.layers_of(["<S>", *words, "</S>"], exact, 2, 12, clip=100.0)
    assert not torch.allclose(torch.stack(unclipped[2]), torch.stack(expected[2]), atol=1e-2)  # the clip matters


def test_the_gradients_are_those_of_the_literal_model(folder):
    model = stemma.load(folder)
    exact = {name: torch.from_numpy(array).double().requires_grad_() for name, array in random_weights().items()}
    factors = torch.randn(3, 6, 12, generator=torch.Generator().manual_seed(1))
    layers = literal.layers_of(["<S>", *SENTENCES[0], "</S>"], exact, 2, 12, clip=0.3)
    sum((torch.stack(layer) * factor).sum() for layer, factor in zip(layers, factors.double(), strict=True)).backward()
    output = model.network({"encoder": spelled_stream(model, SENTENCES[0])}, keep_hidden_states=True)
    sum((layer[0] * factor).sum() for layer, factor in
        zip(output.hidden_states["encoder"], factors, strict=True)).backward()
    zeros = {name: np.zeros(shape, "float32") for name, shape in SHAPES.items()}
    gradients = {name: tensor.grad.float().numpy() for name, tensor in exact.items()}
    offsets, expected = (from_published(arrays, model.recipe) for arrays in (zeros, gradients))  # it is affine
    for name, parameter in model.network.named_parameters():
        assert_close(parameter.grad, expected[name] - offsets[name])
        assert parameter.grad.abs().max() > 1e-3, name


def test_the_layout_of_the_original_sizes_has_the_published_number_of_parameters():
    shapes = layout(stemma.recipe("elmo"))
    assert sum(math.prod(shape) for shape in shapes.values()) == 93_600_848
    assert shapes["RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_0"] == (1024, 16384)


def test_a_loaded_model_embeds_text_and_is_saved_as_our_own(folder, tmp_path):
    model = stemma.load(folder)
    texts = ["The cats sat .", "a dog", "The cats sat . The end"]
    vectors = stemma.embed(model, texts)
    with torch.no_grad():
        alone = model.network({"encoder": spelled_stream(model, texts[0].split())})["encoder"][0]
    assert_close(vectors[0], alone.mean(0).numpy())
    save(model, tmp_path / "saved")
    assert_close(stemma.embed(stemma.load(tmp_path / "saved"), texts), vectors)
    other = stemma.embed(model, ["The bats sat ."])
    assert np.abs(other[0] - vectors[0]).max() > 1e-3  # words outside of the vocabulary differ


def test_a_learned_mix_of_the_layers_serves_a_task(folder, tmp_path):
    rows = "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in [("a a a", 0), ("苹 苹 苹", 1)] * 4)
    (tmp_path / "rows.tsv").write_text(rows)
    before = {name: tensor.clone() for name, tensor in stemma.load(folder).network.state_dict().items()}
    files = {"train": tmp_path / "rows.tsv", "dev": tmp_path / "rows.tsv"}
    finetune(TaskArguments("classify", files, features="all"), folder, tmp_path / "tuned", steps=60,
             changes=["training.learning_rate=3e-2"])
    tuned = stemma.load(tmp_path / "tuned")
    assert [answer["label"] for answer in tuned.predict(["a a", "苹 苹"])] == ["0", "1"]
    state = tuned.network.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())  # frozen
    mixed = literal.mix([torch.ones(1, 2) * number for number in (1, 10, 100)], torch.tensor([0.3, -1.0, 2.0]), 1.7)
    head = tuned.network.head("task")
    assert head.shares.abs().max() > 0  # learned
    with torch.no_grad():
        head.shares.copy_(torch.tensor([0.3, -1.0, 2.0]))
        head.scale.fill_(1.7)
        assert_close(head.mix_layers([torch.ones(1, 1, 2) * number for number in (1, 10, 100)])[0, 0], mixed[0])


def error_of(folder):
    with pytest.raises(UserError) as caught:
        stemma.load(folder)
    return str(caught.value)


def test_an_options_file_that_does_not_fit_its_weights_is_refused(folder, tmp_path):
    message = error_of(write_options(folder, [("lstm", "dim", 11)]))
    assert "do not fit small_options.json" in message and "W_P_0" in message and "10x6 and should be 11x6" in message
    message = error_of(write_options(folder, [("lstm", "n_layers", 3)]))
    assert "small_weights.hdf5 has no RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0 and 5 more arrays" in message
    assert 'has the activation "tanh"' in error_of(write_options(folder, [("char_cnn", "activation", "tanh")]))
    assert "is not the options file of an ELMo: KeyError at 'dim'" in error_of(write_options(folder,
                                                                                             [("lstm", "dim", None)]))
    (folder / "small_options.json").write_text('{"lstm": {"dim": 3}}')
    assert 'has no "char_cnn"' in error_of(folder)
    write_options(folder)
    (folder / "small_weights.hdf5").write_bytes(b"no HDF5")
    assert "is no readable HDF5 file" in error_of(folder)
    (folder / "small_weights.hdf5").unlink()
    assert "must hold one file *options.json and one file *weights.hdf5" in error_of(folder)
    write_weights(folder, {**random_weights(), "CNN_proj/b_proj": np.full(6, np.nan, "float32")})
    assert "not finite in CNN_proj/b_proj" in error_of(folder)


def test_a_word_that_is_too_long_is_cut_with_a_warning(folder, caplog, monkeypatch):
    monkeypatch.setattr(characters, "_warned", set())
    model = stemma.load(folder)
    vectors = stemma.embed(model, ["a", "extraordinarily", "extraordinary"])
    assert np.array_equal(vectors[1], vectors[2])  # the first ten bytes are the same
    (message,) = [record.message for record in caplog.records if "bytes" in record.message]
    assert message == ('the word "extraordinarily" has 15 bytes, and the network reads the first 10 of a word: such '
                       "words are cut.")


def test_a_missing_h5py_is_reported_with_the_install_command(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert 'needs h5py: pip install "stemma-lm[elmo]"' in error_of(folder)


def test_any_layer_can_be_embedded(folder):
    model = stemma.load(folder)
    with torch.no_grad():
        output = model.network({"encoder": spelled_stream(model, SENTENCES[0])}, keep_hidden_states=True)
    for layer in range(3):
        expected = output.all_hidden_states("encoder")[layer][0].mean(0)
        for number in (layer, layer - 3):
            assert_close(stemma.embed(model, [" ".join(SENTENCES[0])], layer=number)[0], expected.numpy())
    with pytest.raises(UserError, match="has the layers 0 .the embedding. to 2"):
        stemma.embed(model, ["a"], layer=3)
