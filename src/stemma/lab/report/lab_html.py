"""An experiment as something one can read: `report.html`, and the story that it shares with `report.md`.

Drawn from `results.json` alone. The story is told once, on a sheet; whether that is a page or Markdown is the sheet's
business.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stemma.errors import pluralize
from stemma.lab.report import lab_phrases as words
from stemma.lab.report.html_report import EMPTY, Cell, HtmlReport, NumberCell, ReportWriter
from stemma.lab.report.lab_sections import write_cost, write_curves, write_recipes, write_reproduction, write_scaling
from stemma.lab.results_data import ClaimEntry, MeasureEntry, Results, RowEntry

REPORT = "report.html"
BEST, EVEN, OPEN = "\u2605", "\u2248", "?"  # star; almost equal; inconclusive


def write_lab_report(results: Results, folder: Path) -> Path:
    page = HtmlReport(results["title"])
    write_sections(results, page)
    return page.write(folder / REPORT)


def write_sections(results: Results, report: ReportWriter) -> None:
    report.intro(words.headline(results), _numbers(results))
    _results(results, report)
    if results["contributions"] is not None:
        _which_change(results, report)
    write_curves(results, report)
    write_recipes(results, report)
    write_cost(results, report)
    if results["scaling"]:
        write_scaling(results, report)
    write_reproduction(results, report)


def _numbers(results: Results) -> list[tuple[Cell, str]]:
    compared = [one for one in results["differences"] if words.difference_interval(one)]
    deciding = [one for one in compared if one["measure"] == results["measures"][0]["key"]] if compared else []
    seen = [one for one in deciding if one["verdict"] in words.SIGNIFICANT]
    told: list[tuple[Cell, str]] = []
    if results["claim"]:
        told.append((results["claim"]["verdict"], f"what {results['claim']['paper']} found"))
    if deciding:
        told.append((f"{len(seen)} of {len(deciding)}",
                     f"differences in {results['measures'][0]['title']} are significant"))
    done = len(words.finished_cells(results))
    return [*told, (f"{done} of {len(results['cells'])}", "cells (a recipe with a seed) came to their end"),
            (words.format_budget(results, words.format_short),
             f"for each, {words.format_duration(results['took_seconds'])} in all")]


# --- results ---------------------------------------------------------------------------------------------------------


def _results(results: Results, report: ReportWriter) -> None:
    report.tab("Results")
    if results["claim"]:
        _claim(results["claim"], report)
    measures = results["measures"]
    marks = {measure["key"]: _marks(results, measure["key"]) for measure in measures}
    rows: list[list[Cell]] = []
    for row in results["table"]:
        counts = [len(score["values"]) for score in row["scores"].values()]
        rows.append([row["variant"], *(_score(row, measure["key"], marks[measure["key"]]) for measure in measures),
                     max(counts, default=0)])
    report.table(["variant", *(f"{measure['title']} ({words.metric_unit(measure)})" for measure in measures),
                 "seeds"], rows,
                f"Means over the seeds \u00b1 their standard deviation. {BEST} the best mean of a column; {EVEN} "
                f"equivalent to the best within the margin; {OPEN} compared with the best, inconclusive.",
                sortable=True)
    report.points(f"{measure['title']}: {measure['about']}" for measure in measures)
    if failed := words.failure_sentences(results):
        report.text(f"{pluralize(len(failed), 'cell')} failed, and the means are over the others:")
        report.points(failed)
    for measure in measures:
        _differences(results, measure, report, drawn=measure is measures[0])
    if note := words.multiple_testing_note(results):
        report.text(note)


def _claim(claim: ClaimEntry, report: ReportWriter) -> None:
    report.text(f"What was published ({claim['paper']}): {claim['found']}", f"What was seen here: {claim['text']}")
    if claim["note"]:
        report.text(claim["note"])


def _marks(results: Results, key: str) -> dict[str, str]:
    """The best variant, those equivalent to it, and those of which it is not known. None is best of one, or by one
    seed."""
    ranking = list(words.variant_means(results, key))
    if len(ranking) < 2:
        return {}
    standing = words.verdicts_against(results, key, ranking[0])
    marks = {**dict.fromkeys(words.EQUIVALENT, EVEN), "inconclusive": OPEN}
    return {ranking[0]: BEST} | {name: marks[one] for name, one in standing.items() if one in marks}


def _score(row: RowEntry, key: str, marks: Mapping[str, str]) -> Cell:
    if key not in row["scores"]:
        return EMPTY
    score = row["scores"][key]
    spread = "" if score["spread"] is None else f" \u00b1 {words.format_number(score['spread'])}"
    return NumberCell(f"{marks.get(row['variant'], '')} {words.format_number(score['mean'])}{spread}".strip(),
                      score["mean"])


def _differences(results: Results, metric: MeasureEntry, report: ReportWriter, drawn: bool) -> None:
    from stemma.lab.report.lab_plots import ForestRow, draw_forest

    found = words.metric_differences(results, metric["key"])
    if not found:
        return
    report.section(f"Differences in {metric['title']}")
    what = "The second minus the first" if results["contributions"] is None else "With the change minus without it"
    if drawn:
        rows = [ForestRow(words.pair_label(results, one), one["mean"], words.difference_interval(one),
                          one["verdict"] in words.SIGNIFICANT)
                for one in found]
        report.figure(draw_forest(rows, f"difference{f' in {unit}' if (unit := metric['unit']) else ''}",
                                 f"{metric['title']} ({words.metric_direction(metric)})"),
                     f"{what}, with the 95% interval where there are several seeds. Filled: significant; hollow: "
                     "not.", "differences")
    report.table(["between" if results["contributions"] is None else "change", "difference", "verdict"],
                [[words.pair_label(results, one), NumberCell(words.format_signed(one["mean"]), one["mean"]),
                  words.format_verdict(one)]
                 for one in found],
                f"{what}: {metric['title']}, {words.metric_unit(metric)}. Paired by seed, with 95% intervals. "
                + (f"Equivalent: the whole interval lies within \u00b1{metric['margin']:g}, corrected for the number "
                   "of comparisons. " if metric["margin"] else "") + "Inconclusive: neither that nor significant.",
                sortable=True)


# --- which change ----------------------------------------------------------------------------------------------------


def _which_change(results: Results, report: ReportWriter) -> None:
    from stemma.lab.report.lab_plots import WaterfallStep, draw_waterfall

    measure, (parent, child) = results["measures"][0], words.parent_and_child(results)
    scores, contributions = words.variant_means(results, measure["key"]), results["contributions"] or []
    report.tab("Which change", f"Each change was made alone to {parent}, and undone alone in {child}. What it is "
                f"worth is the mean of both, in {measure['title']} ({words.metric_unit(measure)}).")
    if parent in scores and child in scores:
        steps = [WaterfallStep(one["change"], one["mean"],
                               [words.difference_interval(side) if side else None for side in
                                                   (one["added"], one["undone"])], words.contribution_verdict(one))
                 for one in contributions if one["mean"] is not None]
        if results["remainder"] is not None:
            steps.append(WaterfallStep("what they do to each other", results["remainder"], (), ""))
        report.figure(draw_waterfall((parent, scores[parent]), steps, (child, scores[child]),
                                    measure["unit"] or measure["title"],
                                    f"{measure['title']} ({words.metric_direction(measure)})"),
                     "From the parent to the child. Solid: significant, helps; outlined: significant, "
                     "hurts; pale: not significant. Thin lines: 95% intervals of the change added (above) and "
                     "undone (below).", "waterfall")
    report.table(["change", "worth", "added to the parent", "undone in the child"],
                [[one["change"], EMPTY if one["mean"] is None else NumberCell(words.format_signed(one["mean"]),
                                                                              one["mean"]),
                  *(words.format_verdict(side) if side else "not possible" for side in (one["added"], one["undone"]))]
                 for one in contributions],
                "Both verdicts are on the change: what having it does, beside the parent's other values and beside the "
                "child's.", sortable=True)
    if results["remainder"] is not None:
        report.text(f"The changes one by one do not add up to all of them together: "
                   f"{words.format_signed(results['remainder'])} is left over, which is what they do to each other, and the "
                   "noise of all these sums.")
    report.section("What each change holds")
    report.points(f"{one['change']}: {', '.join(f'`{key}`' for key in one['keys'])}" for one in contributions)
    if results["impossible"]:
        report.section("Not possible")
        report.points(f"{one['variant']}: {one['why']}" for one in results["impossible"])
    if results["hidden"]:
        report.section("Hidden here", "Changes between the two recipes that this experiment cannot show:")
        report.points(f"`{one['key']}`: {one['why']}" for one in results["hidden"])
