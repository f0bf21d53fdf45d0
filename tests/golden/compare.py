"""Two versions of the code on one machine: does the working tree compute what the commit BASE computed?

    python tests/golden/compare.py HEAD~1                      (make golden BASE=HEAD~1)
    python tests/golden/compare.py main --only 'pretrain/*' --jobs 1

BASE is checked out in a temporary worktree, and both carry out the cases of `cases.py` from the same initial weights
(`driver.py` says how). It is for refactorings: every weight, loss, score and answer must be equal, bit for bit, and
initial draws equal or of the same distribution (`tensors.py`). Exit code 0: all of it is; 1: something is not.
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

SHOWN = 6  # lines about one case


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the working tree with a commit: results must be equal.")
    parser.add_argument("base", metavar="BASE", help="the commit to compare with, such as HEAD or main")
    parser.add_argument("--only", metavar="PATTERN", action="append", help="cases of this name, such as "
                        "'pretrain/*' or electra; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the names of the cases, and run none")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="leave what the cases wrote in this new folder")
    parser.add_argument("--jobs", metavar="N", type=int, default=2, help="processes at work at a time (default: 2)")
    parser.add_argument("--own-models", action="store_true", help="each version makes the models that cases "
                        "start from, where the new one cannot read the base's")
    found = parser.parse_args(arguments)
    if found.jobs < 1:
        parser.error("--jobs must be 1 or more")
    if found.keep is not None and found.keep.exists():
        parser.error(f"{found.keep} exists already; name a folder that does not")
    known = subprocess.run(["git", "-C", str(TREE), "rev-parse", "--verify", "--quiet", f"{found.base}^{{commit}}"],
                           capture_output=True, text=True, check=False)
    if known.returncode:
        parser.error(f"git knows no commit {found.base}")
    found.commit = known.stdout.strip()
    return found


def chosen_cases(recipes: Sequence[str], only: Sequence[str] | None) -> list[Case]:
    """A pattern without * is a part of the name."""
    patterns = ["*"] if only is None else [one if "*" in one else f"*{one}*" for one in only]
    return [case for case in cases(recipes) if any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns)]


def prepare(work: Path, chosen: Sequence[Case], makers: Sequence[Worker]) -> None:
    """What both versions read: texts, and the models that the base pre-trains for cases that start from one. With two
    makers, each version reads models of its own."""
    write_texts(work / "data")
    write_stages(work / "data" / "stages.toml", SMALL, [*EXACT, "training.batch_size=4"])
    for maker in makers:
        maker.models.mkdir(parents=True)
        for name in sorted({name for case in chosen for name in case.models}):
            made = maker.ask(case := Case(f"models/{name}", model_commands(name)))
            if made["error"]:
                raise RuntimeError(f"the {maker.role} version cannot make the model {name} that others start from: "
                                   f"{made['error']}")
            (maker.folder(case) / name / "model").rename(maker.models / name)


def compare(asked: argparse.Namespace, work: Path) -> dict[str, Any]:
    began = time.perf_counter()
    with ExitStack() as open_now:
        tree = open_now.enter_context(checked_out(asked.commit, work / "worktree"))
        sources = {BASE: tree / "src", NEW: TREE / "src"}
        workers = []
        for number in range(max(2, asked.jobs)):
            role = (BASE, NEW)[number % 2]
            models = work / role / "own" if asked.own_models else work / "models"
            workers.append(Worker(role, sources[role], work, models))
            open_now.callback(workers[-1].end)
        recipes = [worker.recipes() for worker in workers]
        both = [name for name in recipes[0] if name in recipes[1]]
        chosen = chosen_cases(both, asked.only)
        if not chosen:
            raise RuntimeError(f"no case is called {' or '.join(asked.only)}; --list names all of them")
        if asked.list:
            print("\n".join(case.name for case in chosen))
            return {"equal": True}
        prepare(work, chosen, workers[:2] if asked.own_models else workers[:1])
        widths = max(len(case.name) for case in chosen), len("same distribution")
        reports = []
        for report in Comparison(workers, work, asked.keep is not None).run(chosen, asked.jobs):
            reports.append(report)
            if not asked.json:
                show(report, *widths)
    return {"base": asked.commit, "equal": all(report.good for report in reports),
            "seconds": round(time.perf_counter() - began, 1), "left_out": sorted(set(recipes[0]) ^ set(recipes[1])),
            "cases": [asdict(report) for report in reports]}


def show(report: Report, width: int, words: int) -> None:
    told = [f"{report.case:{width}}  {report.verdict:{words}}",
            *(f"{role} {seconds:5.1f} s" for role, seconds in report.seconds.items())]
    told += [f"largest difference {report.largest:.2g}"] if report.largest is not None else []
    told += [f"losses differ from step {report.first_step}"] if report.first_step is not None else []
    lines = [*report.details[:SHOWN], *report.notes]
    lines += [f"and {len(report.details) - SHOWN} more"] if len(report.details) > SHOWN else []
    print("\n".join(["  ".join(told), *(f"    {line}" for line in lines)]), flush=True)


def summary(found: dict[str, Any]) -> str:
    counts: dict[str, int] = {}
    for case in found["cases"]:
        counts[case["verdict"]] = counts.get(case["verdict"], 0) + 1
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    aside = f"; recipes of one version alone: {', '.join(found['left_out'])}" if found["left_out"] else ""
    count = len(found["cases"])
    return (f"{count} case{'' if count == 1 else 's'} against {found['base'][:10]} in {found['seconds']:.0f} s: {told}"
            f"{aside}")


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parsed(arguments)

    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, frame: object) -> NoReturn:
        for each in ending:
            signal.signal(each, signal.SIG_IGN)  # what follows is short, and is not to be interrupted
        raise KeyboardInterrupt

    for each in ending:  # so that the worktree is removed however it ends
        signal.signal(each, stop)
    with ExitStack() as open_now:
        if asked.keep is None:
            work = Path(open_now.enter_context(tempfile.TemporaryDirectory(prefix="golden-")))
        else:
            work = asked.keep.resolve()
            work.mkdir(parents=True)
        try:
            found = compare(asked, work)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    if not asked.list:
        print(json.dumps(found) if asked.json else summary(found))
    return 0 if found["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
