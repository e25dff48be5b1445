"""Drives the page of a session in Chromium as an operator would, and prints what was seen as one line of JSON."""

import json
import pathlib
import re
import sys
import time

from playwright.sync_api import sync_playwright

from browser import accessible, everywhere, opened, row, seen, select, until

URL, FOLDER, SKY, TO = sys.argv[1:5]
TOKEN = pathlib.Path(FOLDER, "tokens", "operate").read_text().strip()


def start(page, name, command, host, fields, flags=()):
    """Starts a flow by the form."""
    page.select_option("#command", command)
    page.fill("#name", name)
    page.evaluate("document.querySelector('#fields details').open = true")
    page.fill("#f-host", host)
    for field, value in fields.items():
        page.fill(f"#f-{field}", value)
    for flag in flags:
        page.check(f"#f-{flag}")
    page.click("#start-form button[type=submit]")
    until(page, f"{name} is not started", lambda: name in page.text_content("#started"))
    said = page.text_content("#started")
    assert re.search("is (starting|running)", said), said
    until(page, f"{name} does not run", lambda: "running" in row(page, name).inner_text())


def stop(page, name):
    select(page, name)
    page.click("#stop")
    page.click("#sure button[value=yes]")
    until(page, f"{name} does not stop", lambda: "stopped" in row(page, name).inner_text())


def weights(page):
    """Weight and what theory says of it, of each baseline."""
    found = {}
    titles = page.locator("#fringes h3").all_inner_texts()
    lists = page.locator("#fringes dl").all_inner_texts()
    for title, text in zip(titles, lists):
        numbers = re.search(r"Weight\s+([\d.]+), ([\d.]+) expected from the losses", text)
        if numbers:
            found[title.removeprefix("Baseline ")] = (float(numbers[1]), float(numbers[2]))
    return found


with sync_playwright() as play:
    page = opened(play, URL)
    accessible(page, "login")
    page.fill("#token", "wrong")
    page.keyboard.press("Enter")
    until(page, "a wrong token is not refused", lambda: "unknown token" in page.text_content("#login-error"))
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("#start-form #f-source")

    # What the session has, but for jb, which is started by hand.
    until(page, "the session does not wait", lambda: "Waiting" in page.inner_text("#session-line"))
    until(page, "nothing is to come", lambda: page.locator("#to-come tbody tr").count() == 3)
    accessible(page, "held")
    begun = time.monotonic()
    page.click("#begin")
    until(page, "the session does not begin", lambda: "running" in row(page, "correlator").inner_text())
    until(page, "ef does not send", lambda: re.search("[kM]bit/s", row(page, "ef").inner_text()))
    start(page, "jb", "send", "jive", {"source": f"sky:{SKY}/Jb", "to": f"udp://{TO}", "repeat": "6000"})
    # Its data is so much older than the others', of which only the newest is kept until it comes.
    later = time.monotonic() - begun

    select(page, "correlator")
    until(page, "no rate is shown", lambda: re.search(r"[1-9][\d.]* [kM]bit/s received", page.text_content("#summary")))
    until(page, "no fringes", lambda: len(weights(page)) == 3, later)
    until(page, "full weights", lambda: all(weight > 0.99 for weight, _ in weights(page).values()))

    select(page, "jb")
    page.fill("#shed", "every:5")
    page.click("#change button")
    until(page, "the change is not taken", lambda: "jb changed" in page.text_content("#done"))
    until(page, "no loss is seen", lambda: re.search(r"[1-9]\d?\.\d+ %", row(page, "jb").inner_text()))
    select(page, "correlator")
    expected = {"Ef-Jb": 0.8, "Ef-On": 1.0, "Jb-On": 0.8}
    # What is lost beside that when this host stands still is made up for later.
    near = lambda found: found.keys() == expected.keys() and all(abs(value - expected[name]) < 0.02 for name in found for value in found[name])
    until(page, "the weights do not follow", lambda: near(weights(page)))
    everywhere(page)

    stop(page, "jb")
    page.click("#end")
    page.click("#sure button[value=yes]")
    until(page, "the session does not end", lambda: "Finished" in page.inner_text("#session-line"))
    until(page, "the correlator does not end", lambda: "stopped" in row(page, "correlator").inner_text())
    page.context.browser.close()

print(json.dumps(seen))
