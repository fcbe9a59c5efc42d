"""Pages as people use them: opened from disk in Chromium, with mouse, keys, a phone's screen and dark mode."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cswf_core.report import compare, single
from tests.report.conftest import full_scores, make_run

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver import ActionChains  # noqa: E402
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver on PATH (Debian: chromium-driver)"
    ),
]
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
NASTY = "</script><script>document.title='broken'</script><img src=x onerror=window.ran=1><b id=injected>"
TOP = "return document.querySelector(arguments[0]).getBoundingClientRect()"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with run.html, comparison.html and nasty.html."""
    folder = tmp_path_factory.mktemp("pages")
    cifar = {"data": {"use": "cifar10"}}
    facts = {"command": "cswf run first", "citations": ["@misc{one}"], "licence": "Free to use."}
    first = {"recipe": {"name": "first", **cifar}, "facts": facts, "notes": ("Few samples.",)}
    second = {"recipe": {"name": "second", **cifar}, "seed": 1, "steps": 60}
    one = make_run(folder / "one", scores=full_scores(), **first)
    other = make_run(folder / "other", scores=full_scores(57.9), **second)
    nasty = make_run(folder / "nasty", recipe={"name": NASTY, "description": NASTY})
    (folder / "run.html").write_text(single(one), encoding="utf-8")
    (folder / "comparison.html").write_text(compare([one, other]), encoding="utf-8")
    (folder / "nasty.html").write_text(compare([nasty, one]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER)) as driver:
        yield driver


@pytest.fixture
def show(browser, pages):
    """Open a page on a screen of a size; the page must have had nothing to complain about in the end."""

    def opened(name: str, *, width: int = 1200, height: int = 900, mobile: bool = False, scheme: str = "light"):
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get((pages / name).as_uri())
        return browser

    yield opened
    assert browser.get_log("browser") == []


def eventually(claim, seconds: float = 5.0) -> bool:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if claim():
            return True
        time.sleep(0.05)
    return bool(claim())


def steps_of(page) -> tuple[float, float]:
    svg = page.find_element(By.CSS_SELECTOR, ".chart svg")
    return float(svg.get_attribute("data-from")), float(svg.get_attribute("data-to"))


def first_chart(page):
    svg = page.find_element(By.CSS_SELECTOR, ".chart svg")
    page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", svg)
    return svg


def drag(page, svg, start: int, end: int) -> None:
    chain = ActionChains(page, duration=30)
    chain.move_to_element_with_offset(svg, start, 0).click_and_hold()
    chain.move_by_offset((end - start) // 2, 0).move_by_offset(end - start - (end - start) // 2, 0)
    chain.release().perform()


@pytest.mark.parametrize("name", ["run.html", "comparison.html", "nasty.html"])
def test_all_pictures_are_there_and_every_chart_is_drawn(show, name):
    page = show(name)
    widths = page.execute_script("return [...document.images].map((i) => i.complete && i.naturalWidth)")
    assert len(widths) > 6
    assert all(widths)
    assert len(page.find_elements(By.CSS_SELECTOR, ".chart")) == 3
    assert all(len(p.get_attribute("d")) > 40 for p in page.find_elements(By.CSS_SELECTOR, ".curve"))
    for link in page.find_elements(By.CSS_SELECTOR, "nav a, a.anchor"):
        target = link.get_attribute("href").partition("#")[2]
        page.execute_script("arguments[0].click()", link)
        assert -1 <= page.execute_script(f"{TOP}.top", f"#{target}") <= 900, target


def test_a_name_full_of_html_stays_a_name(show):
    page = show("nasty.html")
    assert page.title != "broken"
    assert not page.find_elements(By.ID, "injected")
    assert page.execute_script("return window.ran") is None
    assert NASTY in page.find_element(By.CSS_SELECTOR, ".legend button").text


def test_dragging_zooms_and_both_ways_back_restore_the_range(show):
    page = show("run.html")
    svg = first_chart(page)
    assert steps_of(page) == (1, 40)
    labels = [text.text for text in svg.find_elements(By.TAG_NAME, "text")]
    drag(page, svg, -200, 100)
    low, high = steps_of(page)
    assert 1 < low < high < 40
    assert [text.text for text in svg.find_elements(By.TAG_NAME, "text")] != labels
    assert len({svg.get_attribute("data-to") for svg in page.find_elements(By.CSS_SELECTOR, ".chart svg")}) == 1
    page.find_element(By.CSS_SELECTOR, ".chart .reset").click()
    assert steps_of(page) == (1, 40)
    drag(page, svg, -100, 100)
    assert steps_of(page) != (1, 40)
    ActionChains(page).double_click(svg).perform()
    assert steps_of(page) == (1, 40)


def test_the_wheel_zooms_a_chart_that_was_clicked_and_scrolls_the_page_otherwise(show):
    page = show("run.html")
    ActionChains(page).scroll_from_origin(ScrollOrigin.from_element(first_chart(page)), 0, -120).perform()
    assert steps_of(page) == (1, 40)
    svg = first_chart(page)
    ActionChains(page).click(svg).perform()
    ActionChains(page).scroll_from_origin(ScrollOrigin.from_element(svg), 0, -300).perform()
    assert eventually(lambda: steps_of(page) != (1, 40))
    svg.send_keys("0")
    assert steps_of(page) == (1, 40)
    svg.send_keys("+")
    assert steps_of(page) != (1, 40)


def test_two_fingers_zoom_a_chart(show):
    page = show("run.html", width=390, height=844, mobile=True)
    svg = first_chart(page)
    box = svg.rect
    top = page.execute_script("return arguments[0].getBoundingClientRect().top", svg) + 100

    def touch(kind: str, *xs: float) -> None:
        points = [{"x": box["x"] + x, "y": top, "id": i} for i, x in enumerate(xs)]
        page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 150, 220)
    touch("touchMove", 130, 240)
    touch("touchMove", 90, 300)
    touch("touchEnd")
    low, high = steps_of(page)
    assert 1 < low < high < 40


