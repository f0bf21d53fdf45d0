"""Every named data set is read from a few rows in its official format; the rows are our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stemma.errors import UserError
from stemma.tasks.data.examples import TextExample
from stemma.tasks.datasets import DATASETS, read_examples, task_kind_of
from stemma.tasks.kinds import example_kinds, task_kind
from stemma.tasks.metrics import metrics_for
from stemma.tasks.metrics.question_answering import ANSWER_MATCHERS

NLI_COLUMNS = "sentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2"
SNLI = f"gold_label\t{NLI_COLUMNS}\tcaptionID\tpairID\t" + "\t".join(f"label{n}" for n in range(1, 6))
XNLI = (f"language\tgold_label\t{NLI_COLUMNS}\tpromptID\tpairID\tgenre\t" + "\t".join(f"label{n}" for n in range(1, 6))
        + "\tsentence1_tokenized\tsentence2_tokenized\tmatch")


def nli(columns: str, **cells: str) -> str:
    return "\t".join(cells.get(column, "x") for column in columns.split("\t"))


MNLI = f"index\tpromptID\tpairID\tgenre\t{NLI_COLUMNS}\tlabel1\tgold_label"
GLUE_SNLI = f"index\tcaptionID\tpairID\t{NLI_COLUMNS}\tlabel1\tgold_label"
# name, file, content, texts, label and id of each example
TABLES = [
    ("cola", "train.tsv", 'c1\t1\t\tThe "leaf" fell.\nc1\t0\t*\tFell leaf the.\n',
     [(('The "leaf" fell.',), "1", None), (("Fell leaf the.",), "0", None)]),
    ("cola", "test.tsv", "index\tsentence\n0\tThe leaf fell.\n", [(("The leaf fell.",), None, "0")]),
    ("sst2", "train.tsv", "sentence\tlabel\na dull page \t0\n", [(("a dull page",), "0", None)]),
    ("mrpc", "train.tsv", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe read .\tReading , he .\n",
     [(("He read .", "Reading , he ."), "1", None)]),
    ("mrpc", "test.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n4\t7\t8\tHe read .\tReading , he .\n",
     [(("He read .", "Reading , he ."), None, "4")]),
    ("qqp", "train.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n5\t1\t2\tWhy?\tHow so?\t0\n"
     '"\tA rest of a line\t0\n6\t3\t4\tWho?\tWhich one?\t1\n',
     [(("Why?", "How so?"), "0", "5"), (("Who?", "Which one?"), "1", "6")]),
    ("stsb", "dev.tsv", "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
     "3\tmain\tf\t2012\t1\tnone\tnone\tA page.\tA leaf.\t3.800\n", [(("A page.", "A leaf."), 3.8, "3")]),
    ("mnli", "train.tsv", MNLI + "\n" + nli(MNLI, index="9", sentence1="A.", sentence2="B.", gold_label="neutral"),
     [(("A.", "B."), "neutral", "9")]),
    ("mnli-mm", "dev_mismatched.tsv", MNLI.replace("label1", "label1\tlabel2") + "\n"
     + nli(MNLI.replace("label1", "label1\tlabel2"), index="9", sentence1="A.", sentence2="B.",
           gold_label="entailment"),
     [(("A.", "B."), "entailment", "9")]),
    ("qnli", "dev.tsv", "index\tquestion\tsentence\tlabel\n0\tWho?\tShe did.\tnot_entailment\n",
     [(("Who?", "She did."), "not_entailment", "0")]),
    ("rte", "dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tShe did.\tSomebody did.\tentailment\n",
     [(("She did.", "Somebody did."), "entailment", "0")]),
    ("wnli", "dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tShe did.\tHe did.\t0\n",
     [(("She did.", "He did."), "0", "0")]),
    ("ax", "diagnostic.tsv", "index\tsentence1\tsentence2\n0\tShe did.\tHe did.\n",
     [(("She did.", "He did."), None, "0")]),
    ("ax", "diagnostic-full.tsv", "Lexical Semantics\tLogic\tPremise\tHypothesis\tLabel\n\tNegation\tShe did.\tNo.\t"
     "contradiction\n", [(("She did.", "No."), "contradiction", None)]),
    ("snli", "snli_1.0_dev.txt", SNLI + "\n" + nli(SNLI, gold_label="-", sentence1="C.", sentence2="D.") + "\n"
     + nli(SNLI, gold_label="neutral", sentence1="A.", sentence2="B.", pairID="p"), [(("A.", "B."), "neutral", "p")]),
    ("snli", "snli_1.0_dev.jsonl",
     json.dumps({"gold_label": "neutral", "sentence1": "A.", "sentence2": "B.", "pairID": "p"}),
     [(("A.", "B."), "neutral", "p")]),
    ("snli", "train.tsv", GLUE_SNLI
     + "\n" + nli(GLUE_SNLI, index="1", sentence1="A.", sentence2="B.", gold_label="neutral")
     + "\n" + nli(GLUE_SNLI, index="2", sentence1="C.", sentence2="D.", gold_label="neutral\tx\tx\tx\tentailment"),
     [(("A.", "B."), "neutral", "1"), (("C.", "D."), "entailment", "2")]),
    ("scitail", "scitail_1.0_train.tsv", 'A "leaf" is green.\tLeaves are green.\tentails\nA.\tB.\tneutral\n',
     [(('A "leaf" is green.', "Leaves are green."), "entailment", None), (("A.", "B."), "neutral", None)]),
    ("scitail", "scitail_1.0_dev.txt", json.dumps({"sentence1": "A.", "sentence2": "B.", "gold_label": "entailment"}),
     [(("A.", "B."), "entailment", None)]),
    ("imdb", "IMDB Dataset.csv", 'review,sentiment\n"Long, and<br /><br />dull.",negative\n',
     [(("Long, and\n\ndull.",), "neg", None)]),
    ("agnews", "train.csv", '"3","A ""title""","Short\\nearly sellers\\nWait."\n"1","Same","Same"\n',
     [(('A "title" Short nearly sellers Wait.',), "3", None), (("Same Same",), "1", None)]),
    ("yelp", "train.csv", '"5","Good.\\nVery, ""very"" good."\n', [(('Good.\nVery, "very" good.',), "5", None)]),
    ("chnsenticorp", "train.tsv", "label\ttext_a\n1\t房间很好,早餐也好\n", [(("房间很好,早餐也好",), "1", None)]),
    ("chnsenticorp", "dev.tsv", "qid\tlabel\ttext_a\n7\t0\t不好\n", [(("不好",), "0", "7")]),
    ("chnsenticorp", "bare.tsv", "1\t房间很好\n0\t不好\n", [(("房间很好",), "1", None), (("不好",), "0", None)]),
    ("weibo", "weibo_senti_100k.csv", 'label,review\n1,"好,[嘻嘻]"\n', [(("好,[嘻嘻]",), "1", None)]),
    ("lcqmc", "train.txt", "怎么去\t如何去\t1\n多少钱\t多大\t0\n",
     [(("怎么去", "如何去"), "1", None), (("多少钱", "多大"), "0", None)]),
    ("lcqmc", "train.tsv", "text_a\ttext_b\tlabel\n怎么去\t如何去\t1\n", [(("怎么去", "如何去"), "1", None)]),
    ("bq", "test.tsv", "怎么还款\t如何还款\n", [(("怎么还款", "如何还款"), None, None)]),
    ("bq", "dev.csv", "sentence1,sentence2,label\n怎么还款,如何还款,1\n", [(("怎么还款", "如何还款"), "1", None)]),
    ("xnli", "xnli.dev.tsv", XNLI
     + "\n" + nli(XNLI, language="de", gold_label="neutral", sentence1="Ja.", sentence2="So.")
     + "\n" + nli(XNLI, language="zh", gold_label="neutral", sentence1="是。", sentence2="好。", pairID="3"),
     [(("是。", "好。"), "neutral", "3")]),
    ("xnli", "multinli.train.zh.tsv", "premise\thypo\tlabel\n是 的\t不 是\tcontradictory\n",
     [(("是 的", "不 是"), "contradiction", None)]),
    ("thucnews", "cnews.val.txt", "体育\t黄蜂vs湖人\n体育\n财经\t股市\n",
     [(("黄蜂vs湖人",), "体育", None), (("股市",), "财经", None)]),
]


