"""What the numbers of an experiment say, in plain words: `report.html` and `report.md` use the same sentences.

Only what an interval carries is claimed. With one seed there is none, and then nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from stemma.errors import pluralize
from stemma.lab.experiment import RANDOM
from stemma.lab.results_data import CellEntry, ContributionEntry, DifferenceEntry, MeasureEntry, Results, SideEntry
from stemma.schema.overrides import format_value

SIGNIFICANT = ("better", "worse")  # significant
EQUIVALENT = ("equivalent", "same bytes")
CLAIM_SENTENCES = {"seen": "What the paper found was seen here too.",
           "not seen at this size": "What the paper found was not seen at this size.",
           "opposite": "The opposite of what the paper found was seen.",
           "inconclusive": "Whether it holds at this size is inconclusive."}


def format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else _minus(f"{value:.3f}")


def format_signed(value: float) -> str:
    """With its sign, three digits behind the point, or as many as it takes to see anything."""
    return _minus(f"{value:+.3f}" if abs(value) >= 0.0005 or not value else f"{value:+.1g}")


def format_short(value: float) -> str:
    """1,500,000 is 1.5 M; what is larger than people count in is written by its power of ten."""
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
    """A value of a recipe as a person reads it."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return "present"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:,.6g}".replace("e-0", "e-") if isinstance(value, float) else format_value(value)


def join_names(names: Iterable[str]) -> str:
    """a, b and c."""
    names = list(names)
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def metric_direction(measure: MeasureEntry) -> str:
    return "higher is better" if measure["higher"] else "lower is better"


def metric_unit(measure: MeasureEntry) -> str:
    """bits per byte, lower is better."""
    return ", ".join(filter(None, [measure["unit"], metric_direction(measure)]))


def format_budget(results: Results, in_full: Callable[[float], str] = "{:,.0f}".format) -> str:
    """1,000,000 tokens, or 1 M tokens."""
    unit, amount = results["budget"]["unit"], results["budget"]["amount"]
    if unit == "flops":
        return f"{format_short(amount)} FLOPs"
    return f"{amount:,.6g} minutes" if unit == "minutes" else f"{in_full(amount)} tokens"


def conditions(results: Results) -> str:
    """Under which conditions all this holds."""
    sizes = list(dict.fromkeys(variant["size"] or "as published" for variant in results["variants"]))
    drawn = [variant["name"] for variant in results["variants"] if variant["role"] == RANDOM]
    models = f"Each model but {join_names(drawn)} (random weights)" if drawn else "Each model"
    return (f"{models} was trained on {format_budget(results)} of the same text" if results["budget"]["unit"]
            == "tokens"
            else f"{models} was trained for {format_budget(results)} on the same text") \
        + f", at size{'' if len(sizes) == 1 else 's'} {join_names(sizes)}, with {pluralize(len(results['seeds']), 'seed')}."


# --- verdicts --------------------------------------------------------------------------------------------------------


def difference_interval(difference: SideEntry) -> tuple[float, float] | None:
    low, high = difference["low"], difference["high"]
    return None if low is None or high is None else (low, high)


def format_verdict(difference: SideEntry) -> str:
    """Of the second against the first."""
    if difference["verdict"] == "same bytes":
        return "no difference: the same bytes"
    ends = difference_interval(difference)
    if ends is None:
        return "one seed: no interval, nothing is claimed"
    kind, about = difference["verdict"], ""
    if kind == "equivalent":
        kind = f"equivalent within {difference['margin']:g}"
    elif kind == "inconclusive":
        about = _undecided(difference, ends)
    note = f"; {difference['note']}" if difference["note"] else ""
    return f"{kind}: {' to '.join(format_signed(end).removeprefix('+') for end in ends)}{about}{note}"


def _undecided(difference: SideEntry, ends: tuple[float, float]) -> str:
    """What stands in the way, and how many seeds would probably decide it."""
    alone = ends[0] > 0 or ends[1] < 0
    why = f", significant alone but not among {difference['comparisons']} comparisons" if alone else ""
    if difference["needed"]:
        return f"{why} (about {difference['needed']} seeds would decide)"
    by_text = difference["text_error"] > difference["seed_error"]
    return f"{why} ({'more held-out text' if by_text else 'more than 100 seeds'} would be needed)"


def metric_differences(results: Results, key: str) -> list[DifferenceEntry]:
    return [one for one in results["differences"] if one["measure"] == key]


