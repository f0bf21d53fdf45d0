"""Sentences and number formats of the lab's reports; `report.html`, `report.md` and the terminal share them.

A sentence claims no more than its 95% interval supports. One seed has no interval, so nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stemma.errors import join_names, pluralize
from stemma.lab.experiment import RANDOM
from stemma.lab.results_data import CellEntry, ContributionEntry, DifferenceEntry, MeasureEntry, Results, SideEntry
from stemma.schema.overrides import format_value

SIGNIFICANT = ("better", "worse")
EQUIVALENT = ("equivalent", "same bytes")
CLAIM_SENTENCES = {"seen": "The paper's finding was reproduced.",
                   "not seen at this size": "The paper's finding was not reproduced at this size.",
                   "opposite": "The paper's finding was contradicted.",
                   "inconclusive": "Whether the paper's finding holds at this size is inconclusive."}
# results.json stores the keys of this dictionary; reports and the terminal print its values.
CLAIM_VERDICTS = {"seen": "reproduced", "not seen at this size": "not reproduced at this size",
                  "opposite": "contradicted", "inconclusive": "inconclusive"}


def format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else _minus(f"{value:.3f}")


def format_signed(value: float) -> str:
    """A number with its sign and three decimals, or one significant digit if it would round to 0."""
    return _minus(f"{value:+.3f}" if abs(value) >= 0.0005 or not value else f"{value:+.1g}")


def format_short(value: float) -> str:
    """1,500,000 is 1.5 M; 1e9 and above is in scientific notation."""
    if abs(value) >= 1e9:
        return f"{value:.3g}".replace("e+", "e")
    for unit, name in ((1e6, "\u00a0M"), (1e3, "\u00a0k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{name}"
    return f"{value:.3g}"


def format_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def format_setting(value: object) -> str:
    """The value of a recipe key, formatted for a report."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return "present"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:,.6g}".replace("e-0", "e-") if isinstance(value, float) else format_value(value)


def metric_direction(measure: MeasureEntry) -> str:
    return "higher is better" if measure["higher"] else "lower is better"


def metric_unit(measure: MeasureEntry) -> str:
    """For example "bits per byte, lower is better"."""
    return ", ".join(filter(None, [measure["unit"], metric_direction(measure)]))


def format_budget(results: Results, format_tokens: Callable[[float], str] = "{:,.0f}".format) -> str:
    """For example "1,000,000 tokens", or "1 M tokens" with `format_short`."""
    unit, amount = results["budget"]["unit"], results["budget"]["amount"]
    if unit == "flops":
        return f"{format_short(amount)} FLOPs"
    return f"{amount:,.6g} minutes" if unit == "minutes" else f"{format_tokens(amount)} tokens"


def conditions(results: Results) -> str:
    """Budget, text, sizes and seeds, as a sentence."""
    sizes = list(dict.fromkeys(variant["size"] or "as published" for variant in results["variants"]))
    untrained = [variant["name"] for variant in results["variants"] if variant["role"] == RANDOM]
    counting = counting_variants(results)
    exceptions = ([f"{join_names(untrained)} (random weights)"] if untrained else []) + counting
    models = f"Each model except {join_names(exceptions)}" if exceptions else "Each model"
    budget = format_budget(results)
    trained = f"on {budget} of the same text" if results["budget"]["unit"] == "tokens" else \
        f"for {budget} on the same text"
    at_sizes = f"at size{'' if len(sizes) == 1 else 's'} {join_names(sizes)}"
    details = f"{at_sizes}, with {pluralize(len(results['seeds']), 'seed')}."
    if not counting:
        return f"{models} was trained {trained}, {details}"
    tokens = {row["variant"]: row["cost"].get("tokens") for row in results["table"]}
    counted = join_names(f"{name} ({count:,.0f} tokens)" if (count := tokens.get(name)) else name for name in counting)
    if len(counting) == len(results["variants"]):
        return f"{counted} counted the same text, each token once, {details}"
    return f"{models} was trained {trained}, {details} {counted} counted the text, each token once."


