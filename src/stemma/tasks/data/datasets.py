"""Every data set by its name: how its official files are read, what is measured on it, and who describes the format.

GLUE's files are tab-separated with a header, except CoLA's, and without labels where the server keeps them. Rows that
the publishers broke (tabs or line ends within a question of QQP; five labels where the header has one in SNLI) are
mended or left out, and counted. MNLI's two development files are read alike. XNLI is the Chinese part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stemma import plugins, registry
from stemma.errors import UserError, did_you_mean
from stemma.tasks.data.choices import read_race, read_story_cloze, read_swag
from stemma.tasks.data.columns import PAIR, SINGLE, Layout, read_texts
from stemma.tasks.data.examples import Example
from stemma.tasks.data.questions import read_questions
from stemma.tasks.data.reading import Reading
from stemma.tasks.data.stories import read_babi, read_folders
from stemma.tasks.data.tags import read_tagged
from stemma.tasks.kinds import example_kinds, head_task, task_kind

Read = Callable[[str | Path, Reading], list[Example]]


@dataclass(frozen=True)
class Dataset:
    """A data set that has a name. The first of `metrics` decides which model is best."""

    name: str
    kind: str
    metrics: tuple[str, ...]
    read: Read
    source: str  # where its format is described
    labels: tuple[str, ...] | None = None  # where they are fixed, in the order of the publishers
    style: str | None = None  # of questions: how the official script compares answers


QUESTIONS, TAGS = task_kind("qa").usual, task_kind("tag").usual
ACCURACY, RANKING = task_kind("classify").usual[:1], task_kind("rank").usual
YES_NO = ("0", "1")
INFERENCE = ("entailment", "neutral", "contradiction")
TWO_WAYS = ("entailment", "not_entailment")

MRPC = Layout((("#1 String",), ("#2 String",)), label=("Quality",))
QQP = Layout((("question1",), ("question2",)), label=("is_duplicate",), faulty=True)
QNLI = Layout((("question",), ("sentence",)))
NLI = replace(PAIR, label=("gold_label", "label"), undecided=("-",), faulty=True, label_last=True)
SCITAIL = replace(PAIR, label=("gold_label", "label"), bare=(("premise", "hypothesis", "label"),),
                  renamed={"entails": "entailment"})
XNLI = Layout((("sentence1", "premise"), ("sentence2", "hypo")), label=("gold_label", "label"), undecided=("-",),
              only=("language", "zh"), renamed={"contradictory": "contradiction"}, faulty=True)
MATCHING = replace(PAIR, bare=(("text_a", "text_b", "label"), ("text_a", "text_b")))
REVIEWS = replace(SINGLE, bare=(("label", "text_a"),))
# The task of 2016 has its label at the end, that of 2017 at the beginning.
DBQA = Layout((("text_a", "question"), ("text_b", "answer")), group=("qid",), id=(),
              bare=(("question", "answer", "label"), ("label", "question", "answer"), ("question", "answer")))


def _without_markup(text: str) -> str:
    return text.replace("<br />", "\n")


LINE_END = re.compile(r"\\n(?![a-z])|\\")  # in AG: "\n" says its readme, but mostly a backslash alone
IMDB = Layout((("review", "text"),), label=("sentiment", "label"), renamed={"negative": "neg", "positive": "pos"},
              clean=_without_markup)
AG = Layout((("title",), ("description",)), bare=(("label", "title", "description"),), join=True,
            clean=lambda text: LINE_END.sub(" ", text))
YELP = Layout((("text",),), bare=(("label", "text"),), clean=lambda text: text.replace("\\n", "\n"))
NEWS = Layout((("text",),), bare=(("label", "text"),), faulty=True)


def _table(name: str, kind: str, layout: Layout, source: str, labels: tuple[str, ...] | None = None,
           metrics: tuple[str, ...] | None = None) -> Dataset:
    def read(path: str | Path, reading: Reading) -> list[Example]:
        return list(read_texts(path, layout, reading, labels))

    return Dataset(name, kind, metrics or task_kind(kind).usual[:1], read, source, labels)


def _folders(name: str, layout: Layout, source: str, labels: tuple[str, ...] | None = None) -> Dataset:
    """One file for each text as released, or all of them in a table as they are passed on."""
    def read(path: str | Path, reading: Reading) -> list[Example]:
        if Path(path).is_dir():
            return list(read_folders(Path(path), reading, labels, layout.clean))
        return list(read_texts(path, layout, reading, labels))

    return Dataset(name, "classify", ACCURACY, read, source, labels)


def _questions(name: str, style: str, source: str, faulty: bool = False) -> Dataset:
    return Dataset(name, "qa", QUESTIONS, lambda path, reading: list(read_questions(path, None, reading, faulty)),
                   source, style=style)


def _tagged(name: str, source: str) -> Dataset:
    return Dataset(name, "tag", TAGS, lambda path, reading: list(read_tagged(path, None, reading)), source)


GLUE = "https://gluebenchmark.com/tasks, arXiv:1804.07461"
_ALL = (
    _table("cola", "classify", Layout((("sentence",),), bare=(("source", "label", "mark", "sentence"),)), GLUE, YES_NO,
           ("matthews", "accuracy")),
    _table("sst2", "classify", Layout((("sentence",),)), GLUE, YES_NO),
    _table("mrpc", "pair", MRPC, GLUE, YES_NO, ("f1", "accuracy")),
    _table("qqp", "pair", QQP, GLUE, YES_NO, ("f1", "accuracy")),
    _table("stsb", "regress", replace(PAIR, label=("score",), number=True), GLUE, None, ("pearson", "spearman")),
    _table("mnli", "pair", NLI, GLUE, INFERENCE),
    _table("mnli-mm", "pair", NLI, GLUE, INFERENCE),
    _table("qnli", "pair", QNLI, GLUE, TWO_WAYS),
    _table("qnli-rank", "rank", replace(QNLI, group=("question",), renamed={"entailment": "1", "not_entailment": "0"}),
           f"{GLUE}; as a ranking of sentences: arXiv:1901.11504", YES_NO, RANKING),
    _table("rte", "pair", PAIR, GLUE, TWO_WAYS),
    _table("wnli", "pair", PAIR, GLUE, YES_NO),
    _table("ax", "pair", PAIR, "https://gluebenchmark.com/diagnostics", INFERENCE, ("matthews", "accuracy")),
    _table("snli", "pair", NLI, "https://nlp.stanford.edu/projects/snli, arXiv:1508.05326", INFERENCE),
    _table("scitail", "pair", SCITAIL, "https://allenai.org/data/scitail", INFERENCE[:2]),
    _questions("squad", "squad", "https://rajpurkar.github.io/SQuAD-explorer, arXiv:1606.05250"),
    _questions("squad2", "squad2", "https://rajpurkar.github.io/SQuAD-explorer, arXiv:1806.03822"),
    _tagged("conll2003", "https://www.clips.uantwerpen.be/conll2003/ner, arXiv:cs/0306050"),
    Dataset("swag", "choice", ACCURACY, lambda path, reading: list(read_swag(path, reading)),
            "https://github.com/rowanz/swagaf, arXiv:1808.05326"),
    Dataset("race", "choice", ACCURACY, lambda path, reading: list(read_race(path, reading)),
            "https://www.cs.cmu.edu/~glai1/data/race, arXiv:1704.04683"),
    Dataset("storycloze", "choice", ACCURACY, lambda path, reading: list(read_story_cloze(path, reading)),
            "https://cs.rochester.edu/nlp/rocstories, arXiv:1604.01696"),
    Dataset("babi", "pair", ("accuracy",), lambda path, reading: list(read_babi(path, reading)),
            "https://research.fb.com/downloads/babi, arXiv:1502.05698"),
    _folders("imdb", IMDB, "https://ai.stanford.edu/~amaas/data/sentiment", ("neg", "pos")),
    _table("agnews", "classify", AG, "arXiv:1509.01626", ("1", "2", "3", "4")),
    _table("yelp", "classify", YELP, "arXiv:1509.01626"),
    _table("chnsenticorp", "classify", REVIEWS, "https://github.com/ymcui/Chinese-BERT-wwm", YES_NO),
    _table("weibo", "classify", REVIEWS, "https://github.com/SophonPlus/ChineseNlpCorpus", YES_NO),
    _table("lcqmc", "pair", MATCHING, "https://aclanthology.org/C18-1166", YES_NO),
    _table("bq", "pair", MATCHING, "https://aclanthology.org/D18-1536", YES_NO),
    _table("xnli", "pair", XNLI, "https://github.com/facebookresearch/XNLI, arXiv:1809.05053", INFERENCE),
    _tagged("msra-ner", "https://github.com/OYE93/Chinese-NLP-Corpus, https://aclanthology.org/W06-0115"),
    _tagged("peoples-daily-ner", "https://github.com/OYE93/Chinese-NLP-Corpus"),
    _questions("cmrc2018", "cmrc", "https://github.com/ymcui/cmrc2018, arXiv:1810.07366", faulty=True),
    _questions("drcd", "cmrc", "https://github.com/DRCKnowledgeTeam/DRCD, arXiv:1806.00920", faulty=True),
    _questions("cjrc", "cjrc", "https://github.com/china-ai-law-challenge/CAIL2019", faulty=True),
    _table("nlpcc-dbqa", "rank", DBQA, "http://tcci.ccf.org.cn/conference/2017/dldoc/taskgline05.pdf", YES_NO,
           RANKING),
    _folders("thucnews", NEWS, "http://thuctc.thunlp.org, https://github.com/gaussic/text-classification-cnn-rnn"),
)
DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _ALL}


def kind_of(task: str) -> str:
    """The kind of a task that is named by its kind or by its data set."""
    if task in (kinds := example_kinds()):
        return task
    if task not in DATASETS:
        known = (*kinds, *DATASETS)
        raise UserError(f'no task "{task}".{did_you_mean(task, known)} There are {", ".join(known)}.')
    return DATASETS[task].kind


def code_of(task: str) -> dict[str, str]:
    """The plug-in that the kind of a task comes from: what was learnt with another is another result."""
    return plugins.used_by([registry.get("task", kind_of(task))])


def read_examples(task: str, path: str | Path, *, columns: Mapping[str, str] | None = None, encoding: str = "utf-8",
                  errors: str = "strict") -> list[Example]:
    """The examples of a file, for a kind of task (a table of one's own, whose columns can be renamed: what we call a
    column -> what the file calls it) or for a data set by its name."""
    kind, reading = kind_of(task), Reading(encoding, errors)
    if task in DATASETS:
        if columns:
            raise UserError(f"the columns of {task} are known and cannot be renamed; for a table of your own, the task "
                            f"is {kind}.")
        return DATASETS[task].read(path, reading)
    return list(head_task(kind).read(path, columns, reading))
