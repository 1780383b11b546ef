"""The page of an explanation in a headless Chromium: drawn, pointed at, and used by keyboard."""

from collections.abc import Callable, Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from dnformer.explain import explain
from dnformer.explain.page import write_page

from ..browser import broken_rules, chromium, emulate, needs_browser, requests, resize
from ..report.conftest import EVIL

pytestmark = needs_browser


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium() as chrome:
        yield chrome


@pytest.fixture(scope="module")
def uri(trained: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    run = trained("explained", model={"hidden": 8, "lambda": "fixed", "lambda_init": 1.0})
    explained = explain(run, [f"07 {EVIL}", f"08 {EVIL}"], top=3)
    path = tmp_path_factory.mktemp("page") / "e.html"
    write_page(explained, str(path))
    return path.as_uri()


@pytest.fixture
def shown(driver: webdriver.Chrome, uri: str) -> webdriver.Chrome:
    """A browser with the page."""
    resize(driver, 1200)
    emulate(driver)
    driver.get(uri)
    return driver


def test_page_draws_and_asks_for_nothing(driver, uri):
    requests(driver)
    driver.get_log("browser")
    driver.get(uri)
    dots, kept, subtracted, widths = driver.execute_script(
        "const figure = document.querySelector('.neighbourhood');"
        "const edges = [...figure.querySelectorAll('.canvas .edge')];"
        "return [figure.querySelectorAll('[role=option]').length,"
        "  ...['kept', 'subtracted'].map(c => edges.filter(e => e.matches('.' + c)).length),"
        "  edges.map(e => parseFloat(getComputedStyle(e).strokeWidth))]"
    )
    assert dots > 6
    assert kept > 0
    assert subtracted > 0
    assert len(set(widths)) > 3
    assert driver.get_log("browser") == []
    assert {url.partition(":")[0] for url in requests(driver)} <= {"file", "data"}
    assert driver.execute_script("return window.hacked") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_keeps_the_rules_of_accessibility(shown, scheme):
    emulate(shown, scheme=scheme)
    assert broken_rules(shown) == []


def test_arrow_keys_go_along_the_rings_and_the_details_follow(shown):
    def press(key: str) -> list:
        ActionChains(shown).send_keys(key).perform()
        return shown.execute_script(
            "const dot = document.activeElement;"
            "const open = [...dot.closest('figure').querySelectorAll('.details > div')]"
            "  .filter(each => !each.hidden);"
            "return [dot.dataset.ring, dot.getAttribute('aria-selected'), open.length,"
            "  open[0].id === 'about-' + dot.id, dot.id, dot.dataset.of]"
        )

    shown.execute_script("document.querySelector('[role=option]').focus()")
    ring, *state, first, inside = press(Keys.ARROW_DOWN)
    assert (ring, state) == ("1", ["true", 1, True])
    ring, *state, second, _ = press(Keys.ARROW_RIGHT)
    assert (ring, state) == ("1", ["true", 1, True])
    assert second != first
    assert press(Keys.ARROW_LEFT)[4] == first
    assert press(Keys.ARROW_UP)[4] == inside
    assert press(Keys.END)[0] == "2"
    # one stop for the whole drawing
    stops = shown.execute_script("return document.querySelectorAll('.dot[tabindex=\"0\"]').length")
    assert stops == 2


def test_head_and_layer_can_be_chosen(shown):
    def choose(name: str, value: str) -> list:
        return shown.execute_script(
            "const figure = document.querySelector('.neighbourhood');"
            "const select = figure.querySelector('.of-' + arguments[0]);"
            "select.value = arguments[1]; select.dispatchEvent(new Event('change'));"
            "return [...figure.querySelectorAll('.canvas .edge')].map(e =>"
            "  [e.dataset.w, parseFloat(e.style.strokeWidth), e.matches('.kept'),"
            "   e.dataset.ring, e.matches('.faded')])",
            name, value,
        )  # fmt: skip

    mean = choose("head", "0")
    for head in ("1", "2"):
        edges = choose("head", head)
        assert [kept for _, _, kept, *_ in edges] == [
            float(w.split(",")[int(head)]) >= 0 for w, *_ in edges
        ]
        assert [width for _, width, *_ in edges] != [width for _, width, *_ in mean]
    assert all(faded == (ring != "2") for *_, ring, faded in choose("layer", "2"))
    assert not any(faded for *_, faded in choose("layer", ""))


def test_page_fits_a_phone(shown, uri):
    resize(shown, 375)
    shown.get(uri)
    assert shown.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    ) == 0  # fmt: skip
