"""The reports in a real browser: tabs and sorting by mouse and keyboard, no requests, and the width of a phone."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_results import ablate_results, compare_results

from stemma.lab.report.lab_html import write_lab_report
from stemma.lab.report.tree_html import write_tree

CHROMIUM = shutil.which("chromium")
api = pytest.importorskip("playwright.sync_api", reason="no playwright (make setup installs it)")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (apt-get install chromium)")

Open = Callable[..., Any]
FIRST_COLUMN = "table => [...table.tBodies[0].rows].map(row => row.cells[0].textContent)"
SHOWN = "panels => panels.filter(panel => panel.checkVisibility({contentVisibilityAuto: true}) " \
        "&& panel.getBoundingClientRect().height > 40).map(panel => panel.id)"
TABS = ["Results", "Which change", "Curves", "Recipes", "Cost", "Reproduce"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=120_000)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {"tree": write_tree(folder / "tree.html", {"bert"})}
    for name, results in (("compare", compare_results()), ("ablate", ablate_results())):
        (folder / name).mkdir()
        paths[name] = write_lab_report(results, folder / name)
    return paths


@pytest.fixture
def visit(browser: Any, pages: dict[str, Path]) -> Iterator[Open]:
    """Open a page. Console messages, errors and requests for other files fail the test."""
    problems: list[str] = []
    contexts = []

    def go(name: str, fragment: str = "", **options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        contexts[-1].set_default_timeout(60_000)
        page = contexts[-1].new_page()
        address = pages[name].as_uri()
        page.on("console", lambda message: problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", lambda request: problems.append(f"request: {request.url}")
                if request.url.partition("#")[0] != address else None)
        page.goto(address + fragment)
        return page

    yield go
    for context in contexts:
        context.close()
    assert not problems


def visible_panels(page: Any) -> list[str]:
    return page.eval_on_selector_all("section.panel", SHOWN)


def selected_tab(page: Any) -> str:
    assert page.get_by_role("tab", selected=True).count() == 1
    return page.get_by_role("tab", selected=True).inner_text()


def test_tabs_work_by_mouse_and_keyboard(visit: Open):
    page = visit("ablate")
    assert page.get_by_role("tab").all_inner_texts() == TABS
    assert selected_tab(page) == "Results" and visible_panels(page) == ["results"]
    page.get_by_role("tab", name="Which change").click()
    assert selected_tab(page) == "Which change" and visible_panels(page) == ["which-change"]
    panel = page.locator("[role=tabpanel]:not([hidden])")
    assert panel.get_attribute("aria-labelledby") == page.get_by_role("tab", selected=True).get_attribute("id")
    for key, expected in (("ArrowRight", "Curves"), ("ArrowLeft", "Which change"), ("End", "Reproduce"),
                          ("ArrowRight", "Results"), ("ArrowLeft", "Reproduce"), ("Home", "Results")):
        page.keyboard.press(key)
        assert selected_tab(page) == expected and page.evaluate("document.activeElement.textContent") == expected
    page.keyboard.press("Tab")  # the tabs are one tab stop; the next is in the panel
    assert page.evaluate("document.activeElement.closest('section').id") == "results"


def test_the_fragment_of_the_address_selects_a_tab(visit: Open):
    page = visit("compare", "#cost")
    assert selected_tab(page) == "Cost" and visible_panels(page) == ["cost"]
    page.get_by_role("tab", name="Recipes").click()
    assert page.evaluate("location.hash") == "#recipes"
    page.evaluate("location.hash = '#curves'")
    page.wait_for_function("document.querySelector('[aria-selected=true]').textContent === 'Curves'")


def test_tables_sort_by_any_column(visit: Open):
    page = visit("compare")
    table = page.locator("table.sortable").first
    unsorted = ["bert@tiny", "roberta@tiny", "albert@tiny", "electra@tiny"]
    assert table.evaluate(FIRST_COLUMN) == unsorted
    bits = table.get_by_role("button", name="pseudo-likelihood")
    head = table.locator("th", has=page.get_by_role("button", name="pseudo-likelihood"))
    assert head.get_attribute("aria-sort") is None
    bits.click()
    assert head.get_attribute("aria-sort") == "ascending"
    best_first = ["roberta@tiny", "albert@tiny", "bert@tiny", "electra@tiny"]
    assert table.evaluate(FIRST_COLUMN) == best_first
    bits.focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert table.evaluate(FIRST_COLUMN) == ["bert@tiny", "albert@tiny", "roberta@tiny", "electra@tiny"]  # no score
    table.get_by_role("button", name="variant").press("Space")
    assert head.get_attribute("aria-sort") is None and table.locator("[aria-sort]").count() == 1
    assert table.evaluate(FIRST_COLUMN) == sorted(unsorted)
    table.get_by_role("button", name="accuracy").dblclick()
    assert table.evaluate(FIRST_COLUMN)[0] == "electra@tiny"
    bits.click()
    assert table.evaluate(FIRST_COLUMN) == best_first  # the variant without a score is last


def test_numbers_are_sorted_by_value(visit: Open):
    page = visit("ablate", "#which-change")
    table = page.locator("#which-change table.sortable")
    table.get_by_role("button", name="contribution").click()
    assert table.evaluate(FIRST_COLUMN) == ["corpus.packing", "objective.next_sentence", "objective.masked_lm.dynamic",
                                            "tokenizer"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_the_width_of_a_phone(visit: Open, scheme: str):
    for name in ("compare", "ablate", "tree"):
        page = visit(name, viewport={"width": 360, "height": 740}, color_scheme=scheme)
        page.eval_on_selector_all("details", "all => all.forEach(details => details.open = true)")
        for tab in page.get_by_role("tab").all() or [None]:
            if tab is not None:
                tab.click()
            assert page.evaluate("document.documentElement.scrollWidth") == 360
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 22, 24)"}[scheme]


def test_all_panels_are_visible_without_scripts_and_in_print(visit: Open):
    everything = ["results", "which-change", "curves", "recipes", "cost", "reproduce"]
    without_script = visit("ablate", java_script_enabled=False)
    for name in everything:
        assert without_script.locator(f"#{name} > h2").is_visible()
    assert without_script.locator("th button").count() == 0  # no buttons without a script
    printed = visit("ablate")
    printed.emulate_media(media="print")
    assert visible_panels(printed) == everything
    assert not printed.get_by_role("tablist").is_visible() and printed.locator("#cost > h2").is_visible()


def test_details_of_a_recipe_open_by_keyboard(visit: Open):
    page = visit("tree")
    bert = page.locator("details", has=page.get_by_text("bert", exact=True)).first
    changes = bert.get_by_text("changes from transformer")
    assert not changes.is_visible()
    bert.locator("summary").focus()
    page.keyboard.press("Enter")
    assert changes.is_visible()
