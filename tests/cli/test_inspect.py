import json

import pytest
from making import pieced_corpus

from stemma.cli import main
from stemma.corpus.shards import Corpus
from stemma.training.inspect import GRID

FIELDS = {"original", "input", "targets", "words", "segments", "labels"}


@pytest.fixture(scope="module")
def pieced(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


def looked(capsys, *arguments: str) -> dict:
    assert main(["inspect", *arguments, "--json"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    return json.loads(printed)


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("packing", ["segment_pair", "full_sentences"])
def test_json_has_the_fields_of_the_contract_and_they_fit_together(capsys, pieced, unit, packing):
    changes = [f"objective.masked_lm.unit={unit}", f"corpus.packing={packing}", "corpus.sequence_length=64"]
    changes += ["remove=objective.next_sentence"] if packing == "full_sentences" else []
    result = looked(capsys, "bert@tiny", "--corpus", str(pieced.path), "--examples", "20", *changes)
    assert len(result["examples"]) == 20
    special = set(pieced.tokenizer.tokens(pieced.tokenizer.special_ids))
    replaced = 0
    for example in result["examples"]:
        assert example.keys() >= FIELDS
        length = len(example["original"])
        assert length == len(example["input"]) == len(example["segments"]) <= 64
        # words: spans in order that cover the text and nothing else
        covered = [place for start, stop in example["words"] for place in range(start, stop)]
        assert all(stop > start for start, stop in example["words"])
        assert covered == [place for place, token in enumerate(example["original"]) if token not in special]
        for start, stop in example["words"]:
            tokens = example["original"][start:stop]
            assert all(token.startswith("##") for token in tokens[1:])
        # targets: the original token at each place, and changes nowhere else
        wanted = {target["position"]: target["token"] for target in example["targets"]}
        assert wanted and set(wanted) <= set(covered)
        for place in range(length):
            if place in wanted:
                assert wanted[place] == example["original"][place]
                replaced += example["input"][place] not in ("[MASK]", wanted[place])
            else:
                assert example["input"][place] == example["original"][place]
        if unit == "word":
            assert all({start + n in wanted for n in range(stop - start)} in ({True}, {False})
                       for start, stop in example["words"])
        separators = example["original"].count("[SEP]")
        assert example["original"][0] == "[CLS]" and example["original"][-1] == "[SEP]"
        if packing == "segment_pair":
            assert separators == 2 and set(example["segments"]) == {0, 1}
            assert example["labels"].keys() == {"next_sentence"}
            assert example["labels"]["next_sentence"] in (0, 1)
        else:
            assert set(example["segments"]) == {0} and example["labels"] == {}
    assert replaced


def test_the_step_and_the_seed_choose_the_batch(capsys, corpus_folder):
    given = ["bert@tiny", "--corpus", str(corpus_folder)]
    first = looked(capsys, *given)
    assert looked(capsys, *given) == first
    assert looked(capsys, *given, "--step", "1")["examples"] != first["examples"]
    assert looked(capsys, *given, "--seed", "1")["examples"] != first["examples"]


def test_raw_text_and_more_examples_than_a_batch_has_rows(capsys, text_file):
    given = ["bert@tiny", "--corpus", str(text_file), "tokenizer.vocab_size=150", "training.batch_size=4"]
    result = looked(capsys, *given, "--examples", "10")
    assert len(result["examples"]) == 10
    assert result["batch"]["rows"] == 4
    assert result["examples"][4:8] == looked(capsys, *given, "--examples", "4", "--step", "1")["examples"]


def test_the_picture_for_people_marks_hidden_replaced_and_kept(capsys, pieced):
    changes = ["objective.masked_lm.mask=0.4", "objective.masked_lm.random=0.3", "corpus.sequence_length=64"]
    given = ["bert@tiny", "--corpus", str(pieced.path), "--examples", "3", *changes]
    examples = looked(capsys, *given)["examples"]
    assert main(["inspect", *given]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    counts = {"hidden": 0, "replaced": 0, "kept": 0}
    for example in examples:
        for target in example["targets"]:
            token, now = target["token"], example["input"][target["position"]]
            if now == "[MASK]":
                mark, kind = "{" + token + "}", "hidden"
            elif now == token:
                mark, kind = "{" + token + "!}", "kept"
            else:
                mark, kind = "{" + f"{token}<-{now}" + "}", "replaced"
            assert mark in printed
            counts[kind] += 1
        assert f"next_sentence = {example['labels']['next_sentence']}" in printed
    assert all(counts.values())
    assert "█" in printed and "‖" in printed


def test_the_visibility_is_drawn(capsys, corpus_folder):
    for example in looked(capsys, "bert@tiny", "--corpus", str(corpus_folder))["examples"]:
        size = min(GRID, len(example["original"]))
        assert example["visibility"] == [[1] * size] * size


@pytest.mark.parametrize(("arguments", "said"), [
    (["brt@tiny", "--corpus", "CORPUS"], 'Did you mean "bert"'),
    (["transformer", "--corpus", "CORPUS"], "no objective"),
    (["bert@tiny", "--corpus", "CORPUS", "corpus.sequence_length=4"], "sequence_length"),
    (["bert@tiny", "--corpus", "no-such-file.txt"], "no-such-file.txt"),
])
def test_bad_input_is_one_sentence(capsys, corpus_folder, arguments, said):
    assert main(["inspect", *(str(corpus_folder) if word == "CORPUS" else word for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and said in error and "Traceback" not in error