def counting_variants(results: Results) -> list[str]:
    """Tables of counts, which read the text once, whatever the budget; results of version 0.1 do not say."""
    return [variant["name"] for variant in results["variants"] if variant.get("counts")]


# --- verdicts --------------------------------------------------------------------------------------------------------


def difference_interval(difference: SideEntry) -> tuple[float, float] | None:
    low, high = difference["low"], difference["high"]
    return None if low is None or high is None else (low, high)


def format_verdict(difference: SideEntry) -> str:
    """The verdict on the second model against the first, with its interval."""
    if difference["verdict"] == "same bytes":
        return "no difference: identical weights"
    ends = difference_interval(difference)
    if ends is None:
        return "one seed: no interval, so no verdict"
    verdict, advice = difference["verdict"], ""
    if verdict == "equivalent":
        verdict = f"equivalent within {difference['margin']:g}"
    elif verdict == "inconclusive":
        advice = _seeds_needed_text(difference, ends)
    note = f"; {difference['note']}" if difference["note"] else ""
    return f"{verdict}: {' to '.join(format_signed(end).removeprefix('+') for end in ends)}{advice}{note}"


def _seeds_needed_text(difference: SideEntry, ends: tuple[float, float]) -> str:
    """Why a difference is inconclusive, and how many seeds would probably decide it."""
    alone = ends[0] > 0 or ends[1] < 0  # before Holm's correction
    reason = f", significant alone but not among {difference['comparisons']} comparisons" if alone else ""
    if difference["needed"]:
        return f"{reason} (about {difference['needed']} seeds would decide)"
    by_text = difference["text_error"] > difference["seed_error"]
    return f"{reason} ({'more held-out text' if by_text else 'more than 100 seeds'} would be needed)"


def metric_differences(results: Results, key: str) -> list[DifferenceEntry]:
    return [difference for difference in results["differences"] if difference["measure"] == key]


def pair_label(results: Results, difference: DifferenceEntry) -> str:
    """The compared variants; in an ablation the change, and whether it is measured in the parent or the child."""
    variants = {variant["name"]: variant for variant in results["variants"]}
    first, second = variants[difference["a"]], variants[difference["b"]]
    if second["role"] == "plus":
        return f"{second['change']}, in the parent"
    if first["role"] == "minus":
        return f"{first['change']}, in the child"
    return "all changes" if second["role"] == "child" else f"{first['name']} \u2192 {second['name']}"


def multiple_testing_note(results: Results) -> str:
    """How the verdicts are corrected for multiple comparisons; empty if every metric has only one."""
    counts = {measure["title"]: max((difference["comparisons"]
                                     for difference in metric_differences(results, measure["key"])), default=1)
              for measure in results["measures"]}
    several = {title: count for title, count in counts.items() if count > 1}
    if not several:
        return ""
    listing = join_names(f"{count} by {title}" for title, count in several.items())
    return (f"Verdicts are corrected for the number of comparisons ({listing}) by Holm's procedure: the probability of "
            "one or more false positives per metric is at most 5%. The intervals are 95% each, not corrected.")


LINEAR_BASELINE = "linear baseline"


def linear_baseline(results: Results) -> dict[str, float]:
    """The scores of the linear baseline by the metric's key; empty in results without one, as of version 0.1."""
    return results.get("baselines", {}).get("linear", {})


def below_baseline_notes(results: Results) -> list[str]:
    """A sentence for each metric in which the linear baseline beats every variant."""
    notes = []
    for measure in results["measures"]:
        means, baseline = variant_means(results, measure["key"]), linear_baseline(results).get(measure["key"])
        if baseline is not None and means:
            best = next(iter(means.values()))
            if best < baseline if measure["higher"] else best > baseline:
                notes.append(f"By {measure['title']}, no variant reaches the linear baseline ({format_number(best)} "
                             f"against {format_number(baseline)}): more pre-training, or more --epochs.")
    return notes


