"""Pages in a headless browser: figures are drawn and answer, both themes, paper and phone, and nothing goes wrong."""

import base64
import shutil
import time

import jax
import numpy as np
import pytest
from run_folders import EQUATIONS, a_fit, write_run

import girsanov as gv
from girsanov.page.run import write_run_page
from girsanov.paper.page import write_page
from girsanov.paper.tables import Comparison, make_cell

pytest.importorskip("plotly", reason="the extra report is not installed")
pytest.importorskip("latex2mathml", reason="the extra report is not installed")
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

PATIENCE = 120.0  # seconds for a page to be drawn, on a machine that has much else to do
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="there is no chromium with chromedriver; .ci/run installs them"
    ),
]


class Browser:
    """One session of a headless browser."""

    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.driver.set_page_load_timeout(PATIENCE)
        self.driver.set_script_timeout(PATIENCE)

    def cdp(self, name: str, **settings):
        return self.driver.execute_cdp_cmd(name, settings)

    def run(self, script: str, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, *arguments):
        """Wait until a script returns something true, and return it."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = self.run(script, *arguments)
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}")

    def size(self, width: int, mobile: bool = False) -> None:
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=mobile)

    def prefer(self, theme: str) -> None:
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def open(self, path, charts: bool = True) -> None:
        self.size(1200)
        self.prefer("light")
        self.driver.get(path.resolve().as_uri())
        self.wait("return document.readyState === 'complete'")
        if charts:
            assert self.wait("return document.documentElement.dataset.ready") == "yes"

    def sideways(self) -> int:
        """By how many pixels the page is wider than the screen."""
        return self.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.fixture(scope="module")
def browser():
    session = Browser()
    yield session
    session.driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of two runs: one state of equations that was learnt, and two states with dates that were inferred."""
    folder = tmp_path_factory.mktemp("pages")
    write_run(folder / "one", "learn", a_fit(), {"dt": 0.25, "equations": EQUATIONS})
    names = {"state_names": ["voltage", "recovery"], "output_names": ["first", "second"]}
    neuron = gv.Model(gv.FitzHughNagumo(), [0.02, 0.01], gv.GaussianState([0.0, 0.0], 0.1), **names)
    series = gv.simulate(neuron, np.arange(1, 11) * 1.0, key=jax.random.key(1), dt=0.1, start=0.0).series
    dates = np.datetime64("2023-05-01") + np.arange(1, 11)
    post = gv.infer(neuron, gv.TimeSeries(dates, series.values, unit="D"), dt=0.5, progress=False)
    write_run(folder / "two", "infer", post, {"dt": 0.5})
    return {name: write_run_page(folder / name, diagnose=name == "one") for name in ("one", "two")}


@pytest.fixture(params=["one", "two"])
def opened(request, browser, pages):
    browser.driver.get_log("browser")
    browser.open(pages[request.param])
    return browser


