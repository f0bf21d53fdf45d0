"""HTML and Markdown reports of an experiment, from example results."""

import base64
import hashlib
import html
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from lab_results import (
    ACCURACY,
    BITS,
    WHY,
    ablate_results,
    claim_results,
    compare_results,
    difference,
    one_seed_results,
    scaling_results,
)

from stemma.lab.report import lab_phrases as words
from stemma.lab.report.lab_html import write_lab_report
from stemma.lab.report.lab_markdown import write_lab_markdown
from stemma.lab.report.lab_plots import ForestRow, WaterfallStep, draw_curves, draw_forest, draw_scaling, draw_waterfall

ALL = [compare_results, one_seed_results, ablate_results, scaling_results, claim_results]
MINUS = "\u2212"


class PageParser(HTMLParser):
    """The text of a page by panel, and its table cells; fails if tags are not nested correctly."""

    void = {"meta", "br", "path", "use", "wbr"}

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.panels: dict[str, str] = {"": ""}
        self.ids: list[str] = []
        self.cells: list[list[str]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        assert not any(key in values for key in ("src", "action", "onclick"))
        assert all(values.get(key, "#").startswith("#") for key in ("href", "xlink:href"))
        if tag == "section":
            self.panels[values["id"]] = ""
        if tag == "tr":
            self.cells.append([])
        if tag == "td":
            self.cells[-1].append("")
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open or "script" in self.open:
            return
        panel = list(self.panels)[-1] if "section" in self.open else ""
        self.panels[panel] += data
        if "td" in self.open:
            self.cells[-1][-1] += data

    def row(self, *start: str) -> list[str]:
        return next(row for row in self.cells if tuple(row[:len(start)]) == start)


def page_of(results: dict[str, Any], folder: Path) -> tuple[str, PageParser]:
    path = write_lab_report(results, folder)
    assert path == folder / "report.html" and [file.name for file in folder.iterdir()] == ["report.html"]
    text = path.read_text(encoding="utf-8")
    return text, PageParser(text)


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("}text")]


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_the_page_is_well_formed_and_loads_nothing(make: Callable[[], dict[str, Any]], tmp_path: Path):
    text, read = page_of(make(), tmp_path)
    assert len(set(read.ids)) == len(read.ids)  # ids of plots do not collide
    assert set(re.findall(r"[a-z]+://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg",
                                                             "http://www.w3.org/1999/xlink"}
    script = text[text.index("<script>") + 8:text.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = html.unescape(re.search(r'Security-Policy" content="([^"]*)"', text)[1])
    assert policy.startswith("default-src 'none'") and policy.endswith(f"script-src 'sha256-{digest}'")
    assert "var(--accent, #0a6ebd)" in text
    assert not re.search(r"(?<!<)nan(?!ochat)", "".join(read.panels.values()).lower())


def test_a_comparison_reports_significant_and_inconclusive_differences(tmp_path: Path):
    results = compare_results()
    text, read = page_of(results, tmp_path)
    assert list(read.panels) == ["", "results", "curves", "recipes", "cost", "reproduce"]
    head = read.panels[""]
    assert ("By pseudo-likelihood (bits per byte, lower is better), roberta@tiny has the best mean, 2.310: it "
            "is significantly better than bert@tiny and compares inconclusively with albert@tiny. electra@tiny has no "
            "such score. Each model was trained on 1,000,000 tokens of the same text, at size tiny, with 3 seeds."
            ) in head
    assert "2 of 3" in head and "11 of 12" in head

    assert read.row("roberta@tiny") == ["roberta@tiny", "\u2605 2.310 \u00b1 0.010", "? 0.740 \u00b1 0.010", "3"]
    assert read.row("bert@tiny")[1:3] == ["2.450 \u00b1 0.010", "0.710 \u00b1 0.010"]  # not the best in either
    assert read.row("albert@tiny") == ["albert@tiny", "? 2.325 \u00b1 0.010", "0.695 \u00b1 0.010", "2"]
    assert read.row("electra@tiny")[1:3] == ["\u2013", "\u2605 0.790 \u00b1 0.010"]
    assert 'data-sort="2.31"' in text.replace("2.3100000000000005", "2.31") and 'data-sort=""' in text
    assert read.row("bert@tiny \u2192 roberta@tiny")[1:] == [f"{MINUS}0.140", f"better: {MINUS}0.190 to {MINUS}0.090"]
    assert read.row("roberta@tiny \u2192 albert@tiny")[2] == \
        f"inconclusive: {MINUS}0.020 to 0.060 (about 7 seeds would decide)"
    shown = read.panels["results"]
    assert f"albert@tiny, seed 2: {WHY}" in shown and "1 cell failed" in shown
    assert "the number of comparisons (3 by pseudo-likelihood and 3 by classify: accuracy) by Holm's" in shown


def test_the_page_has_cost_recipes_and_commands(tmp_path: Path):
    results = compare_results()
    _, read = page_of(results, tmp_path)
    cost, reproduce, recipes = (read.panels[name] for name in ("cost", "reproduce", "recipes"))
    assert "Held equal: 1,000,000 tokens for each cell. The largest deviation is +0.60% (electra@tiny, seed 0)" in cost
    assert "The experiment took 55 min; 50 min were estimated (+10%)." in cost and "tokens (held equal)" in cost
    assert [row[3] for row in read.cells if row and row[0] == "roberta@tiny" and len(row) == 7] == ["4.1e13"]
    for expected in (results["command"], *results["commands"].values(), "x86_64, 2 cores, Linux", "torch 2.13.0"):
        assert expected in reproduce
    assert read.row("objective.masked_lm.dynamic") == ["objective.masked_lm.dynamic", "false", "true"]
    assert read.row("objective.next_sentence") == ["objective.next_sentence", "present", "removed"]
    assert recipes.count("compared here") == 4 and "xlnet" in recipes
    assert "byte_bpe 50,265" in read.panels["curves"]  # losses per token of different tokenizers have separate plots


def test_one_seed_gives_no_verdict(tmp_path: Path):
    _, read = page_of(one_seed_results(), tmp_path)
    everything = " ".join(read.panels.values())
    assert "with one seed this may be chance" in everything
    assert read.row("bert@tiny \u2192 roberta@tiny")[2] == "one seed: no interval, so no verdict"
    assert "better:" not in everything and "significantly" not in everything
    assert read.row("roberta@tiny")[1] == "\u2605 2.300"  # no standard deviation


def test_an_ablation_reports_the_effect_of_each_change(tmp_path: Path):
    text, read = page_of(ablate_results(), tmp_path)
    assert list(read.panels)[2] == "which-change"
    head = read.panels[""]
    assert f"goes from 2.450 to 2.310 bits per byte (better: {MINUS}0.190 to {MINUS}0.090)" in head
    assert ("Improved alone: corpus.packing. Hurt alone: tokenizer. Inconclusive: objective.masked_lm.dynamic "
            "and objective.next_sentence.") in head
    assert read.row("tokenizer, in the child")[1:] == ["+0.070", "worse: 0.030 to 0.110"]
    assert read.row("objective.next_sentence", f"{MINUS}0.030")[2:] == \
        ["not possible", f"inconclusive: {MINUS}0.070 to 0.010 (about 7 seeds would decide)"]
    panel = read.panels["which-change"]
    assert f"{MINUS}0.067 remains" in panel
    assert "bert@tiny + objective.next_sentence: packing segment_pair needs it" in panel
    assert "training.batch_size: both have 16 at size tiny" in panel
    assert 'id="plot-waterfall"' in text and "interaction" in texts(re.search(
        r'<figure id="plot-waterfall">(<svg.*?</svg>)', text, re.S)[1])


def test_claims_and_scaling_laws_are_described(tmp_path: Path):
    _, read = page_of(claim_results(), tmp_path)
    assert "Do new masks every time help? The paper's finding was not reproduced at this size." in read.panels[""]
    assert "not reproduced at this size" in read.panels[""] and "not seen" not in read.panels[""]
    assert "(arXiv:1907.11692): New masks are as good as static ones" in read.panels["results"]
    _, read = page_of(scaling_results(), tmp_path)
    assert read.row("bert", "0.090") == ["bert", "0.090", "0.070 to 0.110", "9", "\u2013"]
    assert "At size mini, roberta@mini has the best mean" in read.panels[""]  # sizes are not compared with each other
    assert "A point is a run." in read.panels["scaling"]


def test_an_experiment_without_scores_is_reported(tmp_path: Path):
    results = compare_results() | {"differences": [], "measures": []}
    for cell in results["cells"]:
        cell.update(state="failed", why="killed", cost={}, curve=[], scores={})
    for row in results["table"]:
        row.update(scores={}, cost={})
    _, read = page_of(results, tmp_path)
    assert "there is nothing to compare" in read.panels[""] and "12 cells failed" in read.panels["results"]
    write_lab_markdown(results, tmp_path)


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_the_markdown_report_has_the_same_headline_and_figures(make: Callable[[], dict[str, Any]], tmp_path: Path):
    results = make()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "old.svg").write_text("<svg/>")
    text = write_lab_markdown(results, tmp_path).read_text(encoding="utf-8")
    assert words.headline(results).replace("<", "\\<") in text
    linked = set(re.findall(r"!\[[^]]+\]\((pictures/[^)]+)\)", text))
    assert linked == {f"pictures/{file.name}" for file in (tmp_path / "pictures").iterdir()} and linked
    for name in linked:
        root = ElementTree.parse(tmp_path / name).getroot()
        assert root.get("width") and root.get("height")
        assert "prefers-color-scheme: dark" in (tmp_path / name).read_text()
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block
    assert results["command"] in text
    before = {file.name: file.read_bytes() for file in (tmp_path / "pictures").iterdir()}
    write_lab_markdown(results, tmp_path)
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "pictures").iterdir()}  # equal bytes


