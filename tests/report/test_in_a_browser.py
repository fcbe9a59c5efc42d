"""Pages as people use them: opened from disk in Chromium, with mouse, keys, a phone's screen and dark mode."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cswf_core.report import compare, single
from tests.report.conftest import make_run, score_pair

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver import ActionChains, Keys  # noqa: E402
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


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with run.html, comparison.html and nasty.html."""
    folder = tmp_path_factory.mktemp("pages")
    scores = score_pair("fid", 57.9, 61.0, protocol="By the book.")
    cifar = {"data": {"use": "cifar10"}}
    one = make_run(folder / "one", scores=scores, recipe={"name": "first", **cifar}, notes=("Few samples.",))
    other = make_run(folder / "other", scores=scores, recipe={"name": "second", **cifar}, seed=1, steps=60)
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


def shown_steps(page) -> list[str]:
    return [frame.get_attribute("data-step") for frame in page.find_elements(By.CSS_SELECTOR, ".frame.now")]


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
    assert len(widths) > 8
    assert all(widths)
    assert len(page.find_elements(By.CSS_SELECTOR, ".chart")) == 3
    assert all(len(p.get_attribute("d")) > 40 for p in page.find_elements(By.CSS_SELECTOR, ".curve"))


def test_a_name_full_of_html_stays_a_name(show):
    page = show("nasty.html")
    assert page.title != "broken"
    assert not page.find_elements(By.ID, "injected")
    assert page.execute_script("return window.ran") is None
    assert NASTY in page.find_element(By.CSS_SELECTOR, ".legend button").text


def test_the_slider_shows_another_frame_by_mouse_and_by_keys(show):
    page = show("run.html")
    slider, output = (page.find_element(By.CSS_SELECTOR, f".controls {name}") for name in ("input", "output"))
    assert shown_steps(page) == ["40"]
    page.execute_script(
        "arguments[0].value = 2; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))", slider
    )
    assert (shown_steps(page), output.text) == (["4"], "step 4")
    for key, step in ((Keys.ARROW_LEFT, "1"), (Keys.HOME, "0"), (Keys.ARROW_RIGHT, "1")):
        slider.send_keys(key)
        assert shown_steps(page) == [step]
    assert slider.get_attribute("aria-valuetext") == "step 1"


def test_play_runs_from_the_start_to_the_end_and_can_be_paused(show):
    page = show("run.html")
    button = page.find_element(By.CSS_SELECTOR, ".play")
    button.click()
    assert button.text == "Pause"
    assert eventually(lambda: shown_steps(page) not in (["40"], ["0"]))
    button.click()
    assert button.text == "Play"
    paused = shown_steps(page)
    time.sleep(0.4)
    assert shown_steps(page) == paused
    button.click()
    assert eventually(lambda: shown_steps(page) == ["40"] and button.text == "Play")


def test_one_slider_moves_the_frames_of_all_runs(show):
    page = show("comparison.html")
    assert shown_steps(page) == ["40", "60"]
    slider = page.find_element(By.CSS_SELECTOR, ".controls input")
    slider.send_keys(Keys.ARROW_LEFT)
    assert shown_steps(page) == ["40", "20"]
    slider.send_keys(Keys.HOME)
    assert shown_steps(page) == ["0", "0"]


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
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    page = show("run.html")
    svg = first_chart(page)
    ActionChains(page).scroll_from_origin(ScrollOrigin.from_element(svg), 0, -120).perform()
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


def test_a_chart_says_what_is_under_the_mouse(show):
    page = show("run.html")
    svg = first_chart(page)
    ActionChains(page).move_to_element_with_offset(svg, 60, 20).perform()
    tip = page.find_element(By.CSS_SELECTOR, ".tip")
    assert re.fullmatch(r"step \d+, stage 2\n[\d.]+", tip.text)


def test_the_scale_can_be_switched(show):
    page = show("run.html")
    chart = page.find_element(By.CSS_SELECTOR, ".chart")
    before = chart.find_element(By.CSS_SELECTOR, ".curve").get_attribute("d")
    linear, log = chart.find_elements(By.CSS_SELECTOR, ".switch button")
    assert (linear.get_attribute("aria-pressed"), log.get_attribute("aria-pressed")) == ("false", "true")
    linear.click()
    assert chart.find_element(By.CSS_SELECTOR, ".curve").get_attribute("d") != before
    log.click()
    assert chart.find_element(By.CSS_SELECTOR, ".curve").get_attribute("d") == before


def test_the_legend_hides_and_shows_a_run(show):
    page = show("comparison.html")

    def curves() -> int:
        return len(page.find_elements(By.CSS_SELECTOR, ".chart:first-of-type .curve"))

    button = page.find_element(By.CSS_SELECTOR, ".legend button")
    assert curves() == 2
    button.click()
    assert (curves(), button.get_attribute("aria-pressed")) == (1, "false")
    button.click()
    assert (curves(), button.get_attribute("aria-pressed")) == (2, "true")


@pytest.mark.parametrize("name", ["run.html", "comparison.html"])
def test_a_phone_scrolls_in_one_direction_only(show, name):
    page = show(name, width=390, height=844, mobile=True)
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390


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


def test_the_recipe_can_be_copied(show):
    page = show("run.html")
    button = page.find_element(By.CSS_SELECTOR, ".copy")
    button.click()
    assert eventually(lambda: button.text in ("Copied", "Selected"))
    assert page.find_element(By.ID, "recipe-text").text.startswith("name: first\n")


def test_without_scripts_pictures_and_tables_are_visible(show, browser):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page = show("run.html")
        frames = page.find_elements(By.CSS_SELECTOR, ".frame img")
        assert len(frames) == 6
        assert all(frame.size["height"] > 10 for frame in frames)
        assert not page.find_element(By.CSS_SELECTOR, ".controls").is_displayed()
        assert page.find_element(By.CSS_SELECTOR, ".scores").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
