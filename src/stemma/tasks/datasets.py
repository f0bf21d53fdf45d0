"""The data sets by name: how their official files are read, their metrics, and where the format is described.

GLUE files are tab-separated with a header, except CoLA's; test files have no labels. Broken rows of the published files
(tabs or line ends within a question of QQP; five labels under one header in SNLI) are repaired or skipped, and counted.
Both dev files of MNLI have the same format. XNLI reads the Chinese part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stemma import plugins, registry
from stemma.errors import UserError, did_you_mean
from stemma.tasks.data.conll import read_conll
from stemma.tasks.data.examples import Example
from stemma.tasks.data.file_reader import FileReader
from stemma.tasks.data.folders_and_babi import read_babi, read_class_folders
from stemma.tasks.data.multiple_choice import read_race, read_story_cloze, read_swag
from stemma.tasks.data.squad import read_squad
from stemma.tasks.data.text_tables import SINGLE_TEXT, TEXT_PAIR, TableSchema, read_texts
from stemma.tasks.kinds import example_kinds, head_task, task_kind

Read = Callable[[str | Path, FileReader], list[Example]]


@dataclass(frozen=True)
class Dataset:
    """A named data set. The first of `metrics` selects the best model."""

    name: str
    kind: str
    metrics: tuple[str, ...]
    read: Read
    source: str  # where its format is described
    labels: tuple[str, ...] | None = None  # if fixed, in the official order
    answer_matching: str | None = None  # question answering: how the official script compares answers


QA_METRICS, TAGGING_METRICS = task_kind("qa").default_metrics, task_kind("tag").default_metrics
ACCURACY_METRIC, RANKING_METRICS = task_kind("classify").default_metrics[:1], task_kind("rank").default_metrics
BINARY_LABELS = ("0", "1")
NLI_LABELS = ("entailment", "neutral", "contradiction")
BINARY_NLI_LABELS = ("entailment", "not_entailment")

COLA = TableSchema((("sentence",),), headerless_columns=(("source", "label", "mark", "sentence"),))
MRPC = TableSchema((("#1 String",), ("#2 String",)), label=("Quality",))
QQP = TableSchema((("question1",), ("question2",)), label=("is_duplicate",), skip_bad_rows=True)
QNLI = TableSchema((("question",), ("sentence",)))
NLI = replace(TEXT_PAIR, label=("gold_label", "label"), no_gold_labels=("-",), skip_bad_rows=True, label_last=True)
SCITAIL = replace(TEXT_PAIR, label=("gold_label", "label"), headerless_columns=(("premise", "hypothesis", "label"),),
                  label_aliases={"entails": "entailment"})
XNLI = TableSchema((("sentence1", "premise"), ("sentence2", "hypo")), label=("gold_label", "label"),
                   no_gold_labels=("-",), row_filter=("language", "zh"),
                   label_aliases={"contradictory": "contradiction"}, skip_bad_rows=True)
MATCHING = replace(TEXT_PAIR, headerless_columns=(("text_a", "text_b", "label"), ("text_a", "text_b")))
REVIEWS = replace(SINGLE_TEXT, headerless_columns=(("label", "text_a"),))
# The 2016 task has the label in the last column, the 2017 task in the first.
DBQA = TableSchema((("text_a", "question"), ("text_b", "answer")), group=("qid",), id=(),
                   headerless_columns=(("question", "answer", "label"), ("label", "question", "answer"),
                                       ("question", "answer")))


def _without_markup(text: str) -> str:
    return text.replace("<br />", "\n")


LINE_END = re.compile(r"\\n(?![a-z])|\\")  # AG: its readme says "\n", but mostly it is a lone backslash
IMDB = TableSchema((("review", "text"),), label=("sentiment", "label"),
                   label_aliases={"negative": "neg", "positive": "pos"}, clean=_without_markup)
AG = TableSchema((("title",), ("description",)), headerless_columns=(("label", "title", "description"),), join=True,
                 clean=lambda text: LINE_END.sub(" ", text))
YELP = TableSchema((("text",),), headerless_columns=(("label", "text"),), clean=lambda text: text.replace("\\n", "\n"))
NEWS = TableSchema((("text",),), headerless_columns=(("label", "text"),), skip_bad_rows=True)


def _table_dataset(name: str, kind: str, schema: TableSchema, source: str, labels: tuple[str, ...] | None = None,
                   metrics: tuple[str, ...] | None = None) -> Dataset:
    def read(path: str | Path, reader: FileReader) -> list[Example]:
        return list(read_texts(path, schema, reader, labels))

    return Dataset(name, kind, metrics or task_kind(kind).default_metrics[:1], read, source, labels)


def _folder_dataset(name: str, schema: TableSchema, source: str, labels: tuple[str, ...] | None = None) -> Dataset:
    """One file per text as released, or a table as often redistributed."""
    def read(path: str | Path, reader: FileReader) -> list[Example]:
        if Path(path).is_dir():
            return list(read_class_folders(Path(path), reader, labels, schema.clean))
        return list(read_texts(path, schema, reader, labels))

    return Dataset(name, "classify", ACCURACY_METRIC, read, source, labels)


def _qa_dataset(name: str, answer_matching: str, source: str, skip_bad_rows: bool = False) -> Dataset:
    return Dataset(name, "qa", QA_METRICS, lambda path, reader: list(read_squad(path, None, reader, skip_bad_rows)),
                   source, answer_matching=answer_matching)


def _tagging_dataset(name: str, source: str) -> Dataset:
    return Dataset(name, "tag", TAGGING_METRICS, lambda path, reader: list(read_conll(path, None, reader)), source)


GLUE = "https://gluebenchmark.com/tasks, arXiv:1804.07461"
_ALL = (
    _table_dataset("cola", "classify", COLA, GLUE, BINARY_LABELS, ("matthews", "accuracy")),
    _table_dataset("sst2", "classify", TableSchema((("sentence",),)), GLUE, BINARY_LABELS),
    _table_dataset("mrpc", "pair", MRPC, GLUE, BINARY_LABELS, ("f1", "accuracy")),
    _table_dataset("qqp", "pair", QQP, GLUE, BINARY_LABELS, ("f1", "accuracy")),
    _table_dataset("stsb", "regress", replace(TEXT_PAIR, label=("score",), numeric_label=True), GLUE, None,
                   ("pearson", "spearman")),
    _table_dataset("mnli", "pair", NLI, GLUE, NLI_LABELS),
    _table_dataset("mnli-mm", "pair", NLI, GLUE, NLI_LABELS),
    _table_dataset("qnli", "pair", QNLI, GLUE, BINARY_NLI_LABELS),
    _table_dataset("qnli-rank", "rank", replace(QNLI, group=("question",),
                                                label_aliases={"entailment": "1", "not_entailment": "0"}),
                   f"{GLUE}; as a ranking of sentences: arXiv:1901.11504", BINARY_LABELS, RANKING_METRICS),
    _table_dataset("rte", "pair", TEXT_PAIR, GLUE, BINARY_NLI_LABELS),
    _table_dataset("wnli", "pair", TEXT_PAIR, GLUE, BINARY_LABELS),
    _table_dataset("ax", "pair", TEXT_PAIR, "https://gluebenchmark.com/diagnostics", NLI_LABELS,
                   ("matthews", "accuracy")),
    _table_dataset("snli", "pair", NLI, "https://nlp.stanford.edu/projects/snli, arXiv:1508.05326", NLI_LABELS),
    _table_dataset("scitail", "pair", SCITAIL, "https://allenai.org/data/scitail", NLI_LABELS[:2]),
    _qa_dataset("squad", "squad", "https://rajpurkar.github.io/SQuAD-explorer, arXiv:1606.05250"),
    _qa_dataset("squad2", "squad2", "https://rajpurkar.github.io/SQuAD-explorer, arXiv:1806.03822"),
    _tagging_dataset("conll2003", "https://www.clips.uantwerpen.be/conll2003/ner, arXiv:cs/0306050"),
    Dataset("swag", "choice", ACCURACY_METRIC, lambda path, reader: list(read_swag(path, reader)),
            "https://github.com/rowanz/swagaf, arXiv:1808.05326"),
    Dataset("race", "choice", ACCURACY_METRIC, lambda path, reader: list(read_race(path, reader)),
            "https://www.cs.cmu.edu/~glai1/data/race, arXiv:1704.04683"),
    Dataset("storycloze", "choice", ACCURACY_METRIC, lambda path, reader: list(read_story_cloze(path, reader)),
            "https://cs.rochester.edu/nlp/rocstories, arXiv:1604.01696"),
    Dataset("babi", "pair", ("accuracy",), lambda path, reader: list(read_babi(path, reader)),
            "https://research.fb.com/downloads/babi, arXiv:1502.05698"),
    _folder_dataset("imdb", IMDB, "https://ai.stanford.edu/~amaas/data/sentiment", ("neg", "pos")),
    _table_dataset("agnews", "classify", AG, "arXiv:1509.01626", ("1", "2", "3", "4")),
    _table_dataset("yelp", "classify", YELP, "arXiv:1509.01626"),
    _table_dataset("chnsenticorp", "classify", REVIEWS, "https://github.com/ymcui/Chinese-BERT-wwm", BINARY_LABELS),
    _table_dataset("weibo", "classify", REVIEWS, "https://github.com/SophonPlus/ChineseNlpCorpus", BINARY_LABELS),
    _table_dataset("lcqmc", "pair", MATCHING, "https://aclanthology.org/C18-1166", BINARY_LABELS),
    _table_dataset("bq", "pair", MATCHING, "https://aclanthology.org/D18-1536", BINARY_LABELS),
    _table_dataset("xnli", "pair", XNLI, "https://github.com/facebookresearch/XNLI, arXiv:1809.05053", NLI_LABELS),
    _tagging_dataset("msra-ner", "https://github.com/OYE93/Chinese-NLP-Corpus, https://aclanthology.org/W06-0115"),
    _tagging_dataset("peoples-daily-ner", "https://github.com/OYE93/Chinese-NLP-Corpus"),
    _qa_dataset("cmrc2018", "cmrc", "https://github.com/ymcui/cmrc2018, arXiv:1810.07366", skip_bad_rows=True),
    _qa_dataset("drcd", "cmrc", "https://github.com/DRCKnowledgeTeam/DRCD, arXiv:1806.00920", skip_bad_rows=True),
    _qa_dataset("cjrc", "cjrc", "https://github.com/china-ai-law-challenge/CAIL2019", skip_bad_rows=True),
    _table_dataset("nlpcc-dbqa", "rank", DBQA, "http://tcci.ccf.org.cn/conference/2017/dldoc/taskgline05.pdf",
                   BINARY_LABELS, RANKING_METRICS),
    _folder_dataset("thucnews", NEWS, "http://thuctc.thunlp.org, https://github.com/gaussic/text-classification-cnn-rnn"),
)
DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _ALL}


def task_kind_of(task: str) -> str:
    """The kind of a task that is given by its kind or by a data set."""
    if task in (kinds := example_kinds()):
        return task
    if task not in DATASETS:
        names = (*kinds, *DATASETS)
        raise UserError(f'no task "{task}".{did_you_mean(task, names)} There are {", ".join(names)}.')
    return DATASETS[task].kind


def plugin_code(task: str) -> dict[str, str]:
    """The plug-in that defines the kind of a task, for digests: another plug-in gives another result."""
    return plugins.plugins_of([registry.get("task", task_kind_of(task))])


def read_examples(task: str, path: str | Path, *, columns: Mapping[str, str] | None = None, encoding: str = "utf-8",
                  errors: str = "strict") -> list[Example]:
    """Read the examples of a file for a task kind (a user's table, with `columns` as our name -> the file's name) or
    for a named data set."""
    kind, reader = task_kind_of(task), FileReader(encoding, errors)
    if task in DATASETS:
        if columns:
            raise UserError(f"the columns of {task} are known and cannot be renamed; for a table of your own, the task "
                            f"is {kind}.")
        return DATASETS[task].read(path, reader)
    return list(head_task(kind).read(path, columns, reader))