def test_markup_in_names_is_escaped(tmp_path: Path):
    results = compare_results()
    results["title"] = "a|b *c* <script>alert(1)</script>"
    text, read = page_of(results, tmp_path)
    assert "a|b *c* <script>alert(1)</script>" in read.panels[""] and text.count("<script>") == 1
    summary = write_lab_markdown(results, tmp_path).read_text()
    assert summary.startswith(r"# a|b \*c\* \<script\>")


# --- words and plots --------------------------------------------------------------------------------------------------


def test_the_largest_deviation_is_of_the_unit_that_was_held_equal():
    results = compare_results()
    results["budget"] = {"unit": "minutes", "amount": 1.0}
    assert f"Held equal: 1 minutes for each cell. The largest deviation is {MINUS}31.67% (bert@tiny, seed 0)" \
        in words.budget_note(results)
    results["budget"] = {"unit": "flops", "amount": 6.2e13}
    assert f"6.2e13 FLOPs for each cell. The largest deviation is {MINUS}50.00%" in words.budget_note(results)
    results["cells"] = [cell | {"variant": "transformer-xl@tiny"} for cell in results["cells"]]
    assert "(transformer-xl@tiny, seed 0)" in words.budget_note(results)  # a hyphen in a name is not printed as a minus


@pytest.mark.parametrize(("example", "expected"), [
    (difference("m", "a", "b", 0.005, 0.025, "inconclusive"),
     f"inconclusive: {MINUS}0.020 to 0.030 (about 7 seeds would decide)"),
    (difference("m", "a", "b", 0.03, 0.025, "inconclusive"),
     "inconclusive: 0.005 to 0.055, significant alone but not among 3 comparisons (about 7 seeds would decide)"),
    (difference("m", "a", "b", 0.005, 0.025, "inconclusive", needed=None),
     f"inconclusive: {MINUS}0.020 to 0.030 (more than 100 seeds would be needed)"),
    (difference("m", "a", "b", 0.005, 0.025, "inconclusive", needed=None, text_error=0.1),
     f"inconclusive: {MINUS}0.020 to 0.030 (more held-out text would be needed)"),
    (difference("m", "a", "b", 0.002, 0.005, "equivalent"), f"equivalent within 0.01: {MINUS}0.003 to 0.007"),
    (difference("m", "a", "b", -0.3, 0.1, "better", note="b drops capitals"),
     f"better: {MINUS}0.400 to {MINUS}0.200; b drops capitals"),
    (difference("m", "a", "b", 0.3, 0.1, "better"), "better: 0.200 to 0.400"),
    (difference("m", "a", "b", -0.0002, 0.0001, "worse"), f"worse: {MINUS}0.0003 to {MINUS}0.0001"),
    (difference("m", "a", "b", 0.3, None, "one seed"), "one seed: no interval, so no verdict"),
    (difference("m", "a", "b", 0.0, 0.0, "same bytes"), "no difference: identical weights"),
])
def test_verdicts_are_formatted_with_interval_and_needed_seeds(example, expected):
    assert words.format_verdict(example) == expected