def test_figures_are_drawn_and_nothing_is_wrong(opened):
    count = opened.run("return document.querySelectorAll('.chart').length")
    each = opened.run("return [...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('.trace').length)")
    assert count >= 5 and len(each) == count and min(each) >= 1
    points = opened.run(
        "return [...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('.points path').length)"
    )
    n = opened.run("return JSON.parse(document.querySelector('.chart + script').textContent).data"
                   ".find(t => t.name === 'observations').x.length")  # fmt: skip
    assert points[0] % n == 0 and points[0] >= n
    wide = opened.run(
        "return [...document.querySelectorAll('.chart')].map(c => c.querySelector('.main-svg').clientWidth)"
    )
    assert min(wide) > 250
    assert opened.run("return document.querySelectorAll('math').length") >= 2
    assert opened.run("return window.evil") is None
    assert not [entry for entry in opened.driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert (
        opened.run("return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length")
        == 0
    )


def test_a_point_says_its_value_and_a_drag_zooms(opened):
    point = opened.run(
        "const c = document.querySelector('.chart'); c.scrollIntoView({block: 'center'});"
        "const points = c.querySelectorAll('.points path');"
        "const b = points[points.length >> 1].getBoundingClientRect();"
        "return [b.x + b.width / 2, b.y + b.height / 2]"
    )

    def mouse(kind: str, x: float, y: float, **more) -> None:
        opened.cdp("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    mouse("mouseMoved", point[0] - 30, point[1])
    mouse("mouseMoved", *point)
    label = opened.wait("const t = document.querySelector('.chart .hovertext'); return t && t.textContent")
    assert any(character.isdigit() for character in label)
    before = opened.run("return document.querySelector('.chart').layout.xaxis.range")
    box = opened.run("const b = document.querySelector('.chart .nsewdrag').getBoundingClientRect();"
                     "return [b.x, b.y, b.width, b.height]")  # fmt: skip
    places = [(box[0] + share * box[2], box[1] + 0.5 * box[3]) for share in (0.3, 0.5, 0.7)]
    mouse("mousePressed", *places[0], button="left", clickCount=1)
    for place in places[1:]:
        mouse("mouseMoved", *place, button="left", buttons=1)
    mouse("mouseReleased", *places[-1], button="left", clickCount=1)
    after = opened.wait(
        "const r = document.querySelector('.chart').layout.xaxis.range; return String(r) !== arguments[0] && r",
        ",".join(str(v) for v in before),
    )
    assert after[0] > before[0] and after[1] < before[1]


def test_both_themes_by_the_button_and_by_the_system(opened):
    def colours() -> tuple:
        return tuple(opened.run(
            "return [getComputedStyle(document.body).backgroundColor,"
            " document.querySelector('.chart .ytick text').style.fill,"
            " document.documentElement.dataset.theme]"
        ))  # fmt: skip

    def strokes() -> set:
        return set(
            opened.run("return [...document.querySelectorAll('.chart .js-line')].map(line => line.style.stroke)")
        )

    light = colours()
    assert "rgb(0, 114, 178)" in strokes()  # the blue of the light theme
    opened.run("document.getElementById('theme').click()")
    opened.wait("return document.querySelector('.chart .ytick text').style.fill !== arguments[0]", light[1])
    dark = colours()
    assert (light[2], dark[2]) == ("light", "dark") and light[0] != dark[0]
    assert "rgb(86, 180, 233)" in strokes() and "rgb(0, 114, 178)" not in strokes()
    opened.run("document.getElementById('theme').click()")
    opened.wait("return document.querySelector('.chart .ytick text').style.fill === arguments[0]", light[1])
    assert colours() == light
    opened.driver.refresh()
    opened.prefer("dark")
    opened.wait("return document.documentElement.dataset.ready === 'yes'")
    opened.wait("return document.querySelector('.chart .ytick text').style.fill === arguments[0]", dark[1])
    assert colours() == dark


@pytest.mark.parametrize(("width", "mobile"), [(1200, False), (390, True)])
def test_no_page_scrolls_sideways(opened, width, mobile):
    opened.size(width, mobile)
    opened.wait("return document.querySelector('.chart .main-svg').clientWidth <= arguments[0]", width)
    assert opened.sideways() <= 0


def test_it_prints_in_light_colours_within_the_paper(opened):
    opened.run("document.getElementById('theme').click()")  # dark on the screen
    opened.run(
        "window.seen = []; addEventListener('beforeprint', () => setTimeout(() => 0)); "
        "new MutationObserver(() => seen.push(document.documentElement.dataset.theme))"
        ".observe(document.documentElement, {attributes: true, attributeFilter: ['data-theme']});"
    )
    printed = opened.cdp("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
    pdf = base64.b64decode(printed["data"])
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") >= 2
    assert b"/MediaBox [0 0 594" in pdf or b"/MediaBox [0 0 595" in pdf  # A4: nothing made Chromium choose another size
    opened.wait("return window.seen.length >= 2")
    assert opened.run("return window.seen.slice(0, 2)") == ["light", "dark"]


@pytest.mark.parametrize(("width", "mobile"), [(1200, False), (390, True)])
def test_the_page_of_the_paper_shares_the_parts_and_does_not_scroll_sideways(browser, tmp_path, width, mobile):
    cell = make_cell([{"nlpd": 1.2345}, {"nlpd": 1.5}], "nlpd", (1.25, 0.1))
    columns = [f"process {i}, Δt = 0.005" for i in range(12)]
    rows = {name: dict.fromkeys(columns, cell) for name in ("CVI-DP", "VDP <b>", "GP")}
    table = Comparison("table1", "Table 1: NLPD", rows, ("VDP, Δt: a note",))
    page = write_page(tmp_path, [table], [], ["Made from data."])
    browser.open(page, charts=False)
    browser.size(width, mobile)
    assert browser.run("return innerWidth") == width
    assert browser.sideways() <= 0
    assert browser.run("return document.querySelectorAll('td').length") == 3 * 13
    reach = browser.run("const s = document.querySelector('.scroll'); return [s.scrollWidth, s.clientWidth]")
    assert reach[0] >= reach[1]  # the table scrolls in its own box where it is wider
    assert browser.run("return document.querySelectorAll('main b').length") == 0
