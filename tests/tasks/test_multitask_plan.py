"""Multi-task plans: their content, and all problems in one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from stemma.errors import UserError
from stemma.tasks.datasets import read_examples
from stemma.tasks.runs.multitask_plan import MultitaskPlan, read_multitask_plan

GOOD = """
epochs = 2
finetune = true
[training]
learning_rate = 1e-3
[tasks.first]
kind = "pair"
train = "a.tsv"
dev = "sub/b.tsv"
columns = {text_a = "one", text_b = "two"}
metric = "accuracy"
head = "san"
steps = 3
weight = 2
[tasks.second-1]
dataset = "sst2"
train = "a.tsv"
dev = "a.tsv"
test = "a.tsv"
metric = ["accuracy", "f1"]
dropout = 0.3
"""


def plan_of(folder: Path, text: str) -> MultitaskPlan:
    (folder / "sub").mkdir(exist_ok=True)
    for name in ("a.tsv", "sub/b.tsv"):
        (folder / name).touch()
    (folder / "plan.toml").write_text(text)
    return read_multitask_plan(folder / "plan.toml")


def problems_of(folder: Path, text: str) -> dict[str, str]:
    with pytest.raises(UserError) as caught:
        plan_of(folder, text)
    return dict(caught.value.problems)


def test_paths_are_relative_to_the_plan(tmp_path):
    plan = plan_of(tmp_path, GOOD)
    assert (plan.epochs, plan.finetune, plan.training) == (2, True, {"learning_rate": 1e-3})
    first, second = plan.tasks["first"], plan.tasks["second-1"]
    assert (first.task_name, first.head, first.steps, first.weight, first.metric) == ("pair", "san", 3, 2, ["accuracy"])
    assert (second.task_name, second.head, second.dropout) == ("sst2", "linear", 0.3)
    assert plan.files("first") == {"train": tmp_path / "a.tsv", "dev": tmp_path / "sub/b.tsv"}
    assert set(plan.files("second-1")) == {"train", "dev", "test"}


def test_all_problems_are_reported_together(tmp_path):
    problems = problems_of(tmp_path, """
epoch = 2
[training]
learning_rat = 1e-3
batch_size = 0
[tasks.first]
kind = "pair"
trian = "a.tsv"
train = "missing.tsv"
dev = "a.tsv"
[tasks.second]
dataset = "sst3"
train = "gone.tsv"
dev = "gone.tsv"
weight = 1.0
[tasks.third]
kind = "classify"
train = "a.tsv"
dev = "a.tsv"
head = "san"
metric = ["pearson"]
[tasks.fourth]
train = "a.tsv"
dev = "a.tsv"
[tasks.fifth]
kind = "regress"
train = "a.tsv"
dev = "a.tsv"
weight = -1.0
""")
    assert problems["epoch = 2"] == 'no such key. Did you mean "epochs"?'
    assert problems["training.batch_size = 0"] == "must be 1 or more"
    assert 'Did you mean "training.learning_rate"' in problems["training.learning_rat = 0.001"]
    assert problems["tasks.first.trian = a.tsv"] == 'no such key. Did you mean "train"?'
    assert problems["tasks.first.train = missing.tsv"] == f"there is no file {tmp_path}/missing.tsv"
    assert problems["tasks.second.train = gone.tsv"] == f"there is no file {tmp_path}/gone.tsv"
    assert problems["tasks.second.dev = gone.tsv"] == f"there is no file {tmp_path}/gone.tsv"
    assert 'Did you mean "sst2"' in problems["tasks.second.dataset = sst3"]
    assert "this task is of kind classify" in problems["tasks.third.head = san"]
    assert "pearson" in problems["tasks.third.metric"]
    assert problems["tasks.fourth"].startswith("neither is given")
    assert problems["tasks.fifth.weight = -1.0"] == "must be greater than 0"


@pytest.mark.parametrize(("keys", "where", "what"), [
    ('kind = "pair"\ndataset = "mrpc"', "tasks.one", "both are given"),
    ('kind = "sst2"', "tasks.one.kind = sst2", "belongs to dataset"),
    ('dataset = "pair"', "tasks.one.dataset = pair", "write it as kind"),
    ('dataset = "mrpc"\ncolumns = {text_a = "x"}', "tasks.one.columns", "cannot be renamed"),
    ('kind = "pair"\nsteps = 3', "tasks.one.steps = 3", 'head = "san"'),
    ('kind = "qa"\ndropout = 0.2', "tasks.one.dropout = 0.2", "has none"),
    ('kind = "pair"\nhead = "lstm"', "tasks.one.head = lstm", "must be one of linear, san"),
    ('kind = "pair"\ncolumns = {text_a = 3}', "tasks.one.columns.text_a = 3", "must be text"),
])
def test_conflicting_keys_are_rejected(tmp_path, keys, where, what):
    problems = problems_of(tmp_path, f'[tasks.one]\ntrain = "a.tsv"\ndev = "a.tsv"\n{keys}\n')
    assert what in problems[where]


@pytest.mark.parametrize(("name", "what"), [('"a b"', "letters, digits"), ('"a.b"', "letters, digits"),
                                            ("pooler", "uses this name"), ("vocabulary", "uses this name"),
                                            ("items", "uses this name"), ("training", "uses this name")])
def test_reserved_head_names_are_rejected(tmp_path, name, what):
    problems = problems_of(tmp_path, f'[tasks.{name}]\nkind = "pair"\ntrain = "a.tsv"\ndev = "a.tsv"\n')
    assert what in "".join(problems.values())


def test_empty_duplicate_and_invalid_plans_are_rejected(tmp_path):
    assert "[tasks.NAME]" in problems_of(tmp_path, "epochs = 1\n")["tasks"]
    assert "[tasks.NAME]" in problems_of(tmp_path, "tasks = 3\n")["tasks"]
    assert "must be a table" in problems_of(tmp_path, "[tasks]\none = 3\n")["tasks.one"]
    entry = 'kind = "pair"\ntrain = "a.tsv"\ndev = "a.tsv"\n'
    with pytest.raises(UserError, match=r'plan.toml, line 5: a second task "one"; give each its own name'):
        plan_of(tmp_path, f"[tasks.one]\n{entry}[tasks.one]\n{entry}")
    with pytest.raises(UserError, match="not valid TOML"):
        plan_of(tmp_path, "tasks = [")
    with pytest.raises(UserError, match="cannot read the plan"):
        read_multitask_plan(tmp_path / "none.toml")


def test_qnli_can_be_read_as_a_ranking(tmp_path):
    """arXiv:1901.11504, section 4: which of a question's sentences has the answer."""
    file = tmp_path / "dev.tsv"
    file.write_text("index\tquestion\tsentence\tlabel\n0\tq\ta\tentailment\n1\tq\tb\tnot_entailment\n")
    problems = read_examples("qnli-rank", file)
    assert [(example.texts, example.label, example.group) for example in problems] == \
           [(("q", "a"), "1", "q"), (("q", "b"), "0", "q")]
