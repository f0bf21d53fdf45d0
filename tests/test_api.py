"""The Python API: `import stemma` and its functions, models and recipes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from toy_tasks import save_model, write_sets

import stemma
from stemma import cli
from stemma.model import Model as LoadedModel

CHANGES = ["network.width=24", "network.layers=1", "network.feedforward=20"]


@pytest.fixture(scope="module")
def run(tmp_path_factory, corpus_folder):
    folder = tmp_path_factory.mktemp("api") / "run"
    result = stemma.pretrain(stemma.recipe("bert@tiny", [*CHANGES, "training.batch_size=4", "training.threads=1"]),
                             corpus=str(corpus_folder), out=str(folder), steps=2)
    assert result["run"] == str(folder) and result["steps"] == 2
    return folder


def test_importing_stemma_does_not_import_torch_or_numpy():
    code = ("import sys, stemma; heavy = {'torch', 'tokenizers', 'pydantic', 'numpy'} & set(sys.modules); "
            "assert not heavy, heavy; stemma.recipe('bert'); assert 'torch' not in sys.modules")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


def test_every_public_name_resolves():
    for name in stemma.__all__:
        assert getattr(stemma, name) is not None
    with pytest.raises(AttributeError, match="lode"):
        _ = stemma.lode


def test_dir_lists_all_public_names_before_they_are_imported():
    code = ("import sys, stemma; missing = set(stemma.__all__) - set(dir(stemma)); assert not missing, missing; "
            "assert 'torch' not in sys.modules and '__version__' in dir(stemma)")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


def test_every_verb_has_a_function_of_the_same_name():
    """The function of a verb in a group has the name of the group too: `corpus build` is build_corpus."""
    grouped = {"tokenizer": {"train": "train_tokenizer", "info": None}, "claims": {"show": None, "run": None},
               "corpus": {"build": "build_corpus", "annotate": "annotate", "info": None}}
    command = cli._build_command()
    expected = {name for name in command.commands if name not in grouped}
    for group, functions in grouped.items():
        assert command.commands[group].commands.keys() == functions.keys()  # a new verb needs an entry here
        expected |= {function for function in functions.values() if function is not None}
    assert expected <= set(dir(stemma))
    for name in expected:
        function = getattr(stemma, name)
        assert callable(function) and len(function.__doc__) > 40, name


def test_a_model_has_a_documented_method_for_each_verb_of_inference():
    for name in ("fill", "generate", "stream", "embed", "score", "predict", "translate"):
        assert getattr(stemma.Model, name).__doc__, name
    assert issubclass(stemma.Model, LoadedModel)


def test_methods_of_a_model_equal_the_functions(run):
    model = stemma.load(run)
    text = "the old [MASK] reads the letter"
    assert model.fill(text, top=3) == stemma.fill(model, text, 3)
    vectors = model.embed(["the old clerk", "a letter"], normalize=True)
    assert vectors.shape == (2, 24) and (vectors == stemma.embed(run, ["the old clerk", "a letter"],
                                                                 normalize=True)).all()
    assert model.embed("a letter").shape == (1, 24)
    with pytest.raises(stemma.UserError, match="cannot continue a prompt"):
        model.generate("the old clerk")
    with pytest.raises(stemma.UserError, match="a text has no probability under it"):
        model.score("the old clerk")
    with pytest.raises(stemma.UserError, match="answers no task"):
        model.predict("the old clerk")
    with pytest.raises(stemma.UserError, match="reads a text and does not generate one"):
        model.translate("the old clerk")


def test_a_language_model_generates_streams_and_scores(tmp_path):
    model = stemma.load(save_model(tmp_path / "gpt2", "gpt2@tiny"))
    options = {"tokens": 12, "seed": 3}
    (completion,) = model.generate("the old clerk", **options)
    assert completion == stemma.generate(model, "the old clerk", **options)[0]
    assert "".join(model.stream("the old clerk", **options)) == completion.text
    first, second = model.score([" reads a letter", " river"], after="the old clerk")
    assert first.num_tokens > second.num_tokens and first.log_probability < 0
    assert model.score(" river", after=["the old clerk"])[0].log_probability == pytest.approx(second.log_probability,
                                                                                             abs=1e-4)
    assert model.score("the old clerk reads")[0].num_tokens == len(model.tokenizer.encode("the old clerk reads",
                                                                                      special=False).ids)
    (tmp_path / "text.txt").write_text("the old clerk reads the letter by the river.\n")
    result = stemma.perplexity(model, tmp_path / "text.txt", length=16)
    assert result["perplexity"] == stemma.perplexity(tmp_path / "gpt2", str(tmp_path / "text.txt"),
                                                    length=16)["perplexity"] > 1


def test_a_fine_tuned_model_predicts_from_files_rows_and_texts(tmp_path):
    start, files = save_model(tmp_path / "bert"), write_sets(tmp_path, "classify", train=16, dev=8)
    result = stemma.finetune("classify", start, files["train"], files["dev"], tmp_path / "tuned", steps=2)
    assert result["metrics"]["dev"]["examples"] == 8
    model = stemma.load(tmp_path / "tuned")
    dev_rows = [json.loads(line) for line in files["dev"].read_text().splitlines()]
    from_file = stemma.predict(model, files["dev"])
    assert [answer["text"] for answer in from_file] == [row["text"] for row in dev_rows]
    for rows in (dev_rows, [row["text"] for row in dev_rows], [dev_rows[0], *(row["text"] for row in dev_rows[1:])]):
        answers = model.predict(rows)
        assert [answer["label"] for answer in answers] == [answer["label"] for answer in from_file]
        assert [answer["text"] for answer in answers] == [row["text"] for row in dev_rows]
        assert [answer["scores"] for answer in answers] == [pytest.approx(answer["scores"], abs=1e-4)
                                                         for answer in from_file]
    (single,) = model.predict(dev_rows[0]["text"])
    assert single["label"] == from_file[0]["label"]
    evaluation = stemma.evaluate(tmp_path / "tuned", files["dev"])
    assert evaluation["metrics"]["test"]["accuracy"] == result["metrics"]["dev"]["accuracy"]
    assert len(evaluation["predictions"]) == 8
    for invalid, error in (([], "there is no row to answer"), (["a text", " "], "the rows, line 2 has no text")):
        with pytest.raises(stemma.UserError, match=error):
            model.predict(invalid)


def test_a_model_and_a_recipe_print_as_one_short_line(run):
    model = stemma.build("bert@tiny", 320, CHANGES)
    assert repr(model) == "<Model bert@tiny: 0.0 M parameters, 320 tokens, no tokenizer>"
    assert repr(stemma.build("bert@tiny")) == "<Model bert@tiny: 4.4 M parameters, 30,522 tokens, no tokenizer>"
    assert "no tokenizer" not in repr(stemma.load(run)) and repr(stemma.load(run)).startswith("<Model bert@tiny: ")
    assert repr(stemma.recipe("bert@base")) == "<Recipe bert@base: BERT (2018), child of transformer>"
    assert repr(model.recipe) == "<Recipe bert@tiny: BERT (2018), child of transformer, 3 changes>"


@pytest.mark.parametrize("inner", ["", "model"])
def test_a_run_folder_and_its_model_folder_load(run, inner, tokenizer_folder):
    model = stemma.load(run / inner)
    assert isinstance(model, stemma.Model)
    assert model.recipe.label == "bert@tiny"
    assert model.recipe.origin["network.width"] == "command line"
    assert model.recipe.settings.tokenizer.vocab_size == model.network.vocab_size == model.tokenizer.vocab_size
    assert not model.network.training and next(model.network.parameters()).dtype == torch.float32
    assert str(stemma.load(str(run)).recipe) == str(model.recipe)


def test_hidden_states_and_logits_ignore_padding_and_use_token_types(run):
    model = stemma.load(run)
    ids = torch.randint(model.network.vocab_size, (3, 17))
    mask = torch.ones_like(ids)
    hidden, logits = model.hidden(ids), model.logits(ids, attention_mask=mask, token_type_ids=torch.zeros_like(ids))
    assert hidden.shape == (3, 17, 24) and logits.shape == (3, 17, model.network.vocab_size)
    torch.testing.assert_close(model.hidden(ids, mask), hidden)
    mask[0, 9:] = 0
    masked = model.hidden(ids, mask)
    torch.testing.assert_close(masked[0, :9], model.hidden(ids[:1, :9])[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(masked[1:], hidden[1:], atol=1e-5, rtol=1e-5)
    second = model.hidden(ids, token_type_ids=torch.ones_like(ids))
    assert (second - hidden).abs().max() > 1e-3


@pytest.mark.parametrize(("inputs", "error"), [
    ({"input_ids": torch.zeros(1, 513, dtype=torch.long)}, "513 tokens long and bert@tiny reads at most 512"),
    ({"input_ids": torch.tensor([[5, 100_000]])}, "between 5 and 100000, and this network knows those below"),
    ({"input_ids": torch.tensor([[-1, 3]])}, "between -1 and 3"),
    ({"input_ids": torch.tensor([[4, 3]]), "token_type_ids": torch.tensor([[0, 2]])}, "go up to 2, .*2 segments"),
])
def test_input_that_does_not_fit_the_network_is_rejected(run, inputs, error):
    with pytest.raises(stemma.UserError, match=error):
        stemma.load(run).hidden(**inputs)


def test_an_input_of_the_maximum_length_is_accepted(run):
    assert stemma.load(run).hidden(torch.zeros(1, 512, dtype=torch.long)).shape == (1, 512, 24)


def test_build_is_random_and_follows_the_seed():
    torch.manual_seed(3)
    first, second = (stemma.build("bert@tiny", 50, CHANGES).network.state_dict() for _ in range(2))
    torch.manual_seed(3)
    again = stemma.build("bert@tiny", 50, CHANGES).network.state_dict()
    name = "embedding.tokens.weight"
    assert torch.equal(first[name], again[name]) and not torch.equal(first[name], second[name])


def test_build_takes_a_vocabulary_size_and_records_its_origin():
    model = stemma.build("bert@tiny", vocab_size=1000)
    assert model.network.vocab_size == model.recipe.settings.tokenizer.vocab_size == 1000
    assert model.recipe.origin["tokenizer.vocab_size"] == "vocab_size"
    assert model.tokenizer is None and not model.network.training
    with torch.device("meta"):
        assert stemma.build(stemma.recipe("bert@tiny")).network.vocab_size == 30_522
    with pytest.raises(stemma.UserError, match="tokenizer.vocab_size"):
        stemma.build("bert@tiny", vocab_size=0)


def test_parameters_are_counted_with_and_without_heads():
    model = stemma.build("bert@tiny", 50, CHANGES)
    stored = sum(tensor.numel() for tensor in model.network.state_dict().values())
    head = sum(tensor.numel() for name, tensor in model.network.state_dict().items()
               if name.startswith(("heads.vocabulary", "heads.next_sentence")))
    assert model.parameter_count() == stored  # the tied matrix once
    assert model.parameter_count(heads=False) == stored - head


def test_a_recipe_has_its_parent_origins_and_changes():
    recipe = stemma.recipe("bert@base")
    assert (recipe.name, recipe.size, recipe.parent) == ("bert", "base", "transformer")
    assert recipe.origin["objective.masked_lm.rate"] == "bert"
    assert recipe.origin["network.norm.placement"] == "transformer"
    changes = {change.key: (change.before, change.after) for change in recipe.diff("transformer")}
    assert changes["network.activation"] == ("relu", "gelu")
    assert changes["network.decoder"][1] is None
    assert recipe.diff("bert@base") == []
    assert stemma.recipe("bert").label == "bert@base"


def test_a_loaded_model_is_saved_to_the_same_bytes(run, tmp_path):
    model = stemma.load(run)
    stemma.save(model, tmp_path / "copy")
    for name in ("model.safetensors", "config.json", "tokenizer.json", "recipe.toml"):
        assert (tmp_path / "copy" / name).read_bytes() == (run / "model" / name).read_bytes()


def test_unknown_names_are_user_errors_with_a_suggestion():
    for call, error in ((lambda: stemma.recipe("brt"), 'no recipe "brt". Did you mean "bert"'),
                       (lambda: stemma.build("bert@tinny"), 'no size "tinny"'),
                       (lambda: stemma.load("no-such-folder"), "there is no model at no-such-folder")):
        with pytest.raises(stemma.UserError, match=error):
            call()
