"""Cleaning: what each step removes and keeps, and that the output is written completely or not at all."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from conftest import small_text

from stemma.errors import UserError
from stemma.text.cleaning.clean import clean
from stemma.text.cleaning.datatrove_filters import datatrove_filters
from stemma.text.cleaning.documents import whole_documents
from stemma.text.cleaning.duplicates import NearDuplicates, band_rows
from stemma.text.cleaning.language import identify
from stemma.text.cleaning.normalize import normalize_text
from stemma.text.cleaning.rules import CleaningRules, first_failed_rule, load_rules
from stemma.text.ngrams import ngram_hashes, normalized_words, word_hashes
from stemma.text.readers import Passage

LOOSE = load_rules(None, ["min_words=3", "max_top_pair=1", "max_repeated_runs=1"])
VOCABULARY = [f"{start}{middle}{end}" for start in "bdfgklmnprst" for middle in ("a", "e", "io", "u", "ai")
              for end in ("lten", "rmo", "sk", "nd", "tric")]
PROSE = ("The printer reads an older manuscript by the window. Every scribe forgets one missing leaf before noon. "
         "Our neighbour collects seven pages for the archive, and nobody in the town knows what became of them. "
         "A young reader compares what was written with what is left, and numbers each letter twice. "
         "In winter the cellar is cold, so the clerk works upstairs with two lamps and a cup of tea.")


def random_text(rng: random.Random, count: int = 200) -> list[str]:
    return [rng.choice(VOCABULARY) for _ in range(count)]


def removed_by_step(result: dict) -> dict[str, int]:
    return {step["step"]: step["documents"] for step in result["steps"] if step["documents"]}


@pytest.mark.parametrize(("text", "expected"), [
    ("<p>One</p><p class='x'>two</p>", "One\n\ntwo"),
    ("a<script>var x = '<p>';</script>b", "a b"),
    ("R&amp;D &lt;3 &notanentity; &#8212;", "R&D <3 &notanentity; —"),
    ("the <unk> of a < b and c > d", "the <unk> of a < b and c > d"),
    ("soft\u00adhyphen\u200b zero\ufeff", "softhyphen zero"),
    ("a\u00a0 \t b  \r\n\r\n\r\n\r\n c\x07", "a b\n\nc"),
    ("e\u0301tude", "étude"),
    ("你好，世界！ＡＢ", "你好，世界！ＡＢ"),  # Chinese uses full-width punctuation
    ("می\u200cخواهم", "می\u200cخواهم"),  # this joiner is part of the spelling
])
def test_normalize_text(text: str, expected: str) -> None:
    assert normalize_text(text) == expected


@pytest.mark.parametrize(("rule", "text"), [
    ("min_words", "Too short to be of use."),
    ("max_words", "word " * 100_001),
    ("min_word_length", "I am an ox as he is to me. " * 10),
    ("max_word_length", " ".join(f"incomprehensibilities{i:03}" for i in range(60)) + "."),
    ("max_symbols", PROSE.replace(" ", " # ")),
    ("min_letters", PROSE + " 1 2 3 4 5 6 7 8 9 10" * 4),
    ("max_bullets", "\n".join(f"- {part}." for part in PROSE.split(". "))),
    ("max_ellipses", "\n".join(f"{part}..." for part in PROSE.split(". "))),
    ("min_stops", PROSE.replace(".", "")),
    ("max_repeated_lines", PROSE + "\n" + "Read more here.\n" * 3),
    ("max_top_pair", PROSE + " click here" * 12 + "."),
    ("max_repeated_runs", PROSE + " The printer reads an older manuscript by the window while it rains." * 2),
    ("placeholder", PROSE + " Lorem ipsum dolor sit amet."),
])
def test_each_rule_removes_its_kind_of_document(rule: str, text: str) -> None:
    """Only that rule: if it is relaxed, the document stays."""
    assert first_failed_rule(PROSE, CleaningRules()) is None
    assert first_failed_rule(text, CleaningRules()) == rule
    loosened = {"min_words": 0, "max_words": 10**9, "min_word_length": 0.0, "max_word_length": 99.0, "max_symbols": 9.0,
                "min_letters": 0.0, "min_stops": 0.0, "placeholder": True}.get(rule, 1.0)
    assert first_failed_rule(text, CleaningRules(**{rule: loosened})) != rule


def test_word_length_rules_do_not_apply_to_chinese() -> None:
    text = "今天下午，Ｂ区的 A 馆收到了一批旧书。管理员说，其中有三本是清代的刻本，保存得相当完整。" \
           "读者可以在下个月的展览上看到它们，也可以预约阅览，但是不能外借，因为纸张已经很脆弱了。"
    assert first_failed_rule(text, CleaningRules()) is None
    assert first_failed_rule(text[:30], CleaningRules()) == "min_words"


@pytest.mark.parametrize(("text", "language"), [
    ("A man is standing on the street with two dogs, and they look at him.", "en"),
    ("Ein Mann steht mit zwei Hunden auf der Straße und sie sehen ihn an.", "de"),
    ("Un homme est dans la rue avec deux chiens et ils sont sur le trottoir.", "fr"),
    ("El hombre está en la calle con los perros y no se sabe por qué.", "es"),
    ("De man staat op straat met twee honden en hij heeft het koud.", "nl"),
    ("今天下午，图书馆收到了一批旧书。", "zh"), ("図書館は古い本をたくさん受け取りました。", "ja"),
    ("도서관은 오래된 책을 받았습니다.", "ko"), ("Библиотека получила старые книги.", "ru"),
    ("Бібліотека отримала старі книги і її читачі раді.", "uk"), ("Η βιβλιοθήκη έλαβε παλιά βιβλία.", "el"),
    ("12 345 --- 678", None), ("Zyxwvut Qrstlmn Bcdfgh", None), ("", None),
])
def test_languages_are_identified(text: str, language: str | None) -> None:
    assert identify(text) == language


def test_near_duplicates_are_found_and_other_documents_are_not() -> None:
    """Copies with a few changed words, for which the true Jaccard similarity is known."""
    rng = random.Random(3)
    originals = [random_text(rng) for _ in range(300)]
    copies, truth = [], []
    for text in originals[:200]:
        changed = list(text)
        for index in rng.sample(range(len(text)), rng.choice([1, 2, 3, 6, 12])):
            changed[index] = "changed"
        original, copied = (set(ngram_hashes(word_hashes(t), 5).tolist()) for t in (text, changed))
        copies.append(changed)
        truth.append(len(original & copied) / len(original | copied))
    near = NearDuplicates(0.8)
    for text in originals + copies:
        near.add(" ".join(text))
    parents = near.duplicate_of()
    assert (parents[:300] == -1).all()
    similarities, result = np.array(truth), parents[300:] >= 0
    assert (similarities >= 0.86).sum() > 80
    assert (similarities <= 0.74).sum() > 50
    assert result[similarities >= 0.86].mean() > 0.97
    assert result[similarities <= 0.74].mean() < 0.03
    assert (parents[300:][result] == np.arange(200)[result]).all(), "a copy is assigned to another original"


def test_the_bands_find_a_pair_at_the_threshold_with_probability_99_percent() -> None:
    for threshold in (0.3, 0.5, 0.8, 0.95):
        rows = band_rows(threshold)
        assert 1 - (1 - threshold**rows) ** (128 // rows) >= 0.99
        assert 1 - (1 - threshold ** (rows + 1)) ** (128 // (rows + 1)) < 0.99, "more comparisons than necessary"


def test_all_cleaning_steps_together(tmp_path: Path) -> None:
    rng = random.Random(5)
    long = [" ".join(random_text(rng)) + "." for _ in range(4)]
    near = long[1].replace(long[1].split()[50], "other", 1)
    documents = [long[0], long[1], "Only this.", long[0] + "  ", near, f"<b>{long[2]}</b>", "&nbsp;", long[3]]
    (tmp_path / "raw.txt").write_text("\n\n".join(documents) + "\n")
    result = clean([tmp_path / "raw.txt"], tmp_path / "out.txt", rules=load_rules(None, ["max_top_pair=1"]), show=1)
    assert (tmp_path / "out.txt").read_text() == "".join(f"{text}\n\n" for text in long), "order or markup is wrong"
    assert removed_by_step(result) == {"normalise": 3, "empty": 1, "exact_duplicates": 1, "min_words": 1,
                                       "near_duplicates": 1}
    assert (result["documents_in"], result["documents_out"]) == (8, 4)
    assert result["characters_in"] == sum(map(len, documents))
    assert result["characters_out"] == sum(map(len, long))
    assert result["characters_in"] - result["characters_out"] == sum(step["characters"] for step in result["steps"])
    examples = {step["step"]: step["examples"] for step in result["steps"]}
    assert (examples["min_words"], examples["empty"]) == (["Only this."], ["&nbsp;"])
    assert examples["near_duplicates"][0].startswith("document 2 of those left: ")
    assert len(list(tmp_path.iterdir())) == 2, "temporary files are left"


def test_cleaning_is_deterministic(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("\n".join([small_text(documents=60)] * 2))
    outs = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for out in outs:
        clean([tmp_path / "raw.txt"], out, rules=LOOSE)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    texts = [json.loads(line)["text"] for line in outs[0].read_text().splitlines()]
    assert len(set(texts)) == len(texts) <= 60


def test_the_document_separator_never_occurs_inside_a_document(tmp_path: Path) -> None:
    lines = ['{"text": "First part of it.\\n\\nSecond part of it."}', '{"text": "Another one<br>in two lines."}']
    (tmp_path / "raw.jsonl").write_text("\n".join(lines))
    for name, documents, expected in [
        ("a.txt", "blank", "First part of it.\nSecond part of it.\n\nAnother one\nin two lines.\n\n"),
        ("a.md", "line", "First part of it. Second part of it.\nAnother one in two lines.\n"),
        ("a.jsonl", "blank", '{"text": "First part of it.\\n\\nSecond part of it."}\n'
                             '{"text": "Another one\\nin two lines."}\n'),
    ]:
        clean([tmp_path / "raw.jsonl"], tmp_path / name, rules=LOOSE, documents=documents)
        assert (tmp_path / name).read_text() == expected


def test_lines_shared_by_many_documents_are_removed(tmp_path: Path) -> None:
    documents = [f"Copyright of the archive.\nThe {word} page is about {word} alone."
                 for word in ("first", "second", "third")]
    (tmp_path / "raw.txt").write_text("\n\n".join(documents))
    rules = LOOSE.model_copy(update={"line_documents": 2, "near_duplicates": 0.0})
    result = clean([tmp_path / "raw.txt"], tmp_path / "out.txt", rules=rules)
    assert (tmp_path / "out.txt").read_text().count("Copyright") == 2
    assert result["documents_out"] == 3
    assert [step["characters"] for step in result["steps"] if step["step"] == "line_documents"] == [26]


def test_only_the_requested_language_is_kept(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("The dog is in the house with a cat.\nDer Hund ist mit einer Katze im Haus.\n")
    clean([tmp_path / "raw.txt"], tmp_path / "out.txt", rules=LOOSE, documents="line", languages=["de"])
    assert (tmp_path / "out.txt").read_text() == "Der Hund ist mit einer Katze im Haus.\n"


def test_removing_all_documents_is_an_error_and_writes_no_file(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("One.\n\nTwo.\n")
    with pytest.raises(UserError, match=r"nothing is left of 2 documents; most fell to min_words \(2\)"):
        clean([tmp_path / "raw.txt"], tmp_path / "out.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["raw.txt"]


def test_a_failure_leaves_the_old_output(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_bytes(PROSE.encode() + b"\n\n" + b"good text " * 60_000 + b"\xff")
    (tmp_path / "out.txt").write_text("old")
    with pytest.raises(UserError, match="not utf-8"):
        clean([tmp_path / "raw.txt"], tmp_path / "out.txt", overwrite=True)
    assert (tmp_path / "out.txt").read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.txt", "raw.txt"]


def test_rules_report_all_problems_at_once(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("min_word = 3\nmax_symbols = 'many'\nmin_word_length = 2\n")
    with pytest.raises(UserError) as error:
        load_rules(tmp_path / "rules.toml", ["min_letters=7", "oops"])
    text = str(error.value)
    assert "4 problems in the rules" in text
    for message in ('Did you mean "min_words"', "max_symbols = many", "min_letters = 7", "not of the form key=value"):
        assert message in text, text
    with pytest.raises(UserError, match="min_words = 20"):
        load_rules(None, ["min_words=20", "max_words=10"])


def test_changes_override_the_rules_file(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("min_words = 7\nmax_symbols = 1\n")
    rules = load_rules(tmp_path / "rules.toml", ["min_words=8"])
    assert (rules.min_words, rules.max_symbols, rules.max_bullets) == (8, 1.0, CleaningRules().max_bullets)


def test_documents_longer_than_the_limit_are_split(caplog) -> None:
    passages = [Passage("ab", True, "x"), Passage("cd", False, "x"), Passage("ef", False, "x"), Passage("g", True, "x")]
    assert list(whole_documents(passages)) == ["abcdef", "g"]
    assert list(whole_documents(passages, limit=4)) == ["abcd", "ef", "g"]
    assert len(caplog.messages) == 1


def test_normalized_words_are_lowercase_without_punctuation() -> None:
    assert normalized_words("Don't_stop, Ｗorld２: 你好 ab") == ["don", "t", "stop", "world2", "你", "好", "ab"]


def test_published_filters_are_those_of_datatrove() -> None:
    pytest.importorskip("spacy", reason="the extra `cluster` is not installed")
    filters = datatrove_filters(["gopher-quality", "c4"])
    assert filters["gopher-quality"](PROSE)[0] == PROSE
    assert filters["gopher-quality"]("Too short.") == (None, "gopher_short_doc")
    text = "\n".join(f"This is sentence number {i} of the page." for i in range(6)) + "\nMenu"
    assert filters["c4"](text)[0] == text.removesuffix("\nMenu"), "C4 takes lines out of documents"


def test_an_unknown_filter_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="choose gopher-quality.*Did you mean"):
        datatrove_filters(["gopher-qualty"])


def test_a_missing_extra_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datatrove.pipeline", None)
    with pytest.raises(UserError, match=r"stemma-lm\[cluster\]"):
        datatrove_filters(["c4"])