def test_verdicts_are_inverted_for_the_reversed_pair():
    results = compare_results()
    assert words.verdicts_against(results, BITS["key"], "roberta@tiny") == {"albert@tiny": "inconclusive",
                                                                            "bert@tiny": "worse"}
    assert list(words.variant_means(results, ACCURACY["key"]))[0] == "electra@tiny"  # higher is better
    assert list(words.variant_means(results, BITS["key"])) == ["roberta@tiny", "albert@tiny", "bert@tiny"]


def points_of(svg: str, group: str) -> list[tuple[float, float]]:
    """The points of the first path in a group of matplotlib's SVG."""
    part = svg[svg.index(f'id="{group}"'):]
    path = re.search(r' d="([^"]+)"', part)[1]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.-]+) ([\d.-]+)", path)]


def test_the_bars_of_a_waterfall_are_cumulative():
    steps = [WaterfallStep("one", -0.5, [(-0.7, -0.3), None], "better"),
             WaterfallStep("two", 0.2, [None, (0.1, 0.3)], "worse"),
             WaterfallStep("remainder", -0.1, (), "")]
    svg = draw_waterfall(("parent", 3.0), steps, ("child", 2.6), "bits per byte", "score (lower is better)")
    assert {"parent", "one", "two", "remainder", "child"} <= set(texts(svg))
    assert {f"{MINUS}0.500", "+0.200", "3.000", "2.600"} <= set(texts(svg))
    bars = [points_of(svg, f"patch_{index}") for index in (3, 4, 5)]  # patches 1 and 2 are backgrounds
    spans = [(min(x for x, _ in bar), max(x for x, _ in bar)) for bar in bars]
    unit = (spans[0][1] - spans[0][0]) / 0.5
    assert spans[1] == pytest.approx((spans[0][0], spans[0][0] + 0.2 * unit), abs=0.01)  # from the end of the first
    assert spans[2] == pytest.approx((spans[1][1] - 0.1 * unit, spans[1][1]), abs=0.01)


