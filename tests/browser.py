"""Pages in a real headless Chromium, for the tests that look at them.

Debian's packages chromium and chromium-driver; without them these tests are skipped.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_core_python.selenium import Axe
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = (
    shutil.which(name, path="/usr/bin:/usr/local/bin:/usr/lib/chromium")
    for name in ("chromium", "chromedriver")
)
needs_browser = pytest.mark.skipif(
    not CHROMIUM or not DRIVER, reason="needs a browser: chromium and chromedriver"
)


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A browser, which is closed afterwards."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=Service(str(DRIVER))) as chrome:
        chrome.set_script_timeout(120)
        yield chrome


def emulate(driver: webdriver.Chrome, *, scheme: str = "light", media: str = "") -> None:
    """Sets the scheme of colours, and the medium."""
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )


def resize(driver: webdriver.Chrome, width: int) -> None:
    """Sets the width of the page in pixels."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )


def requests(driver: webdriver.Chrome) -> list[str]:
    """URLs that were asked for since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


def broken_rules(driver: webdriver.Chrome) -> list[Any]:
    """The rules of accessibility that the page breaks, and where."""
    found: dict[str, Any] = Axe().run(driver)
    looked_at = {each["id"] for each in found["passes"] + found["violations"]}
    assert {"heading-order", "page-has-heading-one", "region", "color-contrast"} <= looked_at
    return [
        (each["id"], each["help"], [node["html"][:200] for node in each["nodes"][:3]])
        for each in found["violations"]
    ]
