"""Looks for an hour of loss in the month of a flow, on the page of its agent, and prints what was seen."""

import csv
import json
import pathlib
import re
import sys

from playwright.sync_api import sync_playwright

from browser import everywhere, opened, seen, select, until

URL, FOLDER = sys.argv[1:3]
TOKEN = pathlib.Path(FOLDER, "tokens", "operate").read_text().strip()
WINDOWS = {"month": "2592000", "week": "604800", "day": "86400", "six hours": "21600", "hour": "3600"}


def counts(text):
    """Lost and expected, as the words below a chart say."""
    lost, expected = re.search(r"([\d,]+) of ([\d,]+) datagrams", text).groups()
    return {"lost": int(lost.replace(",", "")), "expected": int(expected.replace(",", ""))}


def shown(page):
    """Each chart is replaced once a second: what is there at one time."""
    return page.evaluate("""() => {
        const figures = [...document.querySelectorAll("#charts figure")];
        const of = (title) => figures.find((one) => one.querySelector("b").textContent === title);
        const lines = of("Throughput").querySelectorAll("path");
        const loss = of("Loss");
        let worst = null;
        if (loss) {
            const svg = loss.querySelector("svg");
            const [from, to] = [svg.dataset.from, svg.dataset.to].map(Number);
            // The middle of where the first line, that of the network, is highest.
            const points = [...svg.querySelector("path").getAttribute("d").matchAll(/[ML]([\\d.]+) ([\\d.]+)/g)].map((m) => [Number(m[1]), Number(m[2])]);
            const top = Math.min(...points.map((p) => p[1]));
            const places = points.filter((p) => p[1] < top + 3).map((p) => p[0]);
            const middle = (places[0] + places.at(-1)) / 2;
            svg.scrollIntoView({ block: "center" });
            const box = svg.getBoundingClientRect();
            worst = { x: box.left + middle / svg.viewBox.baseVal.width * box.width, y: box.top + box.height / 2, from, to };
        }
        return { words: figures.map((one) => one.textContent).join(" "), pieces: lines[0].getAttribute("d").split("M").length - 1, worst };
    }""")


def click(page):
    """Clicks on where the loss is."""
    worst = shown(page)["worst"]
    page.mouse.click(worst["x"], worst["y"])


with sync_playwright() as play:
    page = opened(play, URL, f"/#token={TOKEN}")
    page.wait_for_selector("#flows tbody button")
    select(page, "ef")
    page.select_option("#window", WINDOWS["month"])
    until(page, "no month", lambda: "12,000 of" in shown(page)["words"])
    seen["month"] = shown(page)
    everywhere(page)
    # What is no click shows nothing else.
    worst = shown(page)["worst"]
    page.mouse.click(worst["x"], worst["y"], button="right")
    page.mouse.move(worst["x"] - 50, worst["y"])
    page.mouse.down()
    page.mouse.move(worst["x"], worst["y"])
    page.mouse.up()
    assert page.input_value("#window") == WINDOWS["month"]
    for name in ["week", "day", "six hours", "hour"]:
        # A host that stands still makes a click too long to be one.
        until(page, f"no {name}", lambda: page.input_value("#window") == WINDOWS[name] or click(page))
        until(page, f"the {name} is not shown", lambda: (now := shown(page)["worst"]) and now["to"] - now["from"] < 1.05 * int(WINDOWS[name]))
    found = shown(page)
    seen["hour"] = found | counts(found["words"])
    with page.expect_download() as download:
        page.click("#csv")
    rows = list(csv.DictReader(pathlib.Path(download.value.path()).read_text().splitlines()))
    seen["saved"] = {name: sum(int(row[name]) for row in rows) for name in ["lost", "expected"]}
    page.click("#earlier")
    until(page, "not earlier", lambda: counts(shown(page)["words"])["lost"] < 8000)
    seen["earlier"] = shown(page)["worst"] | counts(shown(page)["words"])
    page.focus("#now")
    page.keyboard.press("Enter")
    seen["now"] = page.text_content("#period")
    seen["focus"] = page.evaluate("document.activeElement.id")
    page.context.browser.close()

print(json.dumps(seen))