def variant_means(results: Results, key: str, size: str | None = None) -> dict[str, float]:
    """The mean of each variant that has this score, the best first."""
    higher = next(measure["higher"] for measure in results["measures"] if measure["key"] == key)
    sizes = {variant["name"]: variant["size"] for variant in results["variants"]}
    means = {row["variant"]: row["scores"][key]["mean"] for row in results["table"]
             if key in row["scores"] and size in (None, sizes[row["variant"]])}
    return dict(sorted(means.items(), key=lambda item: item[1], reverse=higher))


def verdicts_against(results: Results, key: str, best: str) -> dict[str, str]:
    """The verdict of every other variant against this one."""
    inverse = {"better": "worse", "worse": "better"}
    differences = metric_differences(results, key)
    return {difference["b"]: difference["verdict"] for difference in differences if difference["a"] == best} \
        | {difference["a"]: inverse.get(difference["verdict"], difference["verdict"])
           for difference in differences if difference["b"] == best}


def contribution_verdict(contribution: ContributionEntry) -> str:
    """One verdict from both measurements of a change: "mixed" if they contradict each other, "impossible" if there is
    none."""
    verdicts = {side["verdict"] for side in (contribution["added"], contribution["undone"]) if side is not None}
    significant = verdicts.intersection(SIGNIFICANT)
    if not verdicts:
        return "impossible"
    if significant:
        return "mixed" if len(significant) == 2 else significant.pop()
    if verdicts == {"one seed"}:
        return "one seed"
    return "equivalent" if verdicts <= set(EQUIVALENT) else "inconclusive"


# --- headline --------------------------------------------------------------------------------------------------------


def headline(results: Results) -> str:
    """What differs significantly, what is equivalent, what is inconclusive, and under which conditions."""
    if not results["measures"] or not variant_means(results, results["measures"][0]["key"]):
        sentences = ["No cell finished with a score, so there is nothing to compare."]
    elif results["claim"]:
        sentences = [results["claim"]["title"], CLAIM_SENTENCES[results["claim"]["verdict"]]]
    elif results["contributions"] is not None:
        sentences = _ablation_sentences(results)
    elif not results["differences"]:
        sentences = ["No two of these models have a metric in common: causal and masked language models are scored "
                     "differently. A task (`--task`) would compare them."]
    else:
        sentences = _comparison_sentences(results)
    return " ".join([*sentences, conditions(results)])


def _comparison_sentences(results: Results) -> list[str]:
    """Each size is ranked separately: that a larger model is better needs no sentence."""
    measure = results["measures"][0]
    metric = f"{measure['title']} ({metric_unit(measure)})"
    sizes = list(dict.fromkeys(variant["size"] for variant in results["variants"]))
    if len(sizes) == 1:
        return _ranking_sentences(results, measure, None, f"By {metric}")
    return [f"The metric is {metric}.",
            *(sentence for size in sizes for sentence in _ranking_sentences(results, measure, size, f"At size {size}"))]


def _ranking_sentences(results: Results, measure: MeasureEntry, size: str | None, opening: str) -> list[str]:
    ranking = variant_means(results, measure["key"], size)
    if len(ranking) < 2:
        return []
    best = next(iter(ranking))
    verdicts = {name: verdict for name, verdict in verdicts_against(results, measure["key"], best).items()
                if name in ranking}
    groups = {"is significantly better than": ("worse",), "is equivalent to": EQUIVALENT,
              "compares inconclusively with": ("inconclusive",)}
    parts = [f"{phrase} {join_names(names)}" for phrase, kinds in groups.items()
             if (names := [name for name, verdict in verdicts.items() if verdict in kinds])]
    if parts:
        sentences = [f"{opening}, {best} has the best mean, {format_number(ranking[best])}: it {join_names(parts)}."]
    else:
        sentences = [f"{opening}, {best} has the best score, {format_number(ranking[best])}; with one seed this may be "
                     "chance."]
    notes = [difference["note"] for difference in metric_differences(results, measure["key"])
             if difference["note"] and best in (difference["a"], difference["b"])
             and {difference["a"], difference["b"]} <= set(ranking)]
    sentences += [f"Note: {note}." for note in dict.fromkeys(notes)]
    unscored = [variant["name"] for variant in results["variants"]
                if variant["name"] not in ranking and size in (None, variant["size"])]
    has = "has" if len(unscored) == 1 else "have"
    return sentences + ([f"{join_names(unscored)} {has} no such score."] if unscored else [])


