"""An experiment as something one can read: `report.html`, and the story that it shares with `report.md`.

Drawn from `results.json` alone. The story is told once, on a sheet; whether that is a page or Markdown is the sheet's
business.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stemma.errors import counted
from stemma.lab.report import lab_words as words
from stemma.lab.report.lab_details import tell_cost, tell_curves, tell_recipes, tell_reproduction, tell_scaling
from stemma.lab.report.page import NOTHING, Cell, Page, Sheet, Value
from stemma.lab.results_data import ClaimEntry, MeasureEntry, Results, RowEntry

REPORT = "report.html"
BEST, EVEN, OPEN = "\u2605", "\u2248", "?"  # star; almost equal; inconclusive


def write_lab_report(results: Results, folder: Path) -> Path:
    page = Page(results["title"])
    tell(results, page)
    return page.write(folder / REPORT)


def tell(results: Results, sheet: Sheet) -> None:
    sheet.lead(words.headline(results), _numbers(results))
    _results(results, sheet)
    if results["contributions"] is not None:
        _which_change(results, sheet)
    tell_curves(results, sheet)
    tell_recipes(results, sheet)
    tell_cost(results, sheet)
    if results["scaling"]:
        tell_scaling(results, sheet)
    tell_reproduction(results, sheet)


def _numbers(results: Results) -> list[tuple[Cell, str]]:
    compared = [one for one in results["differences"] if words.interval(one)]
    deciding = [one for one in compared if one["measure"] == results["measures"][0]["key"]] if compared else []
    seen = [one for one in deciding if one["verdict"] in words.SEEN]
    told: list[tuple[Cell, str]] = []
    if results["claim"]:
        told.append((results["claim"]["verdict"], f"what {results['claim']['paper']} found"))
    if deciding:
        told.append((f"{len(seen)} of {len(deciding)}",
                     f"differences in {results['measures'][0]['title']} are significant"))
    done = len(words.finished(results))
    return [*told, (f"{done} of {len(results['cells'])}", "cells (a recipe with a seed) came to their end"),
            (words.budget(results, words.short), f"for each, {words.duration(results['took_seconds'])} in all")]


# --- results ---------------------------------------------------------------------------------------------------------


def _results(results: Results, sheet: Sheet) -> None:
    sheet.panel("Results")
    if results["claim"]:
        _claim(results["claim"], sheet)
    measures = results["measures"]
    marks = {measure["key"]: _marks(results, measure["key"]) for measure in measures}
    rows: list[list[Cell]] = []
    for row in results["table"]:
        counts = [len(score["values"]) for score in row["scores"].values()]
        rows.append([row["variant"], *(_score(row, measure["key"], marks[measure["key"]]) for measure in measures),
                     max(counts, default=0)])
    sheet.table(["variant", *(f"{measure['title']} ({words.kind_of_number(measure)})" for measure in measures),
                 "seeds"], rows,
                f"Means over the seeds \u00b1 their standard deviation. {BEST} the best mean of a column; {EVEN} "
                f"equivalent to the best within the margin; {OPEN} compared with the best, inconclusive.",
                sortable=True)
    sheet.points(f"{measure['title']}: {measure['about']}" for measure in measures)
    if failed := words.failures(results):
        sheet.text(f"{counted(len(failed), 'cell')} failed, and the means are over the others:")
        sheet.points(failed)
    for measure in measures:
        _differences(results, measure, sheet, drawn=measure is measures[0])
    if note := words.correction(results):
        sheet.text(note)


def _claim(claim: ClaimEntry, sheet: Sheet) -> None:
    sheet.text(f"What was published ({claim['paper']}): {claim['found']}", f"What was seen here: {claim['text']}")
    if claim["note"]:
        sheet.text(claim["note"])


def _marks(results: Results, key: str) -> dict[str, str]:
    """The best variant, those equivalent to it, and those of which it is not known. None is best of one, or by one
    seed."""
    ranking = list(words.means(results, key))
    if len(ranking) < 2:
        return {}
    standing = words.against(results, key, ranking[0])
    marks = {**dict.fromkeys(words.EVEN, EVEN), "inconclusive": OPEN}
    return {ranking[0]: BEST} | {name: marks[one] for name, one in standing.items() if one in marks}


def _score(row: RowEntry, key: str, marks: Mapping[str, str]) -> Cell:
    if key not in row["scores"]:
        return NOTHING
    score = row["scores"][key]
    spread = "" if score["spread"] is None else f" \u00b1 {words.number(score['spread'])}"
    return Value(f"{marks.get(row['variant'], '')} {words.number(score['mean'])}{spread}".strip(), score["mean"])


def _differences(results: Results, measure: MeasureEntry, sheet: Sheet, drawn: bool) -> None:
    from stemma.lab.report.lab_plots import Row, draw_forest

    found = words.differences(results, measure["key"])
    if not found:
        return
    sheet.section(f"Differences in {measure['title']}")
    what = "The second minus the first" if results["contributions"] is None else "With the change minus without it"
    if drawn:
        rows = [Row(words.pair(results, one), one["mean"], words.interval(one), one["verdict"] in words.SEEN)
                for one in found]
        sheet.figure(draw_forest(rows, f"difference{f' in {unit}' if (unit := measure['unit']) else ''}",
                                 f"{measure['title']} ({words.direction(measure)})"),
                     f"{what}, with the 95% interval where there are several seeds. Filled: significant; hollow: "
                     "not.", "differences")
    sheet.table(["between" if results["contributions"] is None else "change", "difference", "verdict"],
                [[words.pair(results, one), Value(words.signed(one["mean"]), one["mean"]), words.verdict(one)]
                 for one in found],
                f"{what}: {measure['title']}, {words.kind_of_number(measure)}. Paired by seed, with 95% intervals. "
                + (f"Equivalent: the whole interval lies within \u00b1{measure['margin']:g}, corrected for the number "
                   "of comparisons. " if measure["margin"] else "") + "Inconclusive: neither that nor significant.",
                sortable=True)


# --- which change ----------------------------------------------------------------------------------------------------


def _which_change(results: Results, sheet: Sheet) -> None:
    from stemma.lab.report.lab_plots import Step, draw_waterfall

    measure, (parent, child) = results["measures"][0], words.ends(results)
    scores, contributions = words.means(results, measure["key"]), results["contributions"] or []
    sheet.panel("Which change", f"Each change was made alone to {parent}, and undone alone in {child}. What it is "
                f"worth is the mean of both, in {measure['title']} ({words.kind_of_number(measure)}).")
    if parent in scores and child in scores:
        steps = [Step(one["change"], one["mean"], [words.interval(side) if side else None for side in
                                                   (one["added"], one["undone"])], words.acts(one))
                 for one in contributions if one["mean"] is not None]
        if results["remainder"] is not None:
            steps.append(Step("what they do to each other", results["remainder"], (), ""))
        sheet.figure(draw_waterfall((parent, scores[parent]), steps, (child, scores[child]),
                                    measure["unit"] or measure["title"],
                                    f"{measure['title']} ({words.direction(measure)})"),
                     "From the parent to the child. Solid: significant, helps; outlined: significant, "
                     "hurts; pale: not significant. Thin lines: 95% intervals of the change added (above) and "
                     "undone (below).", "waterfall")
    sheet.table(["change", "worth", "added to the parent", "undone in the child"],
                [[one["change"], NOTHING if one["mean"] is None else Value(words.signed(one["mean"]), one["mean"]),
                  *(words.verdict(side) if side else "not possible" for side in (one["added"], one["undone"]))]
                 for one in contributions],
                "Both verdicts are on the change: what having it does, beside the parent's other values and beside the "
                "child's.", sortable=True)
    if results["remainder"] is not None:
        sheet.text(f"The changes one by one do not add up to all of them together: "
                   f"{words.signed(results['remainder'])} is left over, which is what they do to each other, and the "
                   "noise of all these sums.")
    sheet.section("What each change holds")
    sheet.points(f"{one['change']}: {', '.join(f'`{key}`' for key in one['keys'])}" for one in contributions)
    if results["impossible"]:
        sheet.section("Not possible")
        sheet.points(f"{one['variant']}: {one['why']}" for one in results["impossible"])
    if results["hidden"]:
        sheet.section("Hidden here", "Changes between the two recipes that this experiment cannot show:")
        sheet.points(f"`{one['key']}`: {one['why']}" for one in results["hidden"])
