"""`stemma pairs`: JSON, tables, kinds of models, revisions of a run, errors."""

from __future__ import annotations

import json

import pytest
import torch
from parity.reference import perturb

import stemma
from stemma.cli import main
from stemma.text.train_tokenizer import train_tokenizer
from stemma.training.pretrain import pretrain

TEXT = "the old clerk reads a letter. the young readers forget the river. one missing leaf by the window. " * 20
SMALL = ["network.layers=1", "network.width=16", "network.heads=2", "network.feedforward=24",
         "corpus.sequence_length=32"]
TRAINING = ["training.batch_size=4", "training.warmup_steps=1", "training.threads=1"]
AGREEMENT = [("the old clerk reads a letter.", "the old clerk read a letter."), ("the river", "river the"),
             ("a letter", "a letter")]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two phenomena of one field and one without a field, in three files; the last pair of each is a tie."""
    folder = tmp_path_factory.mktemp("pairs")
    for name, keys in (("agreement", {"field": "morphology", "linguistics_term": "subject_verb", "UID": "agree"}),
                       ("gaps", {"field": "morphology"}), ("supplement", {})):
        (folder / f"{name}.jsonl").write_text("".join(
            json.dumps({"sentence_good": good, "sentence_bad": bad, **keys}) + "\n" for good, bad in AGREEMENT))
    return folder


def saved_model(folder, name: str, *changes: str):
    tokenizer = train_tokenizer(iter([TEXT]), "wordpiece", 160, lowercase=True,
                                roles={"mask", "start", "separator", "end", "padding", "sentinel"})
    torch.manual_seed(1)
    built = stemma.build(f"{name}@tiny", tokenizer.vocab_size, [*SMALL, *changes])
    perturb(built.network, 0)
    built.tokenizer = tokenizer
    stemma.save(built, folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("model") / "gpt2", "gpt2")


def run(*words: object) -> int:
    return main([str(word) for word in words])


def json_output(capsys, *words: object) -> dict:
    assert run(*words, "--json") == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def test_the_json_object_has_accuracies_by_phenomenon_term_and_field(model, data, capsys):
    result = json_output(capsys, "pairs", model, data)
    same = {key: result[key] for key in ("seconds", "sentences_per_second")}
    assert result == {**stemma.pairs(model, data), **same}
    assert (result["model"], result["data"]) == (str(model), str(data))
    assert stemma.pairs(stemma.load(model), data)["model"] == "gpt2@tiny"
    assert result["phenomena"].keys() == {"agree", "gaps", "supplement"} == result["details"].keys()
    assert result["accuracy"] == pytest.approx(sum(result["phenomena"].values()) / 3)
    assert result["fields"].keys() == {"morphology"} and result["terms"].keys() == {"subject_verb"}
    assert (result["pairs"], result["ties"], result["sentences"], result["chance"]) == (9, 3, 5, 0.5)
    assert result["details"]["agree"] == {**result["details"]["agree"], "pairs": 3, "ties": 1, "field": "morphology",
                                          "term": "subject_verb"}
    low, high = result["interval"]
    assert 0 <= low < result["accuracy"] < high <= 1 and result["scoring"] == "causal"
    limited = json_output(capsys, "pairs", model, data, "--limit", 2, "--scoring", "after_first")
    assert (limited["pairs"], limited["ties"], limited["scoring"]) == (6, 0, "after_first")


def test_the_table_has_a_row_for_each_phenomenon_then_fields_and_the_mean(model, data, capsys):
    result = json_output(capsys, "pairs", model, data)
    assert run("pairs", model, data) == 0
    captured = capsys.readouterr()
    lines = [line.split("  ")[0].strip() for line in captured.out.splitlines()]
    assert lines[:6] == ["phenomenon", "agree", "gaps", "supplement", "field morphology", "mean of phenomena"]
    mean = captured.out.splitlines()[5]
    assert f"{result['accuracy']:.1%}" in mean and f"{result['interval'][0]:.1%} to" in mean and mean.split()[-2:] == \
        ["9", "3"]
    assert "chance level 50.0% · scoring causal · 5 sentences in" in captured.out and captured.err == ""
    assert run("pairs", model, data / "gaps.jsonl") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("gaps") and "chance level" in lines[2] and len(lines) == 3


@pytest.mark.parametrize(("name", "changes", "kind"), [
    ("t5", ["network.decoder.layers=1"], "infilling"), ("mdlm", [], "masked"), ("gpt-bert", [], "masked"),
    ("modernbert", [], "masked"), ("nanochat", [], "causal")])
def test_models_of_every_kind_are_scored(name, changes, kind, data, tmp_path, capsys):
    result = json_output(capsys, "pairs", saved_model(tmp_path / name, name, *changes), data)
    assert result["scoring"] == kind and result["ties"] == 3 and 0 < result["accuracy"] < 1


def test_the_bound_of_a_diffusion_model_and_both_sides_of_a_hybrid(data, tmp_path, capsys):
    mdlm, hybrid = saved_model(tmp_path / "mdlm", "mdlm"), saved_model(tmp_path / "hybrid", "gpt-bert")
    assert json_output(capsys, "pairs", mdlm, data, "--scoring", "bound")["scoring"] == "bound"
    assert json_output(capsys, "pairs", hybrid, data, "--scoring", "causal")["scoring"] == "causal"


def test_an_ngram_model_is_scored_from_its_counts(corpus_folder, data, tmp_path, capsys):
    pretrain("ngram", corpus_folder, tmp_path / "run")
    result = json_output(capsys, "pairs", tmp_path / "run", data)
    assert result["scoring"] == "causal" and result["ties"] >= 3
    word_order = stemma.load(tmp_path / "run").score([" river", " by"], after="the old clerk reads a letter by the")
    assert word_order[0].log_probability > word_order[1].log_probability


@pytest.mark.parametrize("name", ["gpt2", "modernbert"])
def test_the_revisions_of_a_run_are_rows_over_the_words_read(name, corpus_folder, data, tmp_path, capsys):
    folder = tmp_path / "run"
    words = pretrain(f"{name}@tiny", corpus_folder, folder, steps=4, checkpoint_words="20,200",
                     changes=[*SMALL, *TRAINING, "training.learning_rate=0.02"])["words"]
    result = json_output(capsys, "pairs", folder, data, "--revisions")
    assert [(row["revision"], row["words"]) for row in result["revisions"]] == \
        [("words-20", 20), ("words-200", 200), ("model", words)]
    for row, at in zip(result["revisions"], ("revisions/words-20", "revisions/words-200", "model"), strict=True):
        alone = json_output(capsys, "pairs", folder / at, data)
        assert {key: alone[key] for key in ("accuracy", "interval", "ties", "phenomena", "fields")} == \
            {key: row[key] for key in row if key not in ("revision", "words")}
    assert result["accuracy"] == result["revisions"][-1]["accuracy"]
    assert run("pairs", folder, data, "--revisions") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["revision", "words", "accuracy", "95%", "interval", "morphology"]
    assert [line.split()[:2] for line in lines[1:4]] == [["words-20", "20"], ["words-200", "200"],
                                                         ["model", f"{words:,}"]]
    assert lines[5] == "phenomena of the last row (model):" and lines[6].startswith("phenomenon")


def error_message(capsys, *words: object) -> str:
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    return captured.err


def test_errors_say_what_where_and_what_to_do(model, data, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"sentence_good": "a"}\nno json\n')
    assert "no such file or folder" in error_message(capsys, "pairs", model, tmp_path / "nothing")
    assert "the folder has no text files" in error_message(capsys, "pairs", model, tmp_path / "empty")
    message = error_message(capsys, "pairs", model, broken)
    assert "has 2 lines that cannot be read as minimal pairs, such as {" in message
    assert f"{broken}, line 1" in message and "has no sentence_bad" in message
    assert "line 2" in message and "is not JSON" in message
    assert 'has no scoring "masked"; it has causal, after_first.' in \
        error_message(capsys, "pairs", model, data, "--scoring", "masked")
    assert "has no revisions; `stemma pretrain ... --checkpoint-words 1M,2M` saves some." in \
        error_message(capsys, "pairs", model, data, "--revisions")
    assert "--limit" in error_message(capsys, "pairs", model, data, "--limit", 0)
    assert run("pairs", model, tmp_path / "nothing", "--json") == 2
    assert "no such file or folder" in json.loads(capsys.readouterr().out)["error"]
    electra = saved_model(tmp_path / "electra", "electra")
    assert "discriminator, which has no likelihood" in error_message(capsys, "pairs", electra, data)
    assert json_output(capsys, "pairs", electra / "generator", data)["scoring"] == "masked"