def pair_label(results: Results, difference: DifferenceEntry) -> str:
    """Who is compared with whom; of an ablation, which change is looked at, and where."""
    variants = {variant["name"]: variant for variant in results["variants"]}
    first, second = variants[difference["a"]], variants[difference["b"]]
    if second["role"] == "plus":
        return f"{second['change']}, in the parent"
    if first["role"] == "minus":
        return f"{first['change']}, in the child"
    return "all changes" if second["role"] == "child" else f"{first['name']} \u2192 {second['name']}"


def multiple_testing_note(results: Results) -> str:
    """How the verdicts are corrected for their number; empty where there is one comparison by each measure."""
    counts = {measure["title"]: max((one["comparisons"] for one in metric_differences(results, measure["key"])),
                                    default=1)
              for measure in results["measures"]}
    several = {title: count for title, count in counts.items() if count > 1}
    if not several:
        return ""
    listing = join_names(f"{count} by {title}" for title, count in several.items())
    return (f"Verdicts are corrected for the number of comparisons ({listing}) by Holm's procedure: if nothing had an "
            "effect, the probability of even one false alarm by a measure would be at most 5%. The intervals are 95% "
            "each, not corrected.")


def variant_means(results: Results, key: str, size: str | None = None) -> dict[str, float]:
    """The variants that were given this score, the best first."""
    higher = next(measure["higher"] for measure in results["measures"] if measure["key"] == key)
    sizes = {variant["name"]: variant["size"] for variant in results["variants"]}
    found = {row["variant"]: row["scores"][key]["mean"] for row in results["table"]
             if key in row["scores"] and size in (None, sizes[row["variant"]])}
    return dict(sorted(found.items(), key=lambda item: item[1], reverse=higher))


def verdicts_against(results: Results, key: str, best: str) -> dict[str, str]:
    """Each other variant's verdict against this one."""
    turned = {"better": "worse", "worse": "better"}
    found = metric_differences(results, key)
    return {one["b"]: one["verdict"] for one in found if one["a"] == best} \
        | {one["a"]: turned.get(one["verdict"], one["verdict"]) for one in found if one["b"] == best}


def contribution_verdict(contribution: ContributionEntry) -> str:
    """What a change does by its one or two measurements: a verdict, or mixed, or impossible."""
    found = {one["verdict"] for one in (contribution["added"], contribution["undone"]) if one is not None}
    seen = found.intersection(SIGNIFICANT)
    if not found:
        return "impossible"
    if seen:
        return "mixed" if len(seen) == 2 else seen.pop()
    if found == {"one seed"}:
        return "one seed"
    return "equivalent" if found <= set(EQUIVALENT) else "inconclusive"


# --- the first sentences ---------------------------------------------------------------------------------------------


def headline(results: Results) -> str:
    """What differs, what is equivalent, what is inconclusive, and under which conditions."""
    if not results["measures"] or not variant_means(results, results["measures"][0]["key"]):
        said = ["No cell came to its end with a score, so there is nothing to compare."]
    elif results["claim"]:
        said = [results["claim"]["title"], CLAIM_SENTENCES[results["claim"]["verdict"]]]
    elif results["contributions"] is not None:
        said = _ablation_sentences(results)
    elif not results["differences"]:
        said = ["No two of these models answer the same question: one that writes and one that fills gaps have no "
                "measure in common. A task (`--task`) would compare them."]
    else:
        said = _comparison_sentences(results)
    return " ".join([*said, conditions(results)])


def _comparison_sentences(results: Results) -> list[str]:
    """Sizes are judged apart: that the larger model is better needs no sentence."""
    measure = results["measures"][0]
    told_by = f"{measure['title']} ({metric_unit(measure)})"
    sizes = list(dict.fromkeys(variant["size"] for variant in results["variants"]))
    if len(sizes) == 1:
        return _ranking_sentences(results, measure, None, f"By {told_by}")
    return [f"Judged by {told_by}.",
            *(sentence for size in sizes for sentence in _ranking_sentences(results, measure, size, f"At size {size}"))]


