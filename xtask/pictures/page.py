"""A picture of the web UI of a running demonstration: page.py PICTURE WIDTH HEIGHT SCHEME, with what the demonstration says on standard input."""

import os
import re
import sys

from playwright.sync_api import sync_playwright

# Milliseconds: curves of a minute fill their plots.
CURVES = 70_000

picture, width, height, scheme = sys.argv[1:]
url = next(found[0] for line in sys.stdin if (found := re.search(r"https://\S+", line)))
with sync_playwright() as play:
    browser = play.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
    context = browser.new_context(
        ignore_https_errors=True, viewport={"width": int(width), "height": int(height)}, color_scheme=scheme
    )
    page = context.new_page()
    page.goto(url)
    page.locator("#flows button", has_text="correlator").click()
    page.wait_for_timeout(CURVES)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=picture)
