"""`report.html` of an experiment, and the sections that it shares with `report.md`.

Everything comes from `results.json`. A section writes to a `ReportWriter`, which produces HTML or Markdown.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stemma.errors import pluralize
from stemma.lab.report import lab_phrases as phrases
from stemma.lab.report.html_report import EMPTY, Cell, HtmlReport, NumberCell, ReportWriter
from stemma.lab.report.lab_sections import (
    write_cost,
    write_curves,
    write_minimal_pairs,
    write_recipes,
    write_reproduction,
    write_scaling,
)
from stemma.lab.results_data import ClaimEntry, MeasureEntry, Results, RowEntry

REPORT = "report.html"
BEST, EQUAL, UNDECIDED = "\u2605", "\u2248", "?"  # star; equivalent to the best; inconclusive


def write_lab_report(results: Results, folder: Path) -> Path:
    page = HtmlReport(results["title"])
    write_sections(results, page)
    return page.write(folder / REPORT)


def write_sections(results: Results, report: ReportWriter) -> None:
    report.intro(phrases.headline(results), _numbers(results))
    _results(results, report)
    if results["contributions"] is not None:
        _which_change(results, report)
    write_minimal_pairs(results, report)
    write_curves(results, report)
    write_recipes(results, report)
    write_cost(results, report)
    if results["scaling"]:
        write_scaling(results, report)
    write_reproduction(results, report)


def _numbers(results: Results) -> list[tuple[Cell, str]]:
    compared = [difference for difference in results["differences"] if phrases.difference_interval(difference)]
    deciding = [difference for difference in compared if difference["measure"] == results["measures"][0]["key"]]
    significant = [difference for difference in deciding if difference["verdict"] in phrases.SIGNIFICANT]
    numbers: list[tuple[Cell, str]] = []
    if results["claim"]:
        numbers.append((phrases.CLAIM_VERDICTS[results["claim"]["verdict"]], f"finding of {results['claim']['paper']}"))
    if deciding:
        numbers.append((f"{len(significant)} of {len(deciding)}",
                        f"differences in {results['measures'][0]['title']} are significant"))
    finished = len(phrases.finished_cells(results))
    return [*numbers, (f"{finished} of {len(results['cells'])}", "cells (a recipe with a seed) finished"),
            (phrases.format_budget(results, phrases.format_short),
             f"for each, {phrases.format_duration(results['elapsed_seconds'])} in all")]


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
    if linear := phrases.linear_baseline(results):
        values = [linear.get(measure["key"]) for measure in measures]
        cells = [EMPTY if value is None else NumberCell(phrases.format_number(value), value) for value in values]
        rows.append([phrases.LINEAR_BASELINE, *cells, EMPTY])
    report.table(["variant", *(f"{measure['title']} ({phrases.metric_unit(measure)})" for measure in measures),
                  "seeds"], rows,
                 f"Mean over the seeds \u00b1 standard deviation. {BEST} best mean of the column; {EQUAL} "
                 f"equivalent to the best within the margin; {UNDECIDED} inconclusive against the best.",
                 sortable=True)
    report.points(f"{measure['title']}: {measure['about']}" for measure in measures)
    if linear:
        report.text("Linear baseline: TF-IDF of word and character n-grams and a linear model, fitted to the task's "
                    "training examples.", *phrases.below_baseline_notes(results))
    if notes := results.get("notes"):
        report.points(notes)
    if failed := phrases.failure_sentences(results):
        report.text(f"{pluralize(len(failed), 'cell')} failed; the means are over the others:")
        report.points(failed)
    for measure in measures:
        _differences(results, measure, report, drawn=measure is measures[0])
    if note := phrases.multiple_testing_note(results):
        report.text(note)


def _claim(claim: ClaimEntry, report: ReportWriter) -> None:
    report.text(f"Published ({claim['paper']}): {claim['found']}", f"Measured here: {claim['text']}")
    if claim["note"]:
        report.text(claim["note"])


def _marks(results: Results, key: str) -> dict[str, str]:
    """A mark for the best variant, for those equivalent to it and for those that are inconclusive against it. A single
    variant gets no mark."""
    ranking = list(phrases.variant_means(results, key))
    if len(ranking) < 2:
        return {}
    verdicts = phrases.verdicts_against(results, key, ranking[0])
    marks = {**dict.fromkeys(phrases.EQUIVALENT, EQUAL), "inconclusive": UNDECIDED}
    return {ranking[0]: BEST} | {name: marks[verdict] for name, verdict in verdicts.items() if verdict in marks}


def _score(row: RowEntry, key: str, marks: Mapping[str, str]) -> Cell:
    if key not in row["scores"]:
        return EMPTY
    score = row["scores"][key]
    std = "" if score["spread"] is None else f" \u00b1 {phrases.format_number(score['spread'])}"
    return NumberCell(f"{marks.get(row['variant'], '')} {phrases.format_number(score['mean'])}{std}".strip(),
                      score["mean"])


def _differences(results: Results, metric: MeasureEntry, report: ReportWriter, drawn: bool) -> None:
    from stemma.lab.report.lab_plots import ForestRow, draw_forest

    differences = phrases.metric_differences(results, metric["key"])
    if not differences:
        return
    report.section(f"Differences in {metric['title']}")
    sign = "Second minus first" if results["contributions"] is None else "With the change minus without it"
    if drawn:
        rows = [ForestRow(phrases.pair_label(results, difference), difference["mean"],
                          phrases.difference_interval(difference), difference["verdict"] in phrases.SIGNIFICANT)
                for difference in differences]
        report.figure(draw_forest(rows, f"difference{f' in {unit}' if (unit := metric['unit']) else ''}",
                                  f"{metric['title']} ({phrases.metric_direction(metric)})"),
                      f"{sign}, with the 95% interval if there are several seeds. Filled: significant; hollow: not "
                      "significant.", "differences")
    report.table(["between" if results["contributions"] is None else "change", "difference", "verdict"],
                 [[phrases.pair_label(results, difference), NumberCell(phrases.format_signed(difference["mean"]),
                                                                       difference["mean"]),
                   phrases.format_verdict(difference)]
                  for difference in differences],
                 f"{sign}: {metric['title']}, {phrases.metric_unit(metric)}. Paired by seed, with 95% intervals. "
                 + (f"Equivalent: the whole interval is within \u00b1{metric['margin']:g}, corrected for the number "
                    "of comparisons. " if metric["margin"] else "") + "Inconclusive: neither significant nor that.",
                 sortable=True)


# --- which change ----------------------------------------------------------------------------------------------------


def _which_change(results: Results, report: ReportWriter) -> None:
    from stemma.lab.report.lab_plots import WaterfallStep, draw_waterfall

    measure, (parent, child) = results["measures"][0], phrases.parent_and_child(results)
    scores, contributions = phrases.variant_means(results, measure["key"]), results["contributions"] or []
    report.tab("Which change", f"Each change was added alone to {parent}, and removed alone from {child}. Its "
               f"contribution is the mean of both differences in {measure['title']} ({phrases.metric_unit(measure)}).")
    if parent in scores and child in scores:
        steps = [WaterfallStep(contribution["change"], contribution["mean"],
                               [phrases.difference_interval(side) if side else None
                                for side in (contribution["added"], contribution["undone"])],
                               phrases.contribution_verdict(contribution))
                 for contribution in contributions if contribution["mean"] is not None]
        if results["remainder"] is not None:
            steps.append(WaterfallStep("interaction", results["remainder"], (), ""))
        report.figure(draw_waterfall((parent, scores[parent]), steps, (child, scores[child]),
                                     measure["unit"] or measure["title"],
                                     f"{measure['title']} ({phrases.metric_direction(measure)})"),
                      "From the parent to the child. Solid: significant improvement; outlined: significantly worse; "
                      "pale: not significant. Thin lines: 95% intervals of the change added (above) and removed "
                      "(below).", "waterfall")
    report.table(["change", "contribution", "added to the parent", "removed from the child"],
                 [[contribution["change"], EMPTY if contribution["mean"] is None else
                   NumberCell(phrases.format_signed(contribution["mean"]), contribution["mean"]),
                   *(phrases.format_verdict(side) if side else "not possible"
                     for side in (contribution["added"], contribution["undone"]))]
                  for contribution in contributions],
                 "Both verdicts are on having the change: once among the parent's other values, once among the "
                 "child's.",
                 sortable=True)
    if results["remainder"] is not None:
        report.text("The contributions do not add up to the difference between parent and child: "
                    f"{phrases.format_signed(results['remainder'])} remains. This is the interaction of the changes, "
                    "and noise.")
    report.section("Keys of each change")
    report.points(f"{contribution['change']}: {', '.join(f'`{key}`' for key in contribution['keys'])}"
                  for contribution in contributions)
    if results["impossible"]:
        report.section("Not possible")
        report.points(f"{entry['variant']}: {entry['why']}" for entry in results["impossible"])
    if results["hidden"]:
        report.section("Excluded changes", "Changes between the two recipes that this experiment cannot measure:")
        report.points(f"`{entry['key']}`: {entry['why']}" for entry in results["hidden"])
