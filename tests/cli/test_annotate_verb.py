"""`stemma corpus annotate`: output, errors, and annotated units in training examples."""

import json

import pytest
from commands import stemma

from stemma.corpus.corpus import Corpus


@pytest.fixture
def corpus(tmp_path, text_file, tokenizer_folder):
    built = stemma("corpus", "build", text_file, "--tokenizer", tokenizer_folder, "--out", tmp_path / "corp", "--json")
    assert built.code == 0, built.err
    return tmp_path / "corp"


def test_the_number_of_units_and_the_most_frequent_ones_are_printed(corpus, tmp_path):
    (tmp_path / "list.txt").write_text("the family tree\tthing\nnobody\n")
    done = stemma("corpus", "annotate", corpus, "--phrases", "mine", "--min-count", 8, "--threshold", 0.3,
                  "--entities", tmp_path / "list.txt", "--top", 3)
    assert done.code == 0 and not done.err
    assert "npmi of at least 0.3, 8 times or more" in done.out and "1 of 2 entries are in the text" in done.out
    assert "the family tree" in done.out
    assert Corpus.open(corpus).annotations()[-2:] == ["phrases", "entities"]
    info = stemma("corpus", "info", corpus)
    assert "by the lexicon in list.txt" in info.out and "mined: npmi" in info.out


def test_json_is_one_object(corpus):
    result = stemma("corpus", "annotate", corpus, "--phrases", "mine", "--threshold", 0.3, "--top", 2, "--json").json
    phrases = result["annotations"]["phrases"]
    assert result["corpus"] == str(corpus) and len(phrases["top"]) == 2
    assert phrases["units"] >= phrases["found"] > 2 and 0 < phrases["share"] < 1


def test_bad_input_is_an_error_message_and_leaves_no_files(corpus, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"river\n\n" + b"\xb1\xb1\xbe\xa9\n")
    for arguments, message in (([], "nothing to annotate"),
                               (["--entities", tmp_path / "bad.txt"], "line 3 is not utf-8"),
                               (["--entities", tmp_path / "bad.txt", "--encoding", "gb18030"], "is empty"),
                               (["--entities", tmp_path / "none.txt"], "cannot read")):
        done = stemma("corpus", "annotate", corpus, *arguments, "--json")
        assert done.code == 2 and message in done.err and "Traceback" not in done.err
        assert json.loads(done.out)["error"]
    assert sorted(path.name for path in corpus.parent.iterdir()) == ["bad.txt", "corp"]
    assert stemma("corpus", "annotate", tmp_path / "nowhere", "--phrases", "mine").code == 2


def test_inspect_masks_whole_annotated_units(corpus):
    stemma("corpus", "annotate", corpus, "--phrases", "mine", "--threshold", 0.2, "--min-count", 5)
    shown = stemma("inspect", "bert@tiny", "--corpus", corpus, "--examples", 8, "--json",
                   "objective.masked_lm.unit=phrase")
    assert shown.code == 0, shown.err
    masked_phrases = 0
    for example in shown.json["examples"]:
        masked = {target["position"] for target in example["targets"]}
        assert len(example["units"]) < len(example["words"])
        for start, stop in example["units"]:
            is_masked = [position in masked for position in range(start, stop)]
            assert all(is_masked) or not any(is_masked)
            masked_phrases += all(is_masked) and stop - start > 1
        starts = {start for start, _ in example["words"]}
        assert all(start in starts for start, _ in example["units"])
    assert masked_phrases


def test_help_shows_an_example():
    shown = stemma("corpus", "annotate", "--help")
    assert shown.code == 0 and "Example: stemma corpus annotate corp --phrases mine" in shown.out
