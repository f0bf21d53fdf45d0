"""The comparison of two versions: it reports changed results, and ignores renamed parameters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tensors
import torch
from cases import MODELS, Case, cases
from driver import BASE, NEW, InitialWeights, owner_of, patch_torch
from outcome import compare_case, compare_folders
from safetensors.torch import save_file
from tensors import (
    EQUAL,
    SAME_DISTRIBUTION,
    difference,
    init_verdict,
    match,
    network_init_verdict,
    read_weights,
    write_weights,
)
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


def write_output(folder: Path, tensors_by_name: dict[str, torch.Tensor], lines=LINES, **result) -> Path:
    """Write the output folder of a case."""
    (folder / "run" / "model").mkdir(parents=True)
    save_file(tensors_by_name, folder / "run" / "model" / "model.safetensors")
    (folder / "run" / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = {"version": 2, "made": {"stemma": "0.2.0"}}
    (folder / "run" / "results.json").write_text(json.dumps(result.pop("results", results)))
    (folder / "run" / "result.json").write_text(json.dumps({"run": str(folder), "seconds": len(str(folder)), **result}))
    return folder


def compared(tmp_path: Path, new_weights: dict[str, torch.Tensor], lines=LINES, **result):
    base = write_output(tmp_path / BASE, weights(), loss=1.0, metrics={"dev": {"accuracy": 0.5}})
    new = write_output(tmp_path / NEW, new_weights, lines,
                       **{"loss": 1.0, "metrics": {"dev": {"accuracy": 0.5}}, **result})
    return compare_folders(base, new, (str(base), str(new)))


def test_results_that_differ_in_times_and_paths_are_equal(tmp_path):
    later = [{**line, "seconds": 9.0, "tokens_per_second": 7.0} for line in LINES]
    assert compared(tmp_path, weights(), later, results={"version": 2, "made": {"stemma": "0.3.0"}}).equal


def test_a_changed_weight_is_reported_with_its_difference(tmp_path):
    changed = weights()
    changed["second.weight"][3, 5] += 0.25
    outcome = compared(tmp_path, changed)
    assert outcome.largest == pytest.approx(0.25) and outcome.where.endswith("second.weight")
    assert outcome.first_step is None


def test_renamed_tensors_are_equal_and_swapped_tensors_are_not(tmp_path):
    renamed = {f"new.{name}": tensor for name, tensor in weights().items()}
    assert compared(tmp_path / "renamed", renamed).equal
    swapped = weights() | {"first.weight": weights()["second.weight"], "second.weight": weights()["first.weight"]}
    assert not compared(tmp_path / "swapped", swapped).equal
    missing = {name: tensor for name, tensor in weights().items() if name != "bias"}
    assert difference(weights(), missing).unmatched == 1
    assert difference(weights(), weights() | {"bias": torch.zeros(64, dtype=torch.float64)}) is not None


def test_the_first_step_with_another_loss_is_reported(tmp_path):
    outcome = compared(tmp_path, weights(), [*LINES[:1], {**LINES[1], "losses": {"masked_lm": 2.5000001}}, LINES[2]])
    assert outcome.first_step == 2 and "losses.masked_lm of step 2" in outcome.differences[0]
    assert not compared(tmp_path / "shorter", weights(), LINES[:2]).equal


def test_another_score_and_a_missing_file_are_reported(tmp_path):
    outcome = compared(tmp_path / "score", weights(), metrics={"dev": {"accuracy": 0.25}})
    assert outcome.differences == ["run/result.json: metrics.dev.accuracy is 0.5, now 0.25"]
    base, new = write_output(tmp_path / "a", weights()), write_output(tmp_path / "b", weights())
    (new / "run" / "log.jsonl").unlink()
    assert compare_folders(base, new, (str(base), str(new))).differences == ["run/log.jsonl: only in the base"]


def test_a_failed_case_is_reported_with_its_message(tmp_path):
    good, bad = ({"error": error, "seconds": 1.0, "networks": 1, "notes": [], "problems": []}
                 for error in (None, "pretrain: error: an example"))
    report = compare_case(Case("pretrain/x", (("pretrain",),)), {BASE: good, NEW: bad}, tmp_path)
    assert not report.good and report.details == ["the new version: pretrain: error: an example"]


def truncated(spread: float, *shape: int) -> torch.Tensor:
    return nn.init.trunc_normal_(torch.empty(*shape), std=spread, a=-2 * spread, b=2 * spread)


def test_initial_weights_are_compared_by_distribution(tmp_path):
    first, second = torch.randn(300, 64), torch.randn(300, 64)
    assert (init_verdict(first, first.clone()), init_verdict(first, second)) == (EQUAL, SAME_DISTRIBUTION)
    assert "standard deviation" in init_verdict(first, 1.1 * second)
    assert "mean" in init_verdict(first, second + 0.1)
    assert init_verdict(first, (2 * torch.rand(300, 64) - 1) * 3**0.5) == "another shape of the distribution"
    assert "standard deviation" in init_verdict(torch.randn(300, 64), truncated(1.0, 300, 64))
    assert init_verdict(torch.zeros(64), torch.ones(64)) == "constant 0, now constant 1"
    assert init_verdict(torch.zeros(64), torch.randn(64)) == "constant 0, now random"


def test_rows_with_another_distribution_are_reported():
    """Queries initialized smaller than keys: exchanging both does not change the distribution of the whole matrix."""
    scale = torch.ones(96, 1)
    scale[:32] = 0.2
    assert init_verdict(torch.randn(96, 64) * scale, torch.randn(96, 64) * scale) == SAME_DISTRIBUTION
    assert init_verdict(torch.randn(96, 64) * scale, torch.randn(96, 64) * scale.flip(0)).startswith("row ")
    padded, other = torch.randn(96, 64), torch.randn(96, 64)
    padded[0] = 0
    assert init_verdict(padded, other) == "other rows are constant"


def test_two_seeds_have_the_same_distribution_and_another_standard_deviation_does_not():
    import stemma

    networks = []
    for seed, changes in ((0, ()), (1, ()), (1, ("network.initialization.spread=0.022",))):
        torch.manual_seed(seed)
        networks.append(dict(stemma.build("electra@tiny", 400, changes).network.named_parameters()))
    assert network_init_verdict(networks[0], networks[1]) == (SAME_DISTRIBUTION, [])
    verdict, problems = network_init_verdict(networks[0], networks[2])
    assert verdict == "different" and len(problems) > 10


class Body(nn.Module):
    def __init__(self, *names: str):
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(64, 64))


def test_renamed_parameters_are_paired_by_shape_and_order(tmp_path, monkeypatch):
    """In the order of the network, not in the alphabetical order of the file."""
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
    initial = InitialWeights(BASE)
    patch_torch(initial)
    initial.begin(tmp_path)
    source, base = Body("a", "b"), Body("a", "b")
    base.load_state_dict({"b.weight": source.b.weight}, strict=False)
    torch.optim.Adam(base.parameters())
    torch.optim.SGD(base.a.parameters())  # another optimizer for a part of the same network
    initial.role = NEW
    initial.begin(tmp_path)
    new = Body("first", "b")
    with torch.no_grad():
        new.first.bias.zero_()
    torch.optim.Adam([{"params": list(new.b.parameters())}, {"params": list(new.first.parameters())}])
    assert torch.equal(new.first.weight, base.a.weight) and torch.equal(new.b.weight, source.b.weight)
    assert initial.notes[0].startswith("network 1: paired by shape and order: a.weight with first.weight, and 1")
    assert len(initial.problems) == 2  # b.weight is not loaded in the new version, and a bias is constant
    assert "loaded from a model" in initial.problems[0] and "now constant 0" in initial.problems[1]


def test_random_rows_of_a_loaded_embedding_are_compared_by_distribution(tmp_path):
    old = nn.Embedding(20, 64)

    def problems(role: str, loaded: torch.Tensor) -> list[str]:
        initial, embedding = InitialWeights(role), nn.Embedding(24, 64)
        initial.begin(tmp_path)
        initial.mark_loaded(old, old.state_dict())
        with torch.no_grad():
            embedding.weight[:20] = loaded
        initial.mark_loaded(embedding, embedding.state_dict())
        initial.share(embedding)
        return initial.problems

    assert problems(BASE, old.weight) == problems(NEW, old.weight) == []
    assert problems(NEW, -old.weight) == ["network 1: loaded from a model, and not equal: weight"]


def test_the_module_of_parameters_is_found_in_the_callers():
    class Holder:
        def __init__(self):
            self.network = Body("a")

        def find_module(self) -> nn.Module:
            return owner_of([self.network.a.bias])

    holder = Holder()
    assert holder.find_module() is holder.network


def test_every_recipe_and_every_kind_of_task_has_a_case(tmp_path):
    all_cases = cases(recipe_loading.recipe_names())
    names = [case.name for case in all_cases]
    assert len(set(names)) == len(names)
    assert {f"{group}/{name}" for group in ("init", "pretrain") for name in recipe_loading.recipe_names()} < set(names)
    assert {f"finetune/{kind}" for kind in KINDS} < set(names) and "finetune/seq2seq-bart" in names
    assert {name for case in all_cases for name in case.models} == set(MODELS)
    for folder in ("first", "second"):
        write_texts(tmp_path / folder)
    files = sorted(file.name for file in (tmp_path / "first").iterdir())
    assert all((tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes() for name in files)


@pytest.mark.slow
def test_a_tree_equals_its_last_commit_and_the_worktree_is_removed():
    def git(*words: str) -> str:
        result = subprocess.run(["git", "-C", str(TREE), *words], capture_output=True, text=True, check=False)
        return "no repository" if result.returncode else result.stdout

    def worktrees() -> list[str]:
        """Their folders; the commits in them may change meanwhile."""
        return [line.split()[0] for line in git("worktree", "list").splitlines()]

    if git("status", "--porcelain", "src"):
        pytest.skip("src has changes that are not committed")
    before = worktrees()
    only = ["--only", "pretrain/electra", "--only", "init/t5", "--only", "finetune/tag"]
    done = subprocess.run([sys.executable, str(TREE / "tests/golden/compare.py"), "HEAD", "--json", *only],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["equal"] and {case["case"]: case["verdict"] for case in result["cases"]} == {
        "init/t5": EQUAL, "pretrain/electra": "equal", "finetune/tag": "equal", "finetune/tag-albert": "equal"}
    assert worktrees() == before
