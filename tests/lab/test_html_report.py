import re
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from stemma.errors import UserError
from stemma.lab.report.html_report import HtmlReport
from stemma.lab.report.plots import _spread_labels, bars, learning_curve

CURVE = {"bert@tiny": [(0, 7.0), (1000, 5.0), (2000, 4.5)], "a & b <c>": [(0, 7.0), (2000, 6.0)]}
BASELINES = {"unigram": 6.0, "bigram": 5.4}


def curve() -> str:
    return learning_curve(CURVE, BASELINES, "training step", "loss (nats)")


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("}text")]


class Checker(HTMLParser):
    """Collects the text; fails on a wrongly nested tag or a reference to another file."""

    void = {"meta", "br", "path", "use"}

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text_parts: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "xlink:href", "action", "data"):
                assert value.startswith("#")
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text_parts.append(data)


def full_page() -> HtmlReport:
    return (HtmlReport("Title & <more>").intro("A lead with `code`.", [(0.5, "a share"), (12_345, "words"),
                                                                       ("4 min", "time")])
            .section("First", "A paragraph with <b> and `x < y`.", "Another.")
            .figure(curve(), 'A "curve"').table(["name", "value"], [("one", 1.0), ("two", 2000)], "The caption")
            .section("Second").figure(bars([("a", [1.0, 2.0])], "share"), "Bars").code("stemma x --y 'z' <in >out"))


def test_page_is_well_formed_complete_and_needs_no_network():
    text = full_page().html()
    checker = Checker(text)
    shown = "".join(checker.text_parts)
    for expected in ("Title & <more>", "x < y", "A paragraph with <b> and", "stemma x --y 'z' <in >out", "0.500",
                     "12,345", "4 min", "2,000", "The caption", "unigram"):
        assert expected in shown
    assert checker.tags.count("svg") == 2 and "script" not in checker.tags and "link" not in checker.tags
    addresses = set(re.findall(r"[a-z]+://[^\s\"'<]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # XML namespaces
    assert "@import" not in text and "url(http" not in text
    assert 'name="viewport"' in text and "prefers-color-scheme: dark" in text and "default-src 'none'" in text
    assert '<svg role="img" aria-label="A &quot;curve&quot;"' in text


def test_blocks_appear_in_the_order_of_the_calls():
    text = full_page().html()
    marks = ("<h1>", 'class="lead"', "<dl", "First", "<figure", "<table", "Second", "<pre")
    offsets = [text.index(mark) for mark in marks]
    assert offsets == sorted(offsets)


def test_only_columns_of_numbers_are_right_aligned():
    rows = [("a", 1, "0.51 \u00b1 0.02", "12 ms", "v1"), ("b", 2.5, "0.6", "9 s", "2")]
    text = HtmlReport("t").table(["word", "n", "mean", "time", "mixed"], rows).html()
    heads = re.findall(r"<th scope=\"col\"( class=\"number\")?>(\w+)", text)
    assert [name for mark, name in heads if mark] == ["n", "mean", "time"]
    with pytest.raises(ValueError):
        HtmlReport("t").table(["one"], [("a", "b")])


def test_write_is_atomic(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    page = HtmlReport("Old")
    assert page.write(path) == path and path.read_text() == page.html()

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(UserError, match="disk is full"):
        HtmlReport("New").write(path)
    assert path.read_text() == page.html()
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_learning_curve_labels_its_lines_directly_and_is_deterministic():
    svg = curve()
    assert {"bert@tiny", "a & b <c>", "unigram", "bigram", "training step", "loss (nats)"} <= set(texts(svg))
    assert len(re.findall(r"stroke-dasharray", svg)) == 2  # the two baselines
    assert "var(--accent" in svg and "var(--muted" in svg
    assert not re.search(r"(?<!, )#0a6ebd", svg)  # every colour can be themed
    assert svg == curve()  # deterministic


def test_bars_show_the_mean_and_every_seed():
    svg = bars([("random", [0.5, 0.52, 0.54]), ("pre-trained", [0.7, 0.75, 0.71])], "accuracy (share)", ("chance", 0.5))
    assert {"random", "pre-trained", "0.52", "0.72", "chance", "accuracy (share)"} <= set(texts(svg))
    assert svg.count("var(--paper") >= 6  # three points over each bar
    assert texts(bars([("one", [0.25])], "share")).count("0.25") >= 1


def test_plots_do_not_change_matplotlibs_settings(monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    before = matplotlib.rcParams.copy()
    curve()
    assert matplotlib.rcParams.copy() == before
    assert "matplotlib.pyplot" not in sys.modules


def test_labels_that_would_overlap_are_pushed_apart():
    heights = np.full(5, 0.1)
    placed = _spread_labels([0.1, 0.5, 0.51, 0.52, 0.9], heights)
    assert placed == pytest.approx([0.1, 0.41, 0.51, 0.61, 0.9])
    placed = _spread_labels([0.0, 0.05, 0.16, 0.3, 0.3], heights)
    assert min(np.diff(placed)) >= 0.1 - 1e-9
