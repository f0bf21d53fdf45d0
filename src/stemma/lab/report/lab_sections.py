"""What stands behind a report's verdict: how all of it learned, what differs, what it cost, how it scales, and what to
type for the same again.
"""

from __future__ import annotations

from collections.abc import Mapping

from stemma.lab.report import lab_phrases as words
from stemma.lab.report.html_report import EMPTY, Cell, NumberCell, ReportWriter
from stemma.lab.results_data import Results

AXES = {"tokens": ("tokens read", 0), "flops": ("training FLOPs", 1), "minutes": ("seconds of training", 2)}


def write_curves(results: Results, report: ReportWriter) -> None:
    from stemma.lab.report.lab_plots import draw_curve_panels, draw_curves

    label, column = AXES[results["budget"]["unit"]]
    runs: dict[str, list[list[tuple[float, float]]]] = {}
    for cell in words.finished_cells(results):
        if cell["curve"]:
            runs.setdefault(cell["variant"], []).append([(point[column], point[3]) for point in cell["curve"]])
    if not runs:
        return
    report.tab("Curves", "What each recipe's own objective loses on held-out text while it learns. Objectives ask "
                "different questions and tokenizers count by different tokens: how a curve falls can be compared "
                "everywhere, how low it lies only between models that share both.")
    caption = "Lines: means over the seeds; bands: from the lowest seed to the highest."
    y_label = "held-out loss in nats (lower is better)"
    if results["contributions"] is None:
        ranking = words.variant_means(results, results["measures"][0]["key"]) if results["measures"] else {}
        order = dict.fromkeys([*ranking, *runs])
        tokenizers = {one["name"]: one["tokenizer"] for one in results["variants"]}
        for number, tokenizer in enumerate(dict.fromkeys(tokenizers[name] for name in order if name in runs), 1):
            some = {name: runs[name] for name in order if name in runs and tokenizers[name] == tokenizer}
            report.figure(draw_curves(some, label, y_label), f"Tokenizer: {tokenizer}. {caption}", f"curves-{number}")
        return
    parent, child = words.parent_and_child(results)
    panels = {}
    for one in results["contributions"]:
        named = {variant["role"]: variant["name"] for variant in results["variants"]
                 if variant["change"] == one["change"]}
        four = {"child": child, "parent": parent, "plus": named.get("plus"), "minus": named.get("minus")}
        panels[one["change"]] = {role: runs.get(name or "", []) for role, name in four.items()}
    report.figure(draw_curve_panels(panels, label, y_label),
                  f"A plot for each change. Strong: {child}; thin: {parent}; "
                 f"dashed: the parent with this change; dotted: the child without it. {caption}", "curves")


def write_recipes(results: Results, report: ReportWriter) -> None:
    report.tab("Recipes", "A recipe is what it changed from its parent. Where the compared ones stand in the family:")
    report.tree(results["tree"])
    report.table(["variant", "tokenizer", "parameters"],
                [[one["name"], one["tokenizer"], one["parameters"]] for one in results["variants"]
                 if one["role"] not in ("plus", "minus")])
    for one in results["diffs"]:
        report.section(f"{one['a']} \u2192 {one['b']}")
        if one["changes"]:
            report.table(["key", one["a"], one["b"]],
                        [[f"`{change['key']}`", "\u2013" if change["from"] is None
                          else words.format_setting(change["from"]),
                          "removed" if change["to"] is None else words.format_setting(change["to"])]
                         for change in one["changes"]])
        else:
            report.text("Nothing differs.")


def write_cost(results: Results, report: ReportWriter) -> None:
    report.tab("Cost", *filter(None, [words.budget_note(results), words.runtime_text(results)]))
    unit = {"minutes": "seconds"}.get(results["budget"]["unit"], results["budget"]["unit"])
    shown = {"parameters": "parameters", "tokens": "tokens", "flops": "FLOPs", "seconds": "training, s",
             "tokens_per_second": "tokens/s", "cell_seconds": "with measuring, s"}
    report.table(["variant", *(f"{name}{' (held equal)' if key == unit else ''}" for key, name in shown.items())],
                [[row["variant"], *(_amount(row["cost"], key) for key in shown)] for row in results["table"]],
                "Means over the seeds.", sortable=True)


def _amount(cost: Mapping[str, float], key: str) -> Cell:
    if key not in cost:
        return EMPTY
    return NumberCell(words.format_short(cost[key]) if key == "flops" else f"{cost[key]:,.0f}", cost[key])


def write_scaling(results: Results, report: ReportWriter) -> None:
    from stemma.lab.report.lab_plots import draw_scaling

    report.tab("Scaling", "Loss = floor + factor \u00d7 x^\u2212exponent, fitted to the points. A law holds where it "
                "was measured; beyond the last point it is a guess.")
    titles = {measure["key"]: f"{measure['title']} ({words.metric_unit(measure)})"
              for measure in results["measures"]}
    names = {"parameters": "parameters", "tokens": "tokens read", "flops": "training FLOPs"}
    fits = results["scaling"] or []
    for x in dict.fromkeys(fit["x"] for fit in fits):
        some = [fit for fit in fits if fit["x"] == x]
        report.section(f"Against {names[x]}")
        report.figure(draw_scaling(some, names[x], titles.get(key := some[0]["measure"], key.replace("_", " "))),
                     "Points: single runs or moments of them; lines: the fitted laws; bands: 95% over the seeds. Both "
                     "axes are logarithmic.", f"scaling-{x}")
        report.table(["recipe", "exponent", "95% interval", "factor", "floor"],
                    [[fit["recipe"], NumberCell(words.format_number(fit["exponent"]), fit["exponent"]),
                      _exponents(fit["exponent_low"], fit["exponent_high"]),
                      NumberCell(f"{fit['factor']:.4g}", fit["factor"]),
                      EMPTY if fit["floor"] is None else NumberCell(words.format_number(fit["floor"]), fit["floor"])]
                     for fit in some], sortable=True)
        report.text(*dict.fromkeys(fit["note"] for fit in some if fit["note"]))


def _exponents(low: float | None, high: float | None) -> str:
    return "one seed: none" if low is None or high is None else f"{words.format_number(low)} to {words.format_number(high)}"


def write_reproduction(results: Results, report: ReportWriter) -> None:
    data, made = results["data"], results["made"]
    report.tab("Reproduce", "All of it again:")
    report.code(results["command"])
    if results["commands"]:
        report.text("One model by itself, with the first seed:")
        report.code("\n".join(results["commands"].values()))
    report.table(["", "value"], [
        ["text", ", ".join(data["text"])],
        ["documents", f"{data['documents']:,} to learn from, {data['held_out_documents']:,} held out "
         f"({data['held_out_bytes']:,} bytes)"],
        ["seeds", ", ".join(map(str, results["seeds"]))],
        ["machine", made["machine"]],
        ["versions", f"stemma {made['stemma']}, Python {made['python']}, torch {made['torch']}"],
        ["date", made["date"]]])
    report.section("Cells", "Each cell is an ordinary run in `cells/`, under the name of what went into it. Equal "
                  "digests are equal weights.")
    report.table(["variant", "seed", "state", "cell", "digest of the weights"],
                [[cell["variant"], cell["seed"], cell["state"], f"`{cell['hash'][:12]}`",
                  f"`{cell['digest'][:16]}`" if cell["digest"] else "none"] for cell in results["cells"]],
                sortable=True)
