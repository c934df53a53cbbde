"""Reports as a browser shows them: Chromium of the system's own, driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import report_cases as cases
from test_html_report import hostile, stored

pytestmark = pytest.mark.slow

MAKE = {"full": cases.full, "index": cases.index, "stored": stored, "hostile": hostile}
WIDTHS = (400, 1600)
SCHEMES = ("light", "dark")

# Every text with the contrast of its colour on its ground, and what it must be by WCAG 2 AA.
CONTRASTS = """() => {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const light = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((c) => {
      c /= 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const found = parse(getComputedStyle(e).backgroundColor);
      if (found.a === 1) return found;
      if (found.a > 0) throw new Error("a ground that shows through: " + e.className);
    }
    throw new Error("no ground");
  };
  const told = [];
  const judge = (element, style, said) => {
    const isSvg = element instanceof SVGElement;
    const [a, b] = [light(parse(isSvg ? style.fill : style.color)), light(ground(element))];
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    told.push({ said: said.trim().slice(0, 60), contrast, least: isLarge ? 3 : 4.5 });
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const isShown = element.checkVisibility() && !["SCRIPT", "STYLE", "title"].includes(element.tagName);
    if (walker.currentNode.data.trim() && isShown) judge(element, getComputedStyle(element), walker.currentNode.data);
  }
  for (const line of document.querySelectorAll(".l")) judge(line, getComputedStyle(line, "::before"), "line number");
  for (const input of document.querySelectorAll("input")) judge(input, getComputedStyle(input, "::placeholder"), "placeholder");
  return told;
}"""  # noqa: E501

# Of every drawing, texts that lie on each other or reach out of it.
CROWDED = """() => [...document.querySelectorAll("svg.plot")].flatMap((svg) => {
  const outer = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect()]);
  const name = svg.getAttribute("aria-label");
  const out = boxes
    .filter(([, b]) => b.left < outer.left - 1 || b.right > outer.right + 1 || b.bottom > outer.bottom + 1)
    .map(([said]) => `${name}: ${said} reaches out`);
  const on = boxes.flatMap(([said, a], i) =>
    boxes
      .slice(i + 1)
      .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
      .map(([other]) => `${name}: ${said} on ${other}`));
  return [...out, ...on];
})"""  # noqa: E501


TOO_NARROW = """[...document.querySelectorAll('.card')]
  .filter(card => card.scrollWidth > card.clientWidth).map(card => card.textContent)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: the extra browser")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
    if found is None:
        pytest.skip("needs Chromium on PATH: apt-get install chromium")
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=as_root)
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    for name, make in MAKE.items():
        make().write(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in MAKE}


@pytest.fixture
def show(browser: Any, files: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Opens a report from disk; nothing may go wrong in it, nor be asked for from elsewhere."""
    contexts, wrong = [], []

    def opened(name: str, width: int = 1600, scheme: str = "light") -> Any:
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        url = files[name].as_uri()
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda request: (
                request.url.split("#")[0] == url or wrong.append(f"request: {request.url}")
            ),
        )
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", MAKE)
def test_it_opens_and_fits_the_window(show, name, width):
    page = show(name, width)
    page.wait_for_load_state("networkidle")
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
    # What is wider than the window scrolls by itself.
    assert page.evaluate(
        f"""[...document.querySelectorAll('body *')].every(e => e.closest('.scroll, pre')
        || e.getBoundingClientRect().right <= {root}.clientWidth + 1)"""
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_cards_and_plots_are_seen(show, width):
    page = show("full", width)
    numbers = page.locator(".card .number strong")
    assert numbers.count() == 6
    assert all(numbers.nth(i).is_visible() for i in range(6))
    assert page.evaluate(TOO_NARROW) == []
    drawn = page.evaluate(
        """[...document.querySelectorAll('svg.plot')].map(svg => {
          const outer = svg.getBoundingClientRect();
          const marks = [...svg.querySelectorAll('circle, rect.tile, path')];
          return marks.length > 0 && outer.height > 100 && marks.every(mark => {
            const b = mark.getBoundingClientRect();
            return b.width > 0 && b.left >= outer.left - 1 && b.right <= outer.right + 1
              && b.top >= outer.top - 1 && b.bottom <= outer.bottom + 1;
          });
        })"""
    )
    assert drawn == [True] * 6


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["full", "index", "stored"])
def test_labels_of_plots_are_apart(show, name, width):
    assert show(name, width).evaluate(CROWDED) == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["full", "index", "stored"])
def test_contrast_is_that_of_wcag_aa(show, name, scheme):
    told = show(name, scheme=scheme).evaluate(CONTRASTS)
    assert len(told) > 50
    assert [t for t in told if t["contrast"] < t["least"]] == []


def column(page: Any, index: int) -> list[str]:
    return page.locator("#verdicts tbody tr:visible").evaluate_all(
        f"rows => rows.map(row => row.cells[{index}].textContent.trim())"
    )


def test_the_table_sorts_by_numbers_and_keeps_what_is_empty_at_the_end(show):
    page = show("index")
    head = page.locator("#verdicts th", has_text="time a call")
    before = column(page, 5)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    ascending = ["2.50 us", "5.00 us", "6.67 us", "10.0 us", "12.5 us", "20.0 us"]
    assert column(page, 5) == ascending + [""] * 4
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, 5) == ascending[::-1] + [""] * 4
    assert sorted(before) == sorted(column(page, 5))
    page.locator("#verdicts th button", has_text="submission").click()
    assert column(page, 1) == [f"kernel_{i}.py" for i in range(6)] + [
        f"other_{i}.py" for i in range(4)
    ]
    assert head.get_attribute("aria-sort") is None


def test_rows_are_filtered(show):
    page = show("index")
    page.get_by_label("rows that hold these words").fill("LEVEL1/2 kernel_3")
    assert column(page, 1) == ["kernel_3.py"]
    assert page.locator("#verdicts output").text_content() == "1 of 10"
    page.get_by_label("rows that hold these words").fill("")
    page.get_by_label("verdict", exact=True).select_option("TIMEOUT")
    assert column(page, 1) == ["other_1.py"]
    page.get_by_label("verdict", exact=True).select_option("")
    page.get_by_label("speed", exact=True).select_option("slower")
    assert column(page, 1) == ["kernel_4.py", "kernel_5.py"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_theme_follows_the_system_and_can_be_switched(show, scheme):
    page = show("full", scheme=scheme)
    ground = "getComputedStyle(document.body).backgroundColor"
    of = {"light": "rgb(246, 246, 243)", "dark": "rgb(19, 21, 24)"}
    other = {"light": "dark", "dark": "light"}[scheme]
    assert page.evaluate(ground) == of[scheme]
    page.get_by_role("button", name=other, exact=True).click()
    assert page.evaluate(ground) == of[other]
    page.get_by_role("button", name=scheme, exact=True).click()
    assert page.evaluate(ground) == of[scheme]


def test_it_prints_in_light_and_without_what_cannot_be_clicked(show):
    page = show("full", width=718, scheme="dark")  # of A4 within its margins
    page.emulate_media(media="print")
    assert page.evaluate(TOO_NARROW) == []
    assert not page.locator("nav").is_visible()
    assert not page.locator("#theme").is_visible()
    colour = page.evaluate("getComputedStyle(document.querySelector('h1')).color")
    assert colour == "rgb(29, 31, 34)"
    assert page.pdf(format="A4").startswith(b"%PDF")
