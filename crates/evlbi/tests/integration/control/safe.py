"""Looks at a flow under SafeUDP on the page of its agent, and prints what was seen."""

import json
import pathlib
import sys

from playwright.sync_api import sync_playwright

from browser import accessible, opened, seen, select, until

URL, FOLDER = sys.argv[1:3]
TOKEN = pathlib.Path(FOLDER, "tokens", "operate").read_text().strip()

with sync_playwright() as play:
    page = opened(play, URL)
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    until(page, "no flow is shown", lambda: page.locator("#flows tbody tr").count() == 2)
    select(page, "from")
    until(page, "no charts of SafeUDP", lambda: "Round-trip time of SafeUDP" in page.inner_text("#charts"))
    seen["charts"] = page.locator("#charts figure b").all_inner_texts()
    seen["notices"] = page.locator("#notices li").all_inner_texts()
    accessible(page, "safe")
    page.context.browser.close()

print(json.dumps(seen))