def test_curves_have_a_band_only_with_several_seeds():
    one_seed = draw_curves({"bert": [[(0, 4.0), (10, 2.0)]]}, "tokens read", "loss")
    three_seeds = draw_curves({"bert": [[(0, 4.0), (10, 2.0)], [(1, 4.2), (10, 2.2)], [(0, 3.8), (9, 1.8)]],
                               "a & b": [[(0, 5.0), (10, 4.0)]]}, "tokens read", "loss")
    assert "FillBetweenPolyCollection_1" not in one_seed
    assert "FillBetweenPolyCollection_1" in three_seeds
    assert {"bert", "a & b", "tokens read", "loss"} <= set(texts(three_seeds))


def test_a_forest_plot_labels_rows_with_and_without_intervals():
    rows = [ForestRow("a key.with.many.dots.that.is.long", 0.1, (0.05, 0.15), True), ForestRow("c", -0.1, None, False)]
    svg = draw_forest(rows, "difference", "score")
    labels = texts(svg)
    assert {"a key.with.many.dots.", "that.is.long", "c", "+0.100", f"{MINUS}0.100"} <= set(labels)


def test_scaling_plots_work_with_and_without_a_band():
    fit = scaling_results()["scaling"][0]
    assert "FillBetweenPolyCollection_1" in draw_scaling([fit], "parameters", "bits per byte")
    svg = draw_scaling([fit | {"band": [], "floor": 1.0}], "parameters", "bits per byte")
    assert "FillBetweenPolyCollection_1" not in svg and {"10\u00a0M", "bert"} <= set(texts(svg))
