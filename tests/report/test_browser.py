"""The pages in a real headless Chromium: drawn, usable by keyboard, in the dark, small, on paper.

Debian's packages chromium and chromium-driver; without them the tests are skipped.
"""

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from axe_core_python.base import AxeBase
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from dnformer.report.write import write_report

from .conftest import OPTIONS

CHROMIUM, DRIVER = (
    shutil.which(name, path="/usr/bin:/usr/local/bin:/usr/lib/chromium")
    for name in ("chromium", "chromedriver")
)
pytestmark = pytest.mark.skipif(
    not CHROMIUM or not DRIVER, reason="needs a browser: chromium and chromedriver"
)

KINDS = ("run", "search", "comparison")


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=Service(str(DRIVER))) as chrome:
        chrome.set_script_timeout(120)
        yield chrome


@pytest.fixture(scope="module")
def files(
    run: str, search: str, trained: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The pages by kind."""
    folder = tmp_path_factory.mktemp("pages")
    named = {
        "run": [run],
        "search": [search],
        "comparison": [run, trained("numbers", data={"label": "size"})],
    }
    for kind, uris in named.items():
        write_report(uris, str(folder / f"{kind}.html"), OPTIONS)
    return {kind: folder / f"{kind}.html" for kind in named}


@pytest.fixture(scope="module")
def show(driver: webdriver.Chrome, files: dict[str, Path]) -> Callable[..., None]:
    """Opens a page, in a scheme and at a width."""

    def open_page(kind: str, *, scheme: str = "light", width: int = 1200) -> None:
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        emulate(driver, scheme=scheme)
        driver.get(files[kind].as_uri())
        WebDriverWait(driver, 60).until(
            lambda page: page.execute_script(
                "return [...document.querySelectorAll('.plot')].every("
                "each => each.querySelector('svg.main-svg'))"
            )
        )

    return open_page


def emulate(driver: webdriver.Chrome, *, scheme: str = "light", media: str = "") -> None:
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )


def requests(driver: webdriver.Chrome) -> list[str]:
    """URLs that were asked for since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_page_draws_all_figures_and_asks_for_nothing(driver, show, kind):
    requests(driver)
    driver.get_log("browser")
    show(kind)
    figures = driver.execute_script(
        "return [...document.querySelectorAll('.plot')].map(plot => "
        "[plot.id, plot.querySelectorAll('.plot-container path, .plot-container image').length])"
    )
    assert len(figures) >= 4
    assert all(paths > 0 for _, paths in figures), figures
    assert driver.get_log("browser") == []
    assert {url.partition(":")[0] for url in requests(driver)} <= {"file", "data"}
    # what stood in ids and class names was not run
    assert driver.execute_script("return window.hacked") is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_keeps_the_rules_of_accessibility(driver, show, kind, scheme):
    show(kind, scheme=scheme)
    driver.execute_script(
        "for (const each of document.querySelectorAll('details')) each.open = true"
    )
    driver.execute_script(AxeBase().axe_script)
    found: dict[str, Any] = driver.execute_async_script(
        "const done = arguments[0]; axe.run().then(done)"
    )
    told = [
        (each["id"], each["help"], [node["html"][:200] for node in each["nodes"][:3]])
        for each in found["violations"]
    ]
    assert told == []
    assert len(found["passes"]) > 20


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
def test_page_has_a_heading_in_order_for_each_part(driver, show, kind):
    show(kind)
    levels, unnamed = driver.execute_script(
        "const heads = [...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1]);"
        "const parts = [...document.querySelectorAll('nav,main,section,figure,[role=region]')];"
        "return [heads, parts.filter(p => p.tagName !== 'MAIN' && !p.ariaLabel && "
        "!document.getElementById(p.getAttribute('aria-labelledby'))).length]"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert unnamed == 0


@pytest.mark.parametrize("kind", KINDS)
def test_page_fits_a_phone(driver, show, kind):
    show(kind, width=375)
    wide = driver.execute_script(
        "const root = document.documentElement, plots = [...document.querySelectorAll('.plot')];"
        "return [root.scrollWidth - root.clientWidth, "
        "plots.filter(p => p.querySelector('svg').getBoundingClientRect().right > 375).length]"
    )
    assert wide == [0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_page_prints(driver, show, kind):
    show(kind, scheme="dark")
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    content = base64.b64decode(printed["data"])
    assert content.startswith(b"%PDF-")
    assert len(content) > 20_000