def _ranking_sentences(results: Results, measure: MeasureEntry, size: str | None, where: str) -> list[str]:
    ranking = variant_means(results, measure["key"], size)
    if len(ranking) < 2:
        return []
    best = next(iter(ranking))
    standing = {name: one for name, one in verdicts_against(results, measure["key"], best).items() if name in ranking}
    groups = {"is significantly better than": ("worse",), "is equivalent to": EQUIVALENT,
              "compares inconclusively with": ("inconclusive",)}
    parts = [f"{phrase} {join_names(names)}" for phrase, kinds in groups.items()
             if (names := [name for name, one in standing.items() if one in kinds])]
    if parts:
        said = [f"{where}, {best} has the best mean, {format_number(ranking[best])}: it {join_names(parts)}."]
    else:
        said = [f"{where}, {best} has the best score, {format_number(ranking[best])}; one seed cannot show whether that is "
                "chance."]
    notes = [one["note"] for one in metric_differences(results, measure["key"])
             if one["note"] and best in (one["a"], one["b"]) and {one["a"], one["b"]} <= set(ranking)]
    said += [f"Note: {note}." for note in dict.fromkeys(notes)]
    left = [variant["name"] for variant in results["variants"]
            if variant["name"] not in ranking and size in (None, variant["size"])]
    return said + ([f"Of {join_names(left)} there is no such score."] if left else [])


def _ablation_sentences(results: Results) -> list[str]:
    measure = results["measures"][0]
    parent, child = parent_and_child(results)
    scores = variant_means(results, measure["key"])
    said = []
    whole = next((one for one in metric_differences(results, measure["key"]) if (one["a"], one["b"]) == (parent,
                                                                                                         child)), None)
    if whole is not None and parent in scores and child in scores:
        said.append(f"From {parent} to {child}, {measure['title']} goes from {format_number(scores[parent])} to "
                    f"{' '.join(filter(None, [format_number(scores[child]), measure['unit']]))} ({format_verdict(whole)}).")
    acting: dict[str, list[str]] = {}
    for one in results["contributions"] or ():
        acting.setdefault(contribution_verdict(one), []).append(one["change"])
    words = {"better": "Helps by itself: {}.", "worse": "Hurts by itself: {}.",
             "mixed": "Helps on one side and hurts on the other: {}.",
             "equivalent": f"Makes no difference larger than {measure['margin'] or 0:g}: {{}}.",
             "inconclusive": "Inconclusive: {}.",
             "one seed": "One seed cannot show whether these are chance: {}.",
             "impossible": "Could not be tried alone: {}."}
    return said + [text.format(join_names(acting[kind])) for kind, text in words.items() if kind in acting]


def parent_and_child(results: Results) -> tuple[str, str]:
    """An ablation's parent and child."""
    named = {variant["role"]: variant["name"] for variant in results["variants"]}
    return named["parent"], named["child"]


# --- cost ------------------------------------------------------------------------------------------------------------


def budget_used(cell: CellEntry, unit: str) -> float:
    return cell["cost"]["seconds"] / 60 if unit == "minutes" else cell["cost"][unit]


def budget_note(results: Results) -> str:
    """How equal the budget was that was to be equal."""
    unit, amount = results["budget"]["unit"], results["budget"]["amount"]
    cells = [cell for cell in finished_cells(results) if cell["cost"]]
    if not cells:
        return ""
    worst = max(cells, key=lambda cell: abs(budget_used(cell, unit) / amount - 1))
    off = budget_used(worst, unit) / amount - 1
    return (f"Held equal: {format_budget(results)} for each cell. The largest deviation is {_minus(f'{off:+.2%}')} "
            f"({worst['variant']}, seed {worst['seed']}); the other columns are what that came to.")


def runtime_text(results: Results) -> str:
    took = f"All of it took {format_duration(results['took_seconds'])}"
    if not results["foretold_seconds"]:
        return took + "."
    off = results["took_seconds"] / results["foretold_seconds"] - 1
    return f"{took}; {format_duration(results['foretold_seconds'])} had been foretold ({_minus(f'{off:+.0%}')})."


def finished_cells(results: Results) -> list[CellEntry]:
    return [cell for cell in results["cells"] if cell["state"] == "done" and (cell["cost"] or cell["scores"])]


def failure_sentences(results: Results) -> Sequence[str]:
    return [f"{cell['variant']}, seed {cell['seed']}: {cell['why']}" for cell in results["cells"]
            if cell["state"] != "done"]


def _minus(text: str) -> str:
    """A number's hyphen as the sign that it stands for."""
    return text.replace("-", "\u2212")
