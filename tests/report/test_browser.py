"""The pages in a headless Chromium: drawn, usable by keyboard, in the dark, small, printed."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from dnformer.report.write import write_report

from ..browser import broken_rules, chromium, emulate, needs_browser, requests, resize
from .conftest import OPTIONS
from .test_reproduction_page import FIGURE2, TABLE2, put

pytestmark = needs_browser

KINDS = ("run", "search", "comparison", "reproduction")


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium() as chrome:
        yield chrome


@pytest.fixture(scope="module")
def files(
    run: str, search: str, trained: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The pages by kind."""
    folder = tmp_path_factory.mktemp("pages")
    results = tmp_path_factory.mktemp("results")
    (results / "runs.jsonl").touch()
    put(results, "table2-random.json", TABLE2)
    put(results, "figure2-random.json", FIGURE2)
    named = {
        "run": [run],
        "search": [search],
        "comparison": [run, trained("numbers", data={"label": "size"})],
        "reproduction": [str(results)],
    }
    for kind, uris in named.items():
        write_report(uris, str(folder / f"{kind}.html"), OPTIONS)
    return {kind: folder / f"{kind}.html" for kind in named}


@pytest.fixture(scope="module")
def show(driver: webdriver.Chrome, files: dict[str, Path]) -> Callable[..., None]:
    """Opens a page, in a scheme and at a width."""

    def open_page(kind: str, *, scheme: str = "light", width: int = 1200) -> None:
        resize(driver, width)
        emulate(driver, scheme=scheme)
        driver.get(files[kind].as_uri())
        WebDriverWait(driver, 60).until(
            lambda page: page.execute_script(
                "return [...document.querySelectorAll('.plot')].every("
                "each => each.querySelector('svg.main-svg'))"
            )
        )

    return open_page


@pytest.mark.parametrize("kind", KINDS)
def test_page_draws_all_figures_and_asks_for_nothing(driver, show, kind):
    requests(driver)
    driver.get_log("browser")
    show(kind)
    figures = driver.execute_script(
        "return [...document.querySelectorAll('.plot')].map(plot => "
        "[plot.id, plot.querySelectorAll('.plot-container path, .plot-container image').length])"
    )
    assert len(figures) >= 3
    assert all(paths > 0 for _, paths in figures), figures
    assert driver.get_log("browser") == []
    assert {url.partition(":")[0] for url in requests(driver)} <= {"file", "data"}
    # what stood in ids and class names was not run
    assert driver.execute_script("return window.hacked") is None


@pytest.mark.parametrize(("kind", "scheme"), [("run", "dark"), ("search", "light")])
def test_page_keeps_the_rules_of_accessibility(driver, show, kind, scheme):
    show(kind, scheme=scheme)
    driver.execute_script(
        "for (const each of document.querySelectorAll('details')) each.open = true"
    )
    assert broken_rules(driver) == []


def test_figures_follow_the_scheme(driver, show):
    def colour_of_words() -> str:
        return driver.execute_script(
            "return getComputedStyle(document.querySelector('.plot .xtitle')).fill"
        )

    show("run", scheme="dark")
    dark = colour_of_words()
    emulate(driver, scheme="light")
    WebDriverWait(driver, 30).until(lambda _: colour_of_words() != dark)
    assert sum(map(int, dark.strip("rgb()").split(", "))) > 600
    assert sum(map(int, colour_of_words().strip("rgb()").split(", "))) < 200
    # on paper it is light, whatever the screen is
    emulate(driver, scheme="dark", media="print")
    WebDriverWait(driver, 30).until(lambda _: colour_of_words() == "rgb(0, 0, 0)")
    emulate(driver)


def test_keyboard_goes_from_the_skip_link_through_the_page(driver, show):
    show("run")
    met = []
    for _ in range(12):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        met.append(
            driver.execute_script(
                "const e = document.activeElement, style = getComputedStyle(e);"
                "return [e.tagName, e.textContent.trim(), style.outlineStyle, style.outlineWidth]"
            )
        )
    assert met[0][:2] == ["A", "Skip to the content"]
    sections = ["Summary", "Learning curves", "Where the time went", "Predictions", "Attention"]
    assert [text for tag, text, *_ in met[1:6]] == sections
    assert met[7][:2] == ["SUMMARY", "Numbers: Loss"]
    assert all(style != "none" and width == "3px" for *_, style, width in met)
    ActionChains(driver).send_keys(Keys.HOME).perform()
    driver.execute_script("document.querySelector('.skip').focus()")
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    assert driver.execute_script("return document.activeElement.id") == "main"


def test_tables_of_figures_open_by_keyboard(driver, show):
    show("run")
    driver.execute_script("document.querySelector('figure summary').focus()")
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    assert driver.execute_script(
        "const table = document.querySelector('figure table');"
        "return [table.checkVisibility(), table.tHead.rows[0].cells[0].scope, table.rows.length]"
    ) == [True, "col", 4]


@pytest.mark.parametrize("kind", KINDS)
def test_page_fits_a_phone(driver, show, kind):
    show(kind, width=375)
    wide = driver.execute_script(
        "const root = document.documentElement, plots = [...document.querySelectorAll('.plot')];"
        "return [root.scrollWidth - root.clientWidth, "
        "plots.filter(p => p.querySelector('svg').getBoundingClientRect().right > 375).length]"
    )
    assert wide == [0, 0]


def test_page_prints(driver, show):
    show("run", scheme="dark")
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    content = base64.b64decode(printed["data"])
    assert content.startswith(b"%PDF-")
    assert len(content) > 20_000
