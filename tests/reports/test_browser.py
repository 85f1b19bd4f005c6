"""The page in a real headless Chromium: no console message, figures drawn, tables sort, phones and dark mode."""

import shutil
from collections.abc import Iterator

import pytest

from reports.compare import compare_main
from tests.reports.synthetic import ALGORITHM

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
FIGURES = (
    "fig-speedup-c-word-problems", "fig-tokens-per-s-c-word-problems", "fig-ttft-ms-c-word-problems",
    "fig-itl-ms-c-word-problems", "fig-request-s-c-word-problems", "fig-acceptance-length",
    "fig-acceptance-rate-position-word-problems", "fig-acceptance-rate-position-instructions",
    "fig-shorter-word-problems", "fig-shorter-instructions", f"fig-loss-in-all-{ALGORITHM}", f"fig-acc-{ALGORITHM}",
    "fig-learning",
)  # fmt: skip

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium; the set-up installs it where it can")


@pytest.fixture(scope="module")
def tab(finished, tmp_path_factory) -> Iterator:
    """One page of one browser, with a list of what it logged or asked the network for."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, see requirements/")
    with sync_api.sync_playwright() as player:
        profile = str(tmp_path_factory.mktemp("profile"))
        context = player.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, args=FLAGS, headless=True
        )
        page, messages = context.new_page(), []
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: messages.append(request.url) if request.url.startswith("http") else None)
        yield page, messages
        context.close()


@pytest.fixture
def opened(tab, finished) -> Iterator:
    """A function that opens the report at some size and mode; afterwards nothing was logged or fetched."""
    page, messages = tab

    def show(width: int = 1280, height: int = 900, scheme: str = "light"):
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.goto((finished / "report/report.html").as_uri())
        return page

    yield show
    assert messages == []


def column(page, number: int) -> list[str]:
    """Texts of one column of the leaderboard, without the second lines."""
    return page.eval_on_selector_all(
        f"#leaderboard tbody tr > :nth-child({number})", "cells => cells.map(cell => cell.firstChild.textContent)"
    )


def test_every_figure_is_drawn_and_has_size(opened):
    page = opened()
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    for name in FIGURES:
        box = page.locator(f"#{name} svg").bounding_box()
        assert box is not None, name
        assert box["width"] > 200, name
        assert box["height"] > 120, name


def test_a_pressed_heading_sorts_the_table_both_ways_with_empty_cells_last(opened):
    page = opened()
    assert column(page, 1) == ["no speculation", "n-gram look-up", ALGORITHM]
    heading = page.locator("#leaderboard th[data-column='3'] button")  # acceptance length on word problems
    heading.click()
    assert column(page, 1) == ["n-gram look-up", ALGORITHM, "no speculation"]
    heading.click()
    assert column(page, 1) == [ALGORITHM, "n-gram look-up", "no speculation"]
    assert page.locator("#leaderboard th[aria-sort='descending']").count() == 1


def test_numbers_are_sorted_as_numbers(opened):
    page = opened()
    page.locator("#leaderboard th[data-column='2'] button").click()  # tokens per second at concurrency 4
    assert column(page, 3) == ["115.2", "118.0", "122.7"]


@pytest.mark.parametrize("width", [360, 380, 390, 768])
def test_only_tables_scroll_sideways_on_a_small_screen(opened, width):
    page = opened(width, 800)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.eval_on_selector("#leaderboard", "table => table.scrollWidth > table.parentElement.clientWidth")


def test_a_filter_keeps_the_rows_with_every_word_and_says_how_many(opened):
    page = opened()
    page.locator("#figures summary").click()
    rows = page.locator("#figures-table tbody tr")
    total = rows.count()
    page.locator("input[data-filters='figures-table']").fill(f"{ALGORITHM} faults")
    shown = page.locator("#figures-table tbody tr:visible")
    assert shown.count() == 1
    assert "Output match, faults" in shown.first.text_content()
    assert page.locator("#figures .filter [role=status]").text_content() == f"1 of {total} rows"
    page.locator("input[data-filters='figures-table']").fill("")
    assert page.locator("#figures-table tbody tr:visible").count() == total


def test_a_comparison_is_drawn_sorted_and_fits_a_phone(tab, finished, tmp_path):
    page, messages = tab
    assert compare_main([str(finished), str(finished), "--out", str(tmp_path)]) == 0
    page.set_viewport_size({"width": 380, "height": 800})
    page.goto((tmp_path / "comparison.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert page.locator("#fig-acceptance-length-word-problems svg").bounding_box()["height"] > 120
    page.locator("#key-figures th[data-column='3'] button").click()
    assert page.locator("#key-figures th[aria-sort='ascending']").count() == 1
    page.locator("input[data-filters='key-figures']").fill("speed-up")
    assert page.locator("#key-figures tbody tr:visible").count() == 4
    assert messages == []


def test_dark_mode_changes_paper_ink_and_figures(opened):
    looks = []
    for scheme in ("light", "dark"):
        page = opened(scheme=scheme)
        paint = "node => [getComputedStyle(document.body).backgroundColor, getComputedStyle(node).fill]"
        looks.append(page.eval_on_selector("#fig-speedup-c-word-problems svg text", paint))
    assert looks[0][0] != looks[1][0]
    assert looks[0][1] != looks[1][1]
