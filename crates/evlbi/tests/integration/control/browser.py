"""A page in Chromium, driven as an operator would, and what is seen of it."""

import os
import re
import time

from axe_playwright_python.sync_playwright import Axe

# Milliseconds: the watchdog of what never comes.
PATIENCE = 120_000
# Requests that got no answer, and answers that took more than five seconds.
late = []
seen = {"elsewhere": [], "errors": [], "violations": []}


def opened(play, url, path=""):
    """A page of which every request, error and word on the console is noted."""
    browser = play.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
    context = browser.new_context(ignore_https_errors=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("request", lambda r: r.url.startswith((url, "data:", "blob:")) or seen["elsewhere"].append(r.url))
    page.on("pageerror", lambda error: seen["errors"].append(str(error)))
    page.on("requestfailed", lambda r: late.append((r.method, r.url, r.failure, r.timing)))
    page.on("requestfinished", lambda r: r.timing["responseEnd"] > 5000 and late.append((r.method, r.url, r.timing)))
    page.on("console", lambda m: m.type == "error" and "401" not in m.text and seen["errors"].append(m.text))
    page.goto(url + path)
    return page


def until(page, what, is_so, more=0):
    """Waits for what must come, at most for the watchdog's time and so many seconds more."""
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun < PATIENCE / 1000 + more, f"{what}: {page.inner_text('main')[:3000]} late: {late}"
        time.sleep(0.2)


def accessible(page, where):
    """What axe-core finds fault with."""
    for found in Axe().run(page).response["violations"]:
        nodes = [node["target"] for node in found["nodes"]][:3]
        seen["violations"].append([where, found["id"], nodes])


def everywhere(page):
    """The same in the light, in the dark and on a phone."""
    accessible(page, "light")
    page.emulate_media(color_scheme="dark")
    accessible(page, "dark")
    page.set_viewport_size({"width": 390, "height": 844})
    accessible(page, "phone")
    wide = page.evaluate("document.documentElement.scrollWidth")
    if wide > 390:
        seen["errors"].append(f"the page is {wide} wide on a phone of 390")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")


def row(page, name):
    return page.locator("#flows tbody tr", has=page.locator("button", has_text=re.compile(rf"(^|\.){re.escape(name)}$")))


def select(page, name):
    row(page, name).locator("button").click()
    until(page, f"{name} is not shown", lambda: page.text_content("#detail-title").split(":")[0].endswith(name))
