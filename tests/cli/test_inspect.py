"""`stemma inspect`: fields of the JSON output, printed examples and attention masks, tokens of a trained model."""

import json

import pytest
from commands import stemma
from small_corpora import pieced_corpus

from stemma.cli import main
from stemma.corpus.corpus import Corpus
from stemma.training.preview import GRID_POSITIONS

FIELDS = {"original", "input", "targets", "words", "segments", "labels"}


@pytest.fixture(scope="module")
def pieced(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


def inspect_json(capsys, *arguments: str) -> dict:
    assert main(["inspect", *arguments, "--json"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    return json.loads(printed)


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("packing", ["segment_pair", "full_sentences"])
def test_the_json_fields_are_consistent(capsys, pieced, unit, packing):
    changes = [f"objective.masked_lm.unit={unit}", f"corpus.packing={packing}", "corpus.sequence_length=64"]
    changes += ["remove=objective.next_sentence"] if packing == "full_sentences" else []
    result = inspect_json(capsys, "bert@tiny", "--corpus", str(pieced.path), "--examples", "20", *changes)
    assert len(result["examples"]) == 20
    special = set(pieced.tokenizer.ids_to_tokens(pieced.tokenizer.special_ids))
    replaced = 0
    for example in result["examples"]:
        assert example.keys() >= FIELDS
        length = len(example["original"])
        assert length == len(example["input"]) == len(example["segments"]) <= 64
        # words: spans in order that cover the text and nothing else
        covered = [position for start, stop in example["words"] for position in range(start, stop)]
        assert all(stop > start for start, stop in example["words"])
        assert covered == [position for position, token in enumerate(example["original"]) if token not in special]
        for start, stop in example["words"]:
            tokens = example["original"][start:stop]
            assert all(token.startswith("##") for token in tokens[1:])
        # targets: the original tokens; other positions are unchanged
        targets = {target["position"]: target["token"] for target in example["targets"]}
        assert targets and set(targets) <= set(covered)
        for position in range(length):
            if position in targets:
                assert targets[position] == example["original"][position]
                replaced += example["input"][position] not in ("[MASK]", targets[position])
            else:
                assert example["input"][position] == example["original"][position]
        if unit == "word":
            assert all({start + n in targets for n in range(stop - start)} in ({True}, {False})
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


def test_the_step_and_the_seed_determine_the_batch(capsys, corpus_folder):
    arguments = ["bert@tiny", "--corpus", str(corpus_folder)]
    first = inspect_json(capsys, *arguments)
    assert inspect_json(capsys, *arguments) == first
    assert inspect_json(capsys, *arguments, "--step", "1")["examples"] != first["examples"]
    assert inspect_json(capsys, *arguments, "--seed", "1")["examples"] != first["examples"]


def test_examples_beyond_one_batch_come_from_the_next_step(capsys, text_file):
    arguments = ["bert@tiny", "--corpus", str(text_file), "tokenizer.vocab_size=150", "training.batch_size=4"]
    result = inspect_json(capsys, *arguments, "--examples", "10")
    assert len(result["examples"]) == 10
    assert result["batch"]["rows"] == 4
    assert result["examples"][4:8] == inspect_json(capsys, *arguments, "--examples", "4", "--step", "1")["examples"]


def test_the_printed_example_marks_masked_replaced_and_unchanged_tokens(capsys, pieced):
    changes = ["objective.masked_lm.mask=0.4", "objective.masked_lm.random=0.3", "corpus.sequence_length=64"]
    arguments = ["bert@tiny", "--corpus", str(pieced.path), "--examples", "3", *changes]
    examples = inspect_json(capsys, *arguments)["examples"]
    assert main(["inspect", *arguments]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    counts = {"masked": 0, "replaced": 0, "unchanged": 0}
    for example in examples:
        for target in example["targets"]:
            token, input_token = target["token"], example["input"][target["position"]]
            if input_token == "[MASK]":
                mark, kind = "{" + token + "}", "masked"
            elif input_token == token:
                mark, kind = "{" + token + "!}", "unchanged"
            else:
                mark, kind = "{" + f"{token}<-{input_token}" + "}", "replaced"
            assert mark in printed
            counts[kind] += 1
        assert f"next_sentence = {example['labels']['next_sentence']}" in printed
    assert all(counts.values())
    assert "█" in printed and "‖" in printed


def test_the_attention_mask_of_bert_is_bidirectional(capsys, corpus_folder):
    for example in inspect_json(capsys, "bert@tiny", "--corpus", str(corpus_folder))["examples"]:
        size = min(GRID_POSITIONS, len(example["original"]))
        assert example["visibility"] == [[1] * size] * size


def test_a_permuted_example_has_ranks_targets_and_both_attention_masks(capsys, pieced):
    result = inspect_json(capsys, "xlnet@tiny", "--corpus", str(pieced.path), "--examples", "4",
                          "training.batch_size=4", "corpus.sequence_length=36", "objective.permutation_lm.context=3")
    special = set(pieced.tokenizer.ids_to_tokens(pieced.tokenizer.special_ids))
    assert [example["direction"] for example in result["examples"]] == ["forward"] * 2 + ["backward"] * 2
    for example in result["examples"]:
        tokens, order, length = example["original"], example["order"], len(example["original"])
        assert tokens == example["input"] and len(order) == length == 36 and example["past"] == 18
        assert example["guesses"] == "own"
        targets = [target["position"] for target in example["targets"]]
        assert len(targets) == 12
        assert [target["token"] for target in example["targets"]] == [tokens[position] for position in targets]
        content, query = example["visibility"], example["query_visibility"]
        assert len(content) == length and len(query) == len(targets)
        for position in range(length):
            assert content[position] == [int(order[key] <= order[position]) for key in range(length)]
        for position, row in zip(targets, query, strict=True):
            assert row == [int(order[key] <= order[position] and key != position) for key in range(length)]
        ranks = [order[position] for position in range(length) if position in targets or tokens[position] in special]
        assert len(set(ranks)) == len(ranks)
        context = {order[position] for position in range(18)
                   if position not in targets and tokens[position] not in special}
        assert context == {0}


def test_a_causal_example_has_the_next_token_as_target_of_each_position(capsys, pieced):
    for name in ("gpt@tiny", "transformer-xl@tiny"):
        for direction in ("forward", "backward"):
            result = inspect_json(capsys, name, "--corpus", str(pieced.path), "corpus.sequence_length=24",
                                  f"objective.causal_lm.direction={direction}")
            for example in result["examples"]:
                assert example["guesses"] == "next" and example["direction"] == direction and "order" not in example
                tokens = example["input"]
                targets = {target["position"]: target["token"] for target in example["targets"]}
                assert set(targets) == set(range(24))
                assert [targets[position] for position in range(23)] == tokens[1:]
                assert example["visibility"] == [[int(k <= q) for k in range(GRID_POSITIONS)]
                                                 for q in range(GRID_POSITIONS)]


def test_the_printed_permutation_shows_ranks_and_the_query_stream(capsys, pieced):
    arguments = ["xlnet@tiny", "--corpus", str(pieced.path), "--examples", "2", "training.batch_size=2",
             "corpus.sequence_length=36"]
    examples = inspect_json(capsys, *arguments)["examples"]
    assert main(["inspect", *arguments]) == 0
    printed = capsys.readouterr().out
    flat = " ".join(printed.split())
    assert "right to left" in printed and "query stream" in printed and "¦" in printed and "‖" in printed
    for example in examples:
        for target, row in zip(example["targets"], example["query_visibility"], strict=True):
            position = target["position"]
            assert f"{{{target['token']}·{example['order'][position]}}}" in flat
            drawn = "".join("█" if visible else "·" for visible in row[:32])
            assert (f"{drawn}  {target['token']} at {position}" in printed) == (position < 32)
        assert f"{example['input'][-1]}·{example['order'][-1]}" in flat  # special tokens have ranks too


def test_the_printed_causal_example_ends_with_the_last_target(capsys, pieced):
    arguments = ["gpt@tiny", "--corpus", str(pieced.path), "--examples", "1", "corpus.sequence_length=24"]
    (example,) = inspect_json(capsys, *arguments)["examples"]
    assert main(["inspect", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "predicts the next token" in printed
    assert " ".join([*example["input"], "»", example["targets"][-1]["token"]]) in " ".join(printed.split())


@pytest.mark.parametrize(("arguments", "message"), [
    (["brt@tiny", "--corpus", "CORPUS"], 'Did you mean "bert"'),
    (["transformer", "--corpus", "CORPUS", "remove=objective.translation"], "no objective"),
    (["transformer", "--corpus", "CORPUS"], "needs pairs of source and target"),
    (["bert@tiny", "--corpus", "CORPUS", "corpus.sequence_length=4"], "sequence_length"),
    (["bert@tiny", "--corpus", "no-such-file.txt"], "no-such-file.txt"),
    (["xlnet@tiny", "--corpus", "CORPUS", "objective.permutation_lm.context=1"], "2 or more"),
    (["xlnet@tiny", "--corpus", "CORPUS", "corpus.sequence_length=6"], "sequence_length"),
])
def test_bad_input_is_an_error_message(capsys, corpus_folder, arguments, message):
    assert main(["inspect", *(str(corpus_folder) if word == "CORPUS" else word for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and "Traceback" not in error


@pytest.fixture(scope="module")
def adaptive_run(tmp_path_factory, corpus_folder):
    """A Universal Transformer with adaptive computation time, trained for a few steps."""
    run = tmp_path_factory.mktemp("adaptive") / "run"
    done = stemma("pretrain", "universal-transformer@tiny", "--corpus", corpus_folder, "--out", run, "--steps", "3",
                  "network.layers=5", "network.width=32", "network.feedforward=32", "--json")
    assert done.code == 0, done.err
    return run, done.json


def test_ponder_steps_are_logged_and_printed_for_every_token(adaptive_run):
    run, result = adaptive_run
    assert 1 <= result["measures"]["steps"] <= 5
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert lines[0]["measures"]["steps"] >= 1 and lines[0]["losses"]["ponder"] > 0
    done = stemma("inspect", run, "--text", "the old clerk reads a letter", "--json")
    assert done.code == 0, done.err
    tokens = done.json["tokens"]
    assert tokens[0]["token"] == "the" and "probability" not in tokens[0]
    assert all(1 <= entry["steps"] <= 5 and entry["steps"] == round(entry["steps"]) for entry in tokens)
    assert all(0 < entry["probability"] < 1 for entry in tokens[1:])
    shown = stemma("inspect", run, "--text", "the old clerk reads a letter")
    assert shown.code == 0 and "steps ▪" in shown.out and "expected" in shown.out


def test_inspect_refuses_wrong_combinations_of_options(adaptive_run):
    run, _ = adaptive_run
    for arguments, message in ((["bert@tiny"], "needs --corpus"), ([run, "--text", ""], "no text to look at"),
                               ([run, "--text", "a letter", "network.layers=2"], "takes no --corpus and no changes")):
        done = stemma("inspect", *arguments)
        assert done.code == 2 and message in done.err


def side_by_side(printed: str) -> list[tuple[str, str]]:
    """The text of both columns under each heading; the heading gives their positions."""
    columns, middle = [], None
    for line in printed.split("\n"):
        if line.startswith("source") and line.rstrip().endswith("target"):
            middle = line.index("target")
            columns.append(("", ""))
        elif middle is not None and line.strip():
            left, right = columns[-1]
            columns[-1] = (f"{left} {line[:middle]}", f"{right} {line[middle:]}")
        else:
            middle = None
    return [(" ".join(left.split()), " ".join(right.split())) for left, right in columns]


@pytest.mark.parametrize("name", ["mass@tiny", "bart@tiny", "t5@tiny"])
def test_source_and_target_are_printed_side_by_side(capsys, corpus_folder, name):
    arguments = [name, "--corpus", str(corpus_folder), "--examples", "2", "corpus.sequence_length=40"]
    result = inspect_json(capsys, *arguments)
    assert main(["inspect", *arguments]) == 0
    shown = side_by_side(capsys.readouterr().out)
    assert len(shown) == len(result["examples"]) == 2
    for example, (source, target) in zip(result["examples"], shown, strict=True):
        assert example.keys() >= FIELDS | {"decoder_input", "decoder_targets"}
        assert source == " ".join(example["input"]) and target == " ".join(example["decoder_targets"])
        assert example["guesses"] == "next" and example["input"] != example["original"]
        targets = [(target["position"], target["token"]) for target in example["targets"]]
        assert targets == list(enumerate(example["decoder_targets"]))
        assert example["decoder_input"][1:] == example["decoder_targets"][:-1]
    batch = result["batch"]
    assert batch["scored"]["vocabulary"] < batch["tokens"] and 0 <= batch["padding"] < 0.5


def test_the_end_of_a_prefix_is_marked(capsys, corpus_folder):
    arguments = ["prefix-lm@tiny", "--corpus", str(corpus_folder), "--examples", "3", "corpus.sequence_length=40"]
    examples = inspect_json(capsys, *arguments)["examples"]
    assert main(["inspect", *arguments]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for example in examples:
        prefix, tokens = example["prefix"], example["input"]
        assert " ".join([*tokens[max(0, prefix - 2):prefix], "¦", *tokens[prefix:prefix + 2]]) in printed
        assert min(target["position"] for target in example["targets"]) == prefix - 1
        assert len(example["visibility"]) == GRID_POSITIONS
