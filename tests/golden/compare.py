"""Compares the results of the working tree with those of the commit BASE, on one machine.

    python tests/golden/compare.py HEAD~1                      (make golden BASE=HEAD~1)
    python tests/golden/compare.py main --only 'pretrain/*' --jobs 1

BASE is checked out in a temporary worktree, and both versions run the cases of `cases.py` from the same initial weights
(see `driver.py`). It is for refactorings: weights, losses, scores and predictions must be equal bit for bit. The
initial weights of a new network must be equal or have the same distribution (`tensors.py`). Exit code 0: equal; 1:
different.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from cases import EXACT, SMALL, Case, cases, model_commands
from outcome import BASE, NEW, Report
from texts import write_stages, write_texts
from workers import TREE, Comparison, Worker, checked_out

MAX_LINES = 6  # per case


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the working tree with a commit: results must be equal.")
    parser.add_argument("base", metavar="BASE", help="the commit to compare with, such as HEAD or main")
    parser.add_argument("--only", metavar="PATTERN", action="append", help="cases of this name, such as "
                        "'pretrain/*' or electra; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and exit")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep the output of the cases in this new folder")
    parser.add_argument("--jobs", metavar="N", type=int, default=2, help="number of parallel processes (default: 2)")
    parser.add_argument("--own-models", action="store_true", help="each version pre-trains its own start "
                        "models, for a change of the model format")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs must be 1 or more")
    if options.keep is not None and options.keep.exists():
        parser.error(f"{options.keep} exists already; name a folder that does not")
    parsed = subprocess.run(["git", "-C", str(TREE), "rev-parse", "--verify", "--quiet", f"{options.base}^{{commit}}"],
                            capture_output=True, text=True, check=False)
    if parsed.returncode:
        parser.error(f"git has no commit {options.base}")
    options.commit = parsed.stdout.strip()
    return options


def select_cases(recipes: Sequence[str], only: Sequence[str] | None) -> list[Case]:
    """The cases that match a pattern; a pattern without * matches any part of a name."""
    patterns = ["*"] if only is None else [pattern if "*" in pattern else f"*{pattern}*" for pattern in only]
    return [case for case in cases(recipes) if any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns)]


def prepare(work: Path, selected: Sequence[Case], workers: Sequence[Worker]) -> None:
    """Write the data of the cases and pre-train their start models. With one worker (the base) both versions use its
    models; with two, each uses its own."""
    write_texts(work / "data")
    write_stages(work / "data" / "stages.toml", SMALL, [*EXACT, "training.batch_size=4"])
    for worker in workers:
        worker.models.mkdir(parents=True)
        for name in sorted({name for case in selected for name in case.models}):
            response = worker.run_case(case := Case(f"models/{name}", model_commands(name)))
            if response["error"]:
                raise RuntimeError(f"the {worker.role} version cannot pre-train the start model {name}: "
                                   f"{response['error']}")
            (worker.folder(case) / name / "model").rename(worker.models / name)


def compare(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    began = time.perf_counter()
    with ExitStack() as stack:
        tree = stack.enter_context(checked_out(options.commit, work / "worktree"))
        sources = {BASE: tree / "src", NEW: TREE / "src"}
        workers = []
        for index in range(max(2, options.jobs)):
            role = (BASE, NEW)[index % 2]
            models = work / role / "own" if options.own_models else work / "models"
            workers.append(Worker(role, sources[role], work, models))
            stack.callback(workers[-1].end)
        recipes = [worker.recipes() for worker in workers]
        common = [name for name in recipes[0] if name in recipes[1]]
        selected = select_cases(common, options.only)
        if not selected:
            raise RuntimeError(f"no case matches {' or '.join(options.only)}; --list prints all names")
        if options.list:
            print("\n".join(case.name for case in selected))
            return {"equal": True}
        prepare(work, selected, workers[:2] if options.own_models else workers[:1])
        widths = max(len(case.name) for case in selected), len("same distribution")
        reports = []
        for report in Comparison(workers, work, options.keep is not None).run(selected, options.jobs):
            reports.append(report)
            if not options.json:
                show(report, *widths)
    return {"base": options.commit, "equal": all(report.good for report in reports),
            "seconds": round(time.perf_counter() - began, 1), "left_out": sorted(set(recipes[0]) ^ set(recipes[1])),
            "cases": [asdict(report) for report in reports]}


def show(report: Report, width: int, verdict_width: int) -> None:
    columns = [f"{report.case:{width}}  {report.verdict:{verdict_width}}",
               *(f"{role} {seconds:5.1f} s" for role, seconds in report.seconds.items())]
    columns += [f"largest difference {report.largest:.2g}"] if report.largest is not None else []
    columns += [f"losses differ from step {report.first_step}"] if report.first_step is not None else []
    lines = [*report.details[:MAX_LINES], *report.notes]
    lines += [f"and {len(report.details) - MAX_LINES} more"] if len(report.details) > MAX_LINES else []
    print("\n".join(["  ".join(columns), *(f"    {line}" for line in lines)]), flush=True)


def summary(result: dict[str, Any]) -> str:
    counts: dict[str, int] = {}
    for case in result["cases"]:
        counts[case["verdict"]] = counts.get(case["verdict"], 0) + 1
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    left_out = f"; recipes of only one version: {', '.join(result['left_out'])}" if result["left_out"] else ""
    count = len(result["cases"])
    return (f"{count} case{'' if count == 1 else 's'} against {result['base'][:10]} in {result['seconds']:.0f} s: "
            f"{verdicts}{left_out}")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, frame: object) -> NoReturn:
        for name in signals:
            signal.signal(name, signal.SIG_IGN)  # do not interrupt the removal of the worktree
        raise KeyboardInterrupt

    for name in signals:  # so that the worktree is always removed
        signal.signal(name, stop)
    with ExitStack() as stack:
        if options.keep is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="golden-")))
        else:
            work = options.keep.resolve()
            work.mkdir(parents=True)
        try:
            result = compare(options, work)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    if not options.list:
        print(json.dumps(result) if options.json else summary(result))
    return 0 if result["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
