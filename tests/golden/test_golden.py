"""The comparison itself: it finds what changed, and lets pass what is only called otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tensors
import torch
from cases import MODELS, Case, cases
from driver import BASE, NEW, Starts, owner_of, watch
from outcome import compare_folders, judge
from safetensors.torch import save_file
from tensors import ALIKE, EQUAL, difference, draw_verdict, draws_verdict, match, read_weights, write_weights
from texts import KINDS, write_texts
from torch import nn
from workers import TREE

from stemma import recipe_loading

LINES = [{"step": step, "loss": 5.0 / step, "losses": {"masked_lm": 5.0 / step}, "learning_rate": 0.1, "seconds": step}
         for step in (1, 2, 3)]


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {"first.weight": torch.randn(40, 64, generator=rng), "second.weight": torch.randn(40, 64, generator=rng),
            "norm.weight": torch.ones(64), "bias": torch.zeros(64)}


def leave(folder: Path, made: dict[str, torch.Tensor], lines=LINES, **result) -> Path:
    """A folder as a case leaves it."""
    (folder / "run" / "model").mkdir(parents=True)
    save_file(made, folder / "run" / "model" / "model.safetensors")
    (folder / "run" / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = {"version": 2, "made": {"stemma": "0.2.0"}}
    (folder / "run" / "results.json").write_text(json.dumps(result.pop("results", results)))
    (folder / "run" / "result.json").write_text(json.dumps({"run": str(folder), "seconds": len(str(folder)), **result}))
    return folder


def compared(tmp_path: Path, made: dict[str, torch.Tensor], lines=LINES, **result):
    base = leave(tmp_path / BASE, weights(), loss=1.0, metrics={"dev": {"accuracy": 0.5}})
    new = leave(tmp_path / NEW, made, lines, **{"loss": 1.0, "metrics": {"dev": {"accuracy": 0.5}}, **result})
    return compare_folders(base, new, (str(base), str(new)))


def test_the_same_again_is_equal_but_for_times_and_places(tmp_path):
    later = [{**line, "seconds": 9.0, "tokens_per_second": 7.0} for line in LINES]
    assert compared(tmp_path, weights(), later, results={"version": 2, "made": {"stemma": "0.3.0"}}).equal


def test_one_changed_weight_is_found_and_measured(tmp_path):
    changed = weights()
    changed["second.weight"][3, 5] += 0.25
    found = compared(tmp_path, changed)
    assert found.largest == pytest.approx(0.25) and found.where.endswith("second.weight") and found.first_step is None


def test_names_do_not_matter_but_what_a_name_holds_does(tmp_path):
    renamed = {f"new.{name}": tensor for name, tensor in weights().items()}
    assert compared(tmp_path / "renamed", renamed).equal
    swapped = weights() | {"first.weight": weights()["second.weight"], "second.weight": weights()["first.weight"]}
    assert not compared(tmp_path / "swapped", swapped).equal
    lacking = {name: tensor for name, tensor in weights().items() if name != "bias"}
    assert difference(weights(), lacking).lonely == 1
    assert difference(weights(), weights() | {"bias": torch.zeros(64, dtype=torch.float64)}) is not None


def test_the_first_step_whose_loss_differs_is_named(tmp_path):
    found = compared(tmp_path, weights(), [*LINES[:1], {**LINES[1], "losses": {"masked_lm": 2.5000001}}, LINES[2]])
    assert found.first_step == 2 and "losses.masked_lm of step 2" in found.differences[0]
    assert not compared(tmp_path / "shorter", weights(), LINES[:2]).equal


def test_another_score_or_a_missing_file_is_a_difference(tmp_path):
    found = compared(tmp_path / "score", weights(), metrics={"dev": {"accuracy": 0.25}})
    assert found.differences == ["run/result.json: metrics.dev.accuracy is 0.5, now 0.25"]
    base, new = leave(tmp_path / "a", weights()), leave(tmp_path / "b", weights())
    (new / "run" / "log.jsonl").unlink()
    assert compare_folders(base, new, (str(base), str(new))).differences == ["run/log.jsonl: only in the base"]


def test_a_case_that_fails_is_told_with_its_message(tmp_path):
    good, bad = ({"error": error, "seconds": 1.0, "networks": 1, "notes": [], "problems": []}
                 for error in (None, "pretrain: error: planted"))
    report = judge(Case("pretrain/x", (("pretrain",),)), {BASE: good, NEW: bad}, tmp_path)
    assert not report.good and report.details == ["the new version: pretrain: error: planted"]


def truncated(spread: float, *shape: int) -> torch.Tensor:
    return nn.init.trunc_normal_(torch.empty(*shape), std=spread, a=-2 * spread, b=2 * spread)


def test_draws(tmp_path):
    one, other = torch.randn(300, 64), torch.randn(300, 64)
    assert (draw_verdict(one, one.clone()), draw_verdict(one, other)) == (EQUAL, ALIKE)
    assert "standard deviation" in draw_verdict(one, 1.1 * other)
    assert "mean" in draw_verdict(one, other + 0.1)
    assert draw_verdict(one, (2 * torch.rand(300, 64) - 1) * 3**0.5) == "another shape of the distribution"
    assert "standard deviation" in draw_verdict(torch.randn(300, 64), truncated(1.0, 300, 64))
    assert draw_verdict(torch.zeros(64), torch.ones(64)) == "constant 0, now constant 1"
    assert draw_verdict(torch.zeros(64), torch.randn(64)) == "constant 0, now random"


def test_a_part_of_a_matrix_that_is_drawn_otherwise_is_found():
    """Queries that start smaller than keys: the numbers of the whole matrix are the same when the two change places."""
    scale = torch.ones(96, 1)
    scale[:32] = 0.2
    assert draw_verdict(torch.randn(96, 64) * scale, torch.randn(96, 64) * scale) == ALIKE
    assert draw_verdict(torch.randn(96, 64) * scale, torch.randn(96, 64) * scale.flip(0)).startswith("row ")
    padded, other = torch.randn(96, 64), torch.randn(96, 64)
    padded[0] = 0
    assert draw_verdict(padded, other) == "other rows are constant"


def test_a_recipe_drawn_with_two_seeds_has_one_distribution_and_another_spread_has_not():
    import stemma

    made = []
    for seed, changes in ((0, ()), (1, ()), (1, ("network.initialization.spread=0.022",))):
        torch.manual_seed(seed)
        made.append(dict(stemma.build("electra@tiny", 400, changes).network.named_parameters()))
    assert draws_verdict(made[0], made[1]) == (ALIKE, [])
    verdict, problems = draws_verdict(made[0], made[2])
    assert verdict == "different" and len(problems) > 10


class Body(nn.Module):
    def __init__(self, *names: str):
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(64, 64))


def test_renamed_parameters_are_paired_by_shape_and_order(tmp_path, monkeypatch):
    """Not in the order of their names, in which the file has them."""
    write_weights(tmp_path / "weights", Body("z", "a", "m"))
    old, new = read_weights(tmp_path / "weights")[0], dict(Body("one", "two", "m").named_parameters())
    assert list(old) == [f"{name}.{kind}" for name in "zam" for kind in ("weight", "bias")]
    matched = match(old, new)
    assert (matched.pairs["z.weight"], matched.pairs["a.bias"], matched.pairs["m.bias"]) == (
        "one.weight", "two.bias", "m.bias")
    assert len(matched.by_order) == 4 and not matched.only_base and not matched.only_new
    monkeypatch.setattr(tensors, "RENAMED", ((r"^z\.", "two."),))
    assert match(old, new).pairs["z.weight"] == "two.weight"


def test_every_network_that_gets_an_optimizer_starts_with_the_weights_of_the_base(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)  # restored afterwards
    monkeypatch.setattr(nn.Module, "load_state_dict", nn.Module.load_state_dict)
    starts = Starts(BASE)
    watch(starts)
    starts.begin(tmp_path)
    read, base = Body("a", "b"), Body("a", "b")
    base.load_state_dict({"b.weight": read.b.weight}, strict=False)
    torch.optim.Adam(base.parameters())
    torch.optim.SGD(base.a.parameters())  # another one for the same network, or for a part of it
    starts.role = NEW
    starts.begin(tmp_path)
    new = Body("first", "b")
    with torch.no_grad():
        new.first.bias.zero_()
    torch.optim.Adam([{"params": list(new.b.parameters())}, {"params": list(new.first.parameters())}])
    assert torch.equal(new.first.weight, base.a.weight) and torch.equal(new.b.weight, read.b.weight)
    assert starts.notes[0].startswith("network 1: paired by shape and order: a.weight with first.weight, and 1")
    assert len(starts.problems) == 2  # b.weight was not read from a model here, and a bias is not drawn
    assert "read from a model" in starts.problems[0] and "now constant 0" in starts.problems[1]


def test_rows_for_new_tokens_are_drawn_although_the_table_is_read(tmp_path):
    old = nn.Embedding(20, 64)

    def problems(role: str, read: torch.Tensor) -> list[str]:
        starts, table = Starts(role), nn.Embedding(24, 64)
        starts.begin(tmp_path)
        starts.mark(old, old.state_dict())
        with torch.no_grad():
            table.weight[:20] = read
        starts.mark(table, table.state_dict())
        starts.take(table)
        return starts.problems

    assert problems(BASE, old.weight) == problems(NEW, old.weight) == []
    assert problems(NEW, -old.weight) == ["network 1: read from a model, and not the same: weight"]


def test_the_owner_of_parameters_is_found_from_where_they_are_used():
    class Holder:
        def __init__(self):
            self.network = Body("a")

        def ask(self) -> nn.Module:
            return owner_of([self.network.a.bias])

    holder = Holder()
    assert holder.ask() is holder.network


def test_every_recipe_and_every_kind_of_task_has_a_case(tmp_path):
    made = cases(recipe_loading.recipe_names())
    names = [case.name for case in made]
    assert len(set(names)) == len(names)
    assert {f"{room}/{name}" for room in ("draw", "pretrain") for name in recipe_loading.recipe_names()} < set(names)
    assert {f"finetune/{kind}" for kind in KINDS} < set(names) and "finetune/seq2seq-bart" in names
    assert {name for case in made for name in case.models} == set(MODELS)
    for folder in ("one", "two"):
        write_texts(tmp_path / folder)
    files = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)


@pytest.mark.slow
def test_a_tree_is_equal_to_its_last_commit_and_nothing_is_left_of_it():
    def git(*words: str) -> str:
        found = subprocess.run(["git", "-C", str(TREE), *words], capture_output=True, text=True, check=False)
        return "no repository" if found.returncode else found.stdout

    if git("status", "--porcelain", "src"):
        pytest.skip("src has changes that are not committed")
    before = git("worktree", "list")
    only = ["--only", "pretrain/electra", "--only", "draw/t5", "--only", "finetune/tag"]
    done = subprocess.run([sys.executable, str(TREE / "tests/golden/compare.py"), "HEAD", "--json", *only],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["equal"] and {case["case"]: case["verdict"] for case in found["cases"]} == {
        "draw/t5": EQUAL, "pretrain/electra": "equal", "finetune/tag": "equal", "finetune/tag-albert": "equal"}
    assert git("worktree", "list") == before