def _ablation_sentences(results: Results) -> list[str]:
    measure = results["measures"][0]
    parent, child = parent_and_child(results)
    scores = variant_means(results, measure["key"])
    sentences = []
    overall = next((difference for difference in metric_differences(results, measure["key"])
                    if (difference["a"], difference["b"]) == (parent, child)), None)
    if overall is not None and parent in scores and child in scores:
        child_score = " ".join(filter(None, [format_number(scores[child]), measure["unit"]]))
        sentences.append(f"From {parent} to {child}, {measure['title']} goes from {format_number(scores[parent])} to "
                         f"{child_score} ({format_verdict(overall)}).")
    changes: dict[str, list[str]] = {}
    for contribution in results["contributions"] or ():
        changes.setdefault(contribution_verdict(contribution), []).append(contribution["change"])
    templates = {"better": "Improved alone: {}.", "worse": "Hurt alone: {}.",
                 "mixed": "Improved in one of parent and child, hurt in the other: {}.",
                 "equivalent": f"No difference larger than {measure['margin'] or 0:g}: {{}}.",
                 "inconclusive": "Inconclusive: {}.",
                 "one seed": "One seed, may be chance: {}.",
                 "impossible": "Could not be measured alone: {}."}
    return sentences + [text.format(join_names(changes[kind])) for kind, text in templates.items() if kind in changes]


def parent_and_child(results: Results) -> tuple[str, str]:
    """An ablation's parent and child."""
    names = {variant["role"]: variant["name"] for variant in results["variants"]}
    return names["parent"], names["child"]


# --- cost ------------------------------------------------------------------------------------------------------------


def budget_used(cell: CellEntry, unit: str) -> float:
    return cell["cost"]["seconds"] / 60 if unit == "minutes" else cell["cost"][unit]


def budget_note(results: Results) -> str:
    """By how much the cells deviate from the common budget."""
    unit, amount = results["budget"]["unit"], results["budget"]["amount"]
    counting = counting_variants(results)
    cells = [cell for cell in finished_cells(results) if cell["cost"] and cell["variant"] not in counting]
    if not cells:
        return ""
    worst = max(cells, key=lambda cell: abs(budget_used(cell, unit) / amount - 1))
    deviation = budget_used(worst, unit) / amount - 1
    return (f"Held equal: {format_budget(results)} for each cell. The largest deviation is "
            f"{_minus(f'{deviation:+.2%}')} ({worst['variant']}, seed {worst['seed']}); the other columns follow from "
            f"it.{f' {join_names(counting)} counted the text once.' if counting else ''}")


def runtime_text(results: Results) -> str:
    took = f"The experiment took {format_duration(results['elapsed_seconds'])}"
    if not results["estimated_seconds"]:
        return took + "."
    deviation = results["elapsed_seconds"] / results["estimated_seconds"] - 1
    return f"{took}; {format_duration(results['estimated_seconds'])} were estimated ({_minus(f'{deviation:+.0%}')})."


def finished_cells(results: Results) -> list[CellEntry]:
    return [cell for cell in results["cells"] if cell["state"] == "done" and (cell["cost"] or cell["scores"])]


def failure_sentences(results: Results) -> Sequence[str]:
    return [f"{cell['variant']}, seed {cell['seed']}: {cell['why']}" for cell in results["cells"]
            if cell["state"] != "done"]


def _minus(text: str) -> str:
    """With a typographic minus sign in place of the hyphen."""
    return text.replace("-", "\u2212")