@pytest.mark.parametrize(("name", "file", "content", "expected"), TABLES, ids=[f"{row[0]}-{row[1]}" for row in TABLES])
def test_tables_are_read_in_their_official_formats(name, file, content, expected, tmp_path):
    (tmp_path / file).write_text(content, encoding="utf-8")
    examples = read_examples(name, tmp_path / file)
    assert [(example.texts, example.label, example.id) for example in examples] == expected
    assert all(isinstance(example, TextExample) and str(tmp_path / file) in example.where for example in examples)
    assert DATASETS[name].labels is None or {label for _, label, _ in expected} <= {*DATASETS[name].labels, None}


RANKED = [(("谁写的", "他写的"), "1", "谁写的"), (("谁写的", "不知道"), "0", "谁写的")]


@pytest.mark.parametrize(("content", "expected"), [
    ("谁写的\t他写的\t1\n谁写的\t不知道\t0\n", RANKED), ("1\t谁写的\t他写的\n0\t谁写的\t不知道\n", RANKED),
    ("谁写的\t他写的\n", [(("谁写的", "他写的"), None, "谁写的")]),
    ("qid\ttext_a\ttext_b\tlabel\n4\t谁写的\t他写的\t1\n", [(("谁写的", "他写的"), "1", "4")])])
def test_candidates_are_ranked_within_their_question(content, expected, tmp_path):
    (tmp_path / "nlpcc-iccpol-2016.dbqa.training-data").write_text(content, encoding="utf-8")
    examples = read_examples("nlpcc-dbqa", tmp_path / "nlpcc-iccpol-2016.dbqa.training-data")
    assert [(example.texts, example.label, example.group) for example in examples] == expected


