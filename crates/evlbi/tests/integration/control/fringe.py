"""Looks for fringes at the end of recordings that still grow, on the page of their agent, and prints what was seen."""

import json
import pathlib
import re
import sys

from playwright.sync_api import sync_playwright

from browser import everywhere, opened, seen, until

URL, FOLDER = sys.argv[1:3]
TOKEN = pathlib.Path(FOLDER, "tokens", "operate").read_text().strip()


def look(page):
    """Has the end of the recordings correlated; what is found, and where."""
    page.evaluate("document.querySelector('#found tbody').replaceChildren()")
    page.click("#check-form button[type=submit]")
    until(page, "no answer", lambda: " s from " in page.text_content("#checked"))
    until(page, "nothing found", lambda: page.locator("#found tbody tr").count() == 1)
    cells = page.locator("#found tbody td").all_inner_texts()
    return {"when": page.text_content("#checked"), "found": cells}


def lose_answers(page):
    """Each request of a check is heard once without an answer: the start, the look and the result."""
    lost = set()

    def lose(route):
        request = route.request
        kind = (request.method, request.url.rsplit("/", 1)[-1].split("-")[0])
        if kind in lost or kind == ("GET", "flows"):
            return route.fallback()
        route.fetch()
        lost.add(kind)
        route.abort()

    page.route(re.compile(r"/api/v1/flows(/fringe-.*)?$"), lose)
    return lost


with sync_playwright() as play:
    page = opened(play, URL, f"/#token={TOKEN}")
    # Neither the address bar nor the history of the browser keeps it.
    until(page, "the token stays in the address", lambda: page.url == f"{URL}/")
    until(page, "no recordings are offered", lambda: page.locator("#recordings input").count() == 2)
    page.click("#check-form button[type=submit]")
    until(page, "one recording is enough", lambda: "at least two recordings" in page.text_content("#checked"))
    for box in page.locator("#recordings input").all():
        box.check()
    page.fill("#last", "1s")
    page.fill("#freq", "4.98G")
    lost = lose_answers(page)
    rounds = [look(page)]
    page.unroute_all()
    assert ("POST", "flows") in lost and ("GET", "result") in lost, lost
    seen["errors"] = [error for error in seen["errors"] if "ERR_FAILED" not in error]
    # What was recorded since.
    until(page, "the end does not move on", lambda: rounds.append(look(page)) or rounds[-1]["when"] != rounds[0]["when"])
    seen["rounds"] = rounds
    seen["pictures"] = page.locator("#profiles figure").all_inner_texts()
    everywhere(page)
    page.context.browser.close()

print(json.dumps(seen))
