"""A real browser, Chromium without a window, and what a person sees in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from support.programs import program
from support.waiting import wait_until

SECONDS = 60.0
"""For what takes a moment where nothing else runs."""

_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # which can't be had as root, in CI; it shows pages of ours alone
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


class Browser:
    """One page in one window.

    Attributes:
        driver: Selenium's.
    """

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str, *, width: int = 1280, height: int = 900, is_dark: bool = False, scale: int = 1) -> None:
        """Shows a page, in a window of this size, on a system that is light or dark."""
        self.driver.get("about:blank")
        self.complaints()
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.prefer(is_dark=is_dark)
        self.driver.get(url)

    def prefer(self, *, is_dark: bool) -> None:
        """The system is light or dark from now on."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Returns what can be read of an element; nothing of what is hidden."""
        try:
            return self.find(selector).text
        except StaleElementReferenceException:
            return self.text(selector)

    def rows(self, table: str) -> list[list[str]]:
        """Returns the cells of a table's rows, as they can be read."""
        made: list[list[str]] = self.run(
            "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map("
            "(row) => [...row.cells].filter((cell) => cell.offsetParent).map((cell) => cell.innerText))",
            table,
        )
        return made

    def wait_for_row(self, table: str, *cells: str) -> None:
        """The table's first row begins with these cells: what is shown comes in several pieces, one after the other."""

        def found() -> bool:
            nonlocal last
            last = self.rows(table)[:1]
            return last != [] and last[0][: len(cells)] == list(cells)

        last: list[list[str]] = []
        try:
            wait_until(found, f"{cells} first in {table}")
        except AssertionError as error:
            error.add_note(f"it is {last}; the page:\n{self.text('body')[:3000]}\n{self.complaints()}")
            raise

    def wait_for_text(self, selector: str, text: str, deadline_seconds: float = SECONDS) -> None:
        """The element says this, among other things."""

        def found() -> bool:
            nonlocal last
            last = self.text(selector)
            return text in last

        last = ""
        try:
            wait_until(found, f"{text!r} in {selector}", deadline_seconds)
        except AssertionError as error:
            error.add_note(f"it says {last!r}; the page:\n{self.text('body')[:3000]}\n{self.complaints()}")
            raise

    def wait_for(self, script: str, *arguments: Any, deadline_seconds: float = SECONDS) -> Any:
        """Returns the first true value of a script's expression."""
        return wait_until(lambda: self.run(f"return {script}", *arguments), script, deadline_seconds)

    def click(self, selector: str) -> None:
        try:
            self.find(selector).click()
        except StaleElementReferenceException:  # shown anew in between
            self.click(selector)

    def type(self, *keys: str) -> None:
        """Keys for whatever has the focus."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """Returns what the console has said since the last call: errors, refused loads."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Returns the addresses asked for since the last call."""
        told = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return [one["params"]["request"]["url"] for one in told if one["method"] == "Network.requestWillBeSent"]

    def pixels(self, canvas: str, colour: str) -> int:
        """Returns how many pixels of a canvas have the colour of a variable of the page's style, or nearly."""
        count: int = self.run(
            """
            const canvas = document.querySelector(arguments[0]);
            const probe = document.createElement("i");
            probe.style.color = getComputedStyle(document.documentElement).getPropertyValue(`--${arguments[1]}`);
            document.body.append(probe);
            const wanted = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
            probe.remove();
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let found = 0;
            for (let at = 0; at < data.length; at += 4) {
              if (data[at + 3] > 200 && wanted.every((part, which) => Math.abs(data[at + which] - part) < 12)) found++;
            }
            return found;
            """,
            canvas,
            colour,
        )
        return count


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of its own, with nothing remembered.

    Skips the test where there is none, and fails it in CI.
    """
    options = ChromeOptions()
    options.binary_location = program("chromium", "chromium-browser", "google-chrome", package="chromium")
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options, Service(program("chromedriver", package="chromium-driver")))
    try:
        driver.set_script_timeout(SECONDS)
        driver.set_page_load_timeout(SECONDS)
        yield Browser(driver)
    finally:
        driver.quit()


__all__ = ["SECONDS", "Browser", "Keys", "chromium"]