def test_broken_rows_of_published_files_are_skipped_and_counted(tmp_path, caplog):
    _, file, content, _ = next(row for row in TABLES if row[0] == "qqp")
    (tmp_path / file).write_text(content)
    read_examples("qqp", tmp_path / file)
    (message,) = caplog.messages
    assert "1 row that cannot be read" in message and "line 3" in message
    _, file, content, _ = next(row for row in TABLES if row[0] == "snli")
    (tmp_path / file).write_text(content)
    read_examples("snli", tmp_path / file)
    assert len(caplog.messages) == 2 and "1 row that the annotators did not agree on" in caplog.messages[1]


def test_folders_of_texts_by_class_are_read(tmp_path):
    texts = [("pos", "0_9.txt", "Fine.<br />Go."), ("neg", "3_1.txt", "Dull."), ("unsup", "1_0.txt", "?")]
    for folder, file, text in texts:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / file).write_text(text)
    examples = read_examples("imdb", tmp_path)
    assert [(example.texts, example.label, example.id) for example in examples] == \
           [(("Dull.",), "neg", "neg/3_1"), (("Fine.\nGo.",), "pos", "pos/0_9")]
    assert {example.label for example in read_examples("thucnews", tmp_path)} == {"neg", "pos", "unsup"}
    (tmp_path / "neg" / "3_1.txt").unlink()
    (tmp_path / "neg").rmdir()
    with pytest.raises(UserError, match="neg and pos"):
        read_examples("imdb", tmp_path)


def test_babi_stories_become_question_examples(tmp_path):
    (tmp_path / "qa.txt").write_text("1 Mary went out.\n2 Where is Mary? \tgarden\t1\n"
                                     "3 John came.\n4 Who came?\tJohn\t3\n1 Bill slept.\n2 How many slept?\tone\t1\n")
    examples = read_examples("babi", tmp_path / "qa.txt")
    assert [(example.texts, example.label) for example in examples] == [
        (("Mary went out.", "Where is Mary?"), "garden"), (("Mary went out. John came.", "Who came?"), "John"),
        (("Bill slept.", "How many slept?"), "one")]
    (tmp_path / "qa.txt").write_text("1 Mary went out.\nJohn came.\n2 Where?\t\t1\n")
    with pytest.raises(UserError) as error:
        read_examples("babi", tmp_path / "qa.txt")
    assert [where.rsplit(" ", 1)[1] for where, _ in error.value.problems] == ["2", "3"]