def test_a_chart_says_what_is_under_the_mouse_and_its_scale_can_be_switched(show):
    page = show("run.html")
    ActionChains(page).move_to_element_with_offset(first_chart(page), 60, 20).perform()
    assert re.fullmatch(r"step \d+, stage 2\n[\d.]+", page.find_element(By.CSS_SELECTOR, ".tip").text)
    chart = page.find_element(By.CSS_SELECTOR, ".chart")
    linear, log = chart.find_elements(By.CSS_SELECTOR, ".switch button")
    assert (linear.get_attribute("aria-pressed"), log.get_attribute("aria-pressed")) == ("false", "true")
    drawn = []
    for button in (log, linear, log):
        button.click()
        drawn.append(chart.find_element(By.CSS_SELECTOR, ".curve").get_attribute("d"))
    assert drawn[0] == drawn[2] != drawn[1]


def test_the_legend_hides_and_shows_a_run(show):
    page = show("comparison.html")
    button = page.find_element(By.CSS_SELECTOR, ".legend button")
    for count, pressed in ((2, "true"), (1, "false"), (2, "true")):
        assert len(page.find_elements(By.CSS_SELECTOR, ".chart:first-of-type .curve")) == count
        assert button.get_attribute("aria-pressed") == pressed
        button.click()


CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["run.html", "comparison.html"])
def test_light_and_dark_are_two_looks_and_all_text_can_be_read_in_both(show, name):
    grounds = []
    for scheme in ("light", "dark"):
        page = show(name, scheme=scheme)
        page.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        ground, poor = page.execute_script(CONTRAST)
        assert poor == []
        grounds.append(sum(map(int, re.findall(r"\d+", ground)[:3])))
    assert grounds[0] > 700
    assert grounds[1] < 100


@pytest.mark.parametrize(
    ("name", "beginning"),
    [("recipe", "name: first\n"), ("bibtex", "@misc{one}"), ("command", "cswf run first")],
)
def test_recipe_command_and_bibtex_can_be_copied(show, name, beginning):
    page = show("run.html")
    button = page.find_element(By.CSS_SELECTOR, f"[data-copies={name}-text]")
    button.click()
    assert eventually(lambda: button.text in ("Copied", "Selected"))
    assert page.find_element(By.ID, f"{name}-text").text.startswith(beginning)


def test_without_scripts_pictures_and_tables_are_visible(show, browser):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page = show("run.html")
        assert page.find_element(By.CSS_SELECTOR, "#flow img").size["height"] > 10
        assert page.find_element(By.CSS_SELECTOR, ".scores").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_the_result_is_in_sight_above_the_samples_before_anybody_scrolls(show):
    page = show("run.html", width=1280)
    result, samples = (page.execute_script(f"{TOP}.toJSON()", name) for name in ("#result", "#samples"))
    assert 0 < result["top"] < result["bottom"] < min(900, samples["top"])
    assert "36.90 ± 0.21" in page.find_element(By.ID, "result").text


@pytest.mark.parametrize("name", ["run.html", "comparison.html"])
@pytest.mark.parametrize("width", [390, 1280])
def test_what_a_score_says_is_shown_on_hover_and_at_a_touch(show, name, width):
    page = show(name, width=width, mobile=width == 390)
    summary = page.find_element(By.CSS_SELECTOR, "#metrics .why summary")
    sentence = page.find_element(By.CSS_SELECTOR, "#metrics .why p")
    assert summary.get_attribute("title") == "Distance of features; 0 is equal."
    assert not sentence.is_displayed()
    page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", summary)
    summary.click()
    assert sentence.is_displayed()
    assert page.execute_script("return document.documentElement.scrollWidth") <= width


def test_what_the_page_lets_save_is_the_file(show, pages):
    page = show("run.html")
    link = page.find_element(By.CSS_SELECTOR, '[download="metrics.json"]')
    content = page.execute_script("return atob(arguments[0].href.split(',')[1])", link)
    assert content == (pages / "one/metrics.json").read_text()
    samples = page.find_element(By.CSS_SELECTOR, '[download="samples.npz"]')
    assert samples.get_attribute("href").endswith("samples.npz")


def test_on_a_phone_every_number_of_a_comparison_stands_beside_its_run_without_scrolling_sideways(show):
    page = show("comparison.html", width=390, height=844, mobile=True)
    cells = page.find_elements(By.CSS_SELECTOR, ".stacked td")
    assert len(cells) > 10
    sides = "return [...document.querySelectorAll('.stacked td')].filter((d) => d.getClientRects().length).map("
    rights = page.execute_script(sides + "(d) => d.getBoundingClientRect().right)")
    assert max(rights) <= 390
    label = "return getComputedStyle(document.querySelector('#metrics .stacked td'), '::before').content"
    assert page.execute_script(label) == '"first"'