def test_swag_endings_become_options(tmp_path):
    header = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
    row = '0,v,1,He sat. He,"He sat, so.",He,gold,reads.,eats.,"runs, fast.",naps.,2'
    (tmp_path / "val.csv").write_text(f"{header}\n{row}\n")
    (example,) = read_examples("swag", tmp_path / "val.csv")
    assert (example.context, example.question, example.label, example.id) == ("He sat, so.", "He", 2, "0")
    assert example.options == ("reads.", "eats.", "runs, fast.", "naps.")
    (tmp_path / "test.csv").write_text(f"{header.removesuffix(',label')}\n0,v,1,He sat. He,He sat.,He,gold,a,b,c,d\n")
    assert read_examples("swag", tmp_path / "test.csv")[0].label is None
    rows = "0,v,1,He sat. He,He sat.,He,gold,a,,c,d,1\n1,v,1,s,s,He,gold,a,b,c,d,4\n"
    (tmp_path / "bad.csv").write_text(f"{header}\n{rows}")
    with pytest.raises(UserError, match="2 problems") as error:
        read_examples("swag", tmp_path / "bad.csv")
    assert "option 1" in str(error.value) and "line 3" in str(error.value) and '"4"' in str(error.value)


def test_race_articles_become_multiple_choice_examples(tmp_path):
    article = {"answers": ["C", "A"], "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]],
               "article": "A long text.", "questions": ["Who?", "It is _ ."], "id": "high7.txt"}
    (tmp_path / "high").mkdir()
    (tmp_path / "high" / "7.txt").write_text(json.dumps(article))
    examples = read_examples("race", tmp_path)
    assert [(e.context, e.question, e.label, e.id) for e in examples] == \
           [("A long text.", "Who?", 2, "high7.txt:0"), ("A long text.", "It is _ .", 0, "high7.txt:1")]
    article["answers"] = ["C"]
    (tmp_path / "high" / "7.txt").write_text(json.dumps(article))
    with pytest.raises(UserError, match=r"7\.txt is no article of RACE"):
        read_examples("race", tmp_path)


def test_story_cloze_endings_become_options(tmp_path):
    header = ("InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,RandomFifthSentenceQuiz1,"
              "RandomFifthSentenceQuiz2,AnswerRightEnding")
    (tmp_path / "val.csv").write_text(f'{header}\ns1,One.,Two.,"Three, too.",Four.,Bad.,Good.,2\n')
    (example,) = read_examples("storycloze", tmp_path / "val.csv")
    assert (example.context, example.question, example.label) == ("One. Two. Three, too. Four.", "", 1)
    assert example.id == "s1"
    (tmp_path / "val.csv").write_text(f"{header}\ns1,One.,Two.,Three.,Four.,Bad.,Good.,3\n")
    with pytest.raises(UserError, match="line 2"):
        read_examples("storycloze", tmp_path / "val.csv")


def test_every_registered_data_set_is_complete():
    assert set(DATASETS) == {
        "cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "mnli-mm", "qnli", "qnli-rank", "rte", "wnli", "ax", "snli",
        "scitail", "squad", "squad2", "conll2003", "swag", "race", "storycloze", "babi", "imdb", "agnews", "yelp",
        "chnsenticorp", "weibo", "lcqmc", "bq", "xnli", "msra-ner", "peoples-daily-ner", "cmrc2018", "drcd", "cjrc",
        "nlpcc-dbqa", "thucnews"}
    for name, dataset in DATASETS.items():
        assert dataset.name == name and dataset.kind in example_kinds() and dataset.metrics and dataset.source
        assert set(dataset.metrics) <= set(metrics_for(dataset.kind))
        assert (dataset.answer_matching in ANSWER_MATCHERS) == (dataset.kind == "qa")
    assert [DATASETS[name].answer_matching for name in ("squad", "squad2", "cmrc2018", "drcd", "cjrc")] == \
           ["squad", "squad2", "cmrc", "cmrc", "cjrc"]
    assert all(set(task_kind(kind).default_metrics) <= set(metrics_for(kind)) for kind in example_kinds())
    assert task_kind_of("sst2") == "classify" and task_kind_of("qa") == "qa"


def test_unknown_data_sets_and_renamed_columns_are_rejected(tmp_path):
    with pytest.raises(UserError, match='Did you mean "sst2"'):
        read_examples("sst-2", tmp_path / "none.tsv")
    with pytest.raises(UserError, match="cannot be renamed"):
        read_examples("sst2", tmp_path / "none.tsv", columns={"text": "sentence"})
    with pytest.raises(UserError, match=r"cannot read .*none\.tsv"):
        read_examples("cola", Path(tmp_path / "none.tsv"))
