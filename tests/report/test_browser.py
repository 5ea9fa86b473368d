"""The page in a real browser: what is drawn, what answers to clicks and keys, what it asks for."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise

import numpy as np
import pytest

from rankgrad import report
from rankgrad.explanations import Explanation, Importance
from rankgrad.training._evaluations import EvaluatedLists

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to look with")

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOSTILE = "<b>loud</b> & \"quoted\"</script><img src=x onerror=document.title='broken'>"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


def explained(data, scores_of):
    """What is said of the first two items of list 3 of some data: feature "<i>x" decides."""
    at, features = 3, ("<i>x", "y")
    inside = slice(data.offsets[at], data.offsets[at + 1])
    order = np.argsort(-scores_of[inside], kind="stable")[:2]
    importance = Importance(
        "ndcg@5", 0.5, features, ("within lists",) * 2, np.zeros((2, 4), np.float32), 1, 0
    )
    return Explanation(
        importance=importance,
        lists=np.array([at]),
        qids=(str(data.qids[at]),),
        items=order[None],
        values=np.array([[[7.5, 1], [2.5, 1]]], np.float32),
        attributions=np.array([[[0.75, -0.25]]], np.float32),
        differences=np.array([[0.5]], np.float32),
        baselines=np.zeros((1, 1), np.float32),
        checksum=data.checksum(),
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory, run_folder, lists):
    """A report of three losses with two seeds, one with a name that is HTML, and a missing run."""
    place = tmp_path_factory.mktemp("written")
    data = lists(80, items=30)
    for loss, quality in (("approx_ndcg", 2.0), ("neural_ndcg@10", 1.4), (HOSTILE, 0.7)):
        for seed in (0, 1):
            folder = place / str(len(loss)) / f"seed{seed}"
            run_folder(folder, data, loss=loss, candidate=loss, seed=seed, quality=quality)
    run_folder(place / "hinge" / "seed0", data, loss="hinge", evaluate=False)
    first = place / str(len("approx_ndcg")) / "seed0"
    explained(data, EvaluatedLists.load(first).scores).save(first)
    report.write([place], place / "report.html")
    return place / "report.html"


def until(page, expression):
    """Wait for an expression to hold. (Playwright's own way to wait is not allowed by the page.)"""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{expression} did not come to hold")


def in_theme(page, scheme):
    """Have the system ask for light or dark, and the page follow."""
    page.emulate_media(color_scheme=scheme)
    until(page, f"document.documentElement.dataset.theme === '{scheme}'")


class Opened:
    """Pages in tabs of their own, with what they complained of and asked for."""

    def __init__(self, browser):
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.complaints, self.asked = [], []

    def __call__(self, path):
        page = self.context.new_page()
        page.on("console", lambda said: self.complaints.append(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(path.as_uri())
        until(page, "document.documentElement.dataset.ready === 'true'")
        return page


@pytest.fixture(scope="module")
def opens(browser):
    found = Opened(browser)
    yield found
    found.context.close()


@pytest.fixture(scope="module")
def first(opens, written):
    return opens(written)


@pytest.fixture
def page(opens, first):
    """The page, the same for all tests since it is slow to start, as it is when it is opened."""
    first.set_viewport_size({"width": 1280, "height": 900})
    in_theme(first, "light")
    first.locator("#changes-metric").select_option(label="ndcg@10")
    first.locator("#changes-a").select_option(label="approx_ndcg")
    first.locator("#changes-b").select_option(label="neural_ndcg@10")
    first.locator("#query-search").fill("")
    return first


@pytest.fixture(autouse=True)
def silent(opens, written):
    """No test may have made a page complain, or ask for anything but itself."""
    yield
    assert opens.complaints == []
    local = (written.parent.as_uri(), "data:", "blob:")
    assert [url for url in opens.asked if not url.startswith(local)] == []


def column(page, at):
    """The cells of a column of the comparison table, as they stand."""
    rows = page.locator("#comparison tbody tr")
    return [rows.nth(i).locator("th, td").nth(at).inner_text() for i in range(rows.count())]


def numbers(cells):
    return [float(cell.split()[0].rstrip("†‡")) for cell in cells if cell != "missing"]


def test_the_table_starts_with_the_metric_of_the_headline_and_the_best(page):
    head = page.locator("#comparison thead th").nth(1)
    assert head.get_attribute("aria-sort") == "descending" and "ndcg@10" in head.inner_text()
    values = numbers(column(page, 1))
    assert values == sorted(values, reverse=True) and len(values) == 3


def test_charts_are_drawn(page):
    for chart in (
        *("curve-chart", "relaxed-path", "relaxed-epochs", "changes-sorted"),
        *("changes-histogram", "overview-means", "overview-differences", "overview-time"),
    ):
        place = page.locator(f"#{chart}")
        assert place.locator("svg.main-svg").count() >= 1, chart
        drawn = place.locator("path.js-line, .bars path, path.point")
        assert drawn.count() >= 1, chart
        assert len(place.get_attribute("aria-label")) > 20
        size = place.locator("svg.main-svg").first.bounding_box()
        assert size["width"] > 300 and size["height"] > 120


def test_names_of_runs_are_shown_as_they_stand(page):
    assert page.title() == "Ranking report"
    assert page.locator("img").count() == 0
    assert HOSTILE in page.locator("#comparison").inner_text()
    page.locator("#changes-b").select_option(label=HOSTILE)
    assert HOSTILE in page.locator("#tally").inner_text()
    assert HOSTILE in page.locator("#list-b caption").inner_text()
    page.locator("#curve-metric").select_option("loss")
    assert page.title() == "Ranking report"


def test_the_table_sorts_by_clicks(page):
    head = page.locator("#comparison thead th").nth(2)
    head.locator("button").click()
    ap = page.locator("#comparison thead th").nth(3)
    ap.locator("button").click()
    assert ap.get_attribute("aria-sort") == "descending"
    assert head.get_attribute("aria-sort") == "none"
    values = numbers(column(page, 3))
    assert values == sorted(values, reverse=True) and len(values) == 3
    ap.locator("button").click()
    assert ap.get_attribute("aria-sort") == "ascending"
    assert numbers(column(page, 3)) == sorted(values)
    assert column(page, 3)[-1] == "missing"  # also last this way round


def test_the_table_sorts_by_keyboard(page):
    page.locator("#comparison thead th").nth(2).locator("button").click()
    name = page.locator("#comparison thead th").nth(0)
    name.locator("button").focus()
    page.keyboard.press("Enter")
    assert name.get_attribute("aria-sort") == "ascending"
    first = column(page, 0)
    page.keyboard.press("Space")
    assert name.get_attribute("aria-sort") == "descending"
    assert column(page, 0) == first[::-1]
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("#comparison thead th").nth(1).get_attribute("aria-sort") == "descending"
    assert "Sorted by ndcg@10, descending" in page.locator("#said").inner_text()


def test_two_rankers_are_chosen(page):
    before = page.locator("#tally").inner_text()
    chart = page.locator("#changes-sorted").get_attribute("aria-label")
    page.locator("#changes-b").select_option(label=HOSTILE)
    assert page.locator("#tally").inner_text() != before
    assert page.locator("#changes-sorted").get_attribute("aria-label") != chart
    assert page.locator("#inspect-b").input_value() == page.locator("#changes-b").input_value()
    counts = [int(b) for b in page.locator("#tally .words b").all_inner_texts()[:3]]
    assert sum(counts) == 80 and counts[0] > counts[2]
    page.locator("#swap").click()
    swapped = [int(b) for b in page.locator("#tally .words b").all_inner_texts()[:3]]
    assert swapped == counts[::-1]
    page.locator("#changes-a").select_option(page.locator("#changes-b").input_value())
    again = [int(b) for b in page.locator("#tally .words b").all_inner_texts()[:3]]
    assert again == counts  # choosing the other's swaps the two
    page.locator("#changes-metric").select_option(label="rr")
    assert "mean rr" in page.locator("#tally").inner_text()


def test_the_inspector_switches(page):
    rows = page.locator("#list-a tbody tr")
    about, first = page.locator("#query-about").inner_text(), rows.all_inner_texts()
    assert 10 <= len(first) <= 20
    page.locator("#next").click()
    assert page.locator("#query-about").inner_text() != about
    page.locator("#previous").click()
    assert rows.all_inner_texts() == first
    other = page.locator("#list-b tbody").inner_text()
    page.locator("#inspect-b").select_option(label=HOSTILE)
    assert page.locator("#list-b tbody").inner_text() != other
    page.locator("#query-search").fill("q17")
    assert page.locator("#query option").count() == 1
    assert "Query q17:" in page.locator("#query-about").inner_text()
    labels = page.locator("#list-a .grade").all_inner_texts()
    assert labels and set(labels) <= {"0", "1", "2", "3", "4"}
    ground = "getComputedStyle(e).backgroundColor"
    colors = page.locator("#list-a .grade").evaluate_all(
        f"all => Object.fromEntries(all.map(e => [e.textContent, {ground}]))"
    )
    assert len(set(colors.values())) == len(colors) > 1
    page.locator("#query-search").fill("nowhere")
    assert "No query" in page.locator("#query-about").inner_text()


def test_the_inspector_is_used_by_keyboard(page):
    about = page.locator("#query-about").inner_text()
    page.locator("#query").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#query-about").inner_text() != about


def test_curves_are_chosen(page):
    lines = page.locator("#curve-chart path.js-line")
    before = lines.count()
    chip = page.locator("#curve-chips button").first
    chip.focus()
    page.keyboard.press("Space")
    assert chip.get_attribute("aria-pressed") == "false"
    until(page, f"document.querySelectorAll('#curve-chart path.js-line').length < {before}")
    page.locator("#curve-metric").select_option("rr")
    assert "validation rr" in page.locator("#curve-chart").get_attribute("aria-label")


def test_dark_and_light(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('#curve-chart .xtick text')).fill"
    light, light_ink = page.evaluate(ground), page.evaluate(ink)
    page.locator("#theme").click()
    assert page.locator("#theme").get_attribute("aria-pressed") == "true"
    dark = page.evaluate(ground)
    assert dark != light
    until(page, f"{ink} !== '{light_ink}'")
    page.locator("#theme").click()
    assert page.evaluate(ground) == light
    in_theme(page, "dark")  # as when the system changes at night
    assert page.evaluate(ground) == dark
    until(page, f"{ink} !== '{light_ink}'")


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_sticks_out_on_a_phone(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    chart = "document.querySelector('#curve-chart svg.main-svg').getBoundingClientRect().right"
    until(page, f"{chart} <= {width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.locator("#list-a table, #list-b table").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect()).map(box => [box.left, box.right])"
    )
    assert boxes[0][1] <= boxes[1][0] and boxes[1][1] <= width
    cut = """all => all.filter(e => e.getBoundingClientRect().right
        > e.closest('.scroll').getBoundingClientRect().right).map(e => e.textContent)"""
    assert page.locator(".scroll caption > span").evaluate_all(cut) == []
    assert page.locator(".scroll caption > span").count() > 2


def test_controls_and_charts_have_names(page):
    nameless = page.evaluate(
        """[...document.querySelectorAll('select, input, button, [role=img], [role=region], nav')]
        .filter(e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')
            || e.labels?.length || e.textContent.trim()))
        .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    levels = page.locator("h1, h2, h3").evaluate_all("all => all.map(e => Number(e.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    for table in page.locator("table").all():
        assert table.locator("caption").count() == 1
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("main").count() == page.locator("header").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page, scheme):
    """WCAG's AA: a contrast of at least 4.5."""
    in_theme(page, scheme)
    pairs = [("ink", "paper"), ("ink", "ground"), ("soft", "paper"), ("soft", "ground")]
    pairs += [("soft", "tint"), ("accent", "paper"), ("warn", "warn-ground"), ("warn", "paper")]
    pairs += [("win", "paper"), ("loss", "paper"), ("accent-ink", "accent")]
    pairs += [(f"g{grade}i", f"g{grade}") for grade in range(5)]
    for front, back in pairs:
        colors = [variable(page, name) for name in (front, back)]
        assert contrast(*colors) >= 4.5, (front, back, colors)
    for line in range(10):  # lines need 3
        assert contrast(variable(page, f"c{line}"), variable(page, "paper")) >= 3


def variable(page, name):
    style = "getComputedStyle(document.documentElement)"
    return page.evaluate(f"{style}.getPropertyValue('--{name}').trim()")


def contrast(one, other):
    lights = sorted(map(luminance, (one, other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(color):
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_with_one_ranker_or_none_it_still_opens(opens, written, run_folder, lists):
    place = written.parent / "few"
    run_folder(place / "mse", lists(6), loss="mse", evaluate=False)
    report.write([place], place / "none.html")
    page = opens(place / "none.html")
    assert "The run cannot be compared yet" in page.locator(".headline").inner_text()
    assert page.locator("#curve-chart svg.main-svg").count() >= 1
    run_folder(place / "ranknet", lists(6), loss="ranknet")
    report.write([place / "ranknet"], place / "one.html")
    page = opens(place / "one.html")
    assert "ranknet has the highest" in page.locator(".headline").inner_text()
    assert "Two rankers" in page.locator("#changes-sorted").inner_text()
    assert page.locator("#list-a tbody tr").count() > 0


def test_trees_have_a_chart_of_their_own(opens, written, run_folder, tree_folder, lists):
    place, data = written.parent / "trees", lists(8)
    for seed in (0, 1):
        run_folder(place / f"a{seed}", data, loss="approx_ndcg", candidate="a", seed=seed)
        tree_folder(place / f"t{seed}", data, candidate="LightGBM", seed=seed)
    report.write([place], place / "trees.html")
    page = opens(place / "trees.html")
    last = "Math.max(...document.getElementById('{}').data.flatMap(trace => trace.x))"
    title = "document.getElementById('{}').layout.{}.title.text"
    assert page.evaluate(last.format("curve-chart")) == 6
    page.locator("#curve-metric").select_option(label="ndcg@5")
    assert page.evaluate(last.format("tree-chart")) == 40
    assert page.evaluate(title.format("tree-chart", "xaxis")) == "tree"
    page.locator(".chip", has_text="LightGBM").click()
    assert page.locator("#tree-figure").is_hidden()
    assert page.evaluate(title.format("relaxed-epochs", "yaxis")) == (
        "relaxed ndcg (training)<br>exact ndcg@10 (validation)"
    )
    assert page.evaluate(title.format("relaxed-path", "yaxis")) == "exact ndcg@10 (validation)"
    whole = "getComputedStyle(document.querySelector('.plain td')).overflowWrap"
    assert page.evaluate(whole) == "break-word"  # at the ends of words, not within them
    assert "are of seed 0 alone" in page.locator("#inspector-lead").inner_text()
    assert "(seed 0)" in page.locator("#query-label").inner_text()


def test_the_inspector_says_why_an_item_stands_above_another(page):
    page.select_option(
        "#query",
        label=next(
            text for text in page.locator("#query option").all_inner_texts() if text.endswith(" q3")
        ),
    )
    shown = page.locator("#why tbody tr").all()
    rows = [row.locator("th, td").all_inner_texts() for row in shown]
    assert [row[0] for row in rows] == ["<i>x", "y", "difference of scores"]
    assert rows[0][1:4] == ["7.5", "2.5", "+0.7500"]
    assert rows[2][3] == "+0.5000"
    choices = page.locator("#why select").all()
    assert [choice.locator("option").count() for choice in choices] == [1, 1, 1]
    assert "A: approx_ndcg" in choices[0].inner_text()
    other = next(
        t for t in page.locator("#query option").all_inner_texts() if not t.endswith(" q3")
    )
    page.select_option("#query", label=other)
    assert "not explained for this query" in page.inner_text("#why")


def test_a_baseline_is_b_and_every_mark_is_explained(opens, written):
    place = written.parent
    report.write([place], place / "baseline.html", baseline=HOSTILE)
    page = opens(place / "baseline.html")
    table = page.locator("#comparison")
    assert table.locator("td.main strong").count() == 1  # the best is bold, baseline or not
    better = table.locator(".dagger.better")
    assert better.count() >= 2 and set(better.all_inner_texts()) == {"‡"}
    assert page.locator("#changes-b option:checked").inner_text() == HOSTILE
    assert page.locator("#tally .words b").last.inner_text().startswith("+")
    rows = page.locator(".tested").first.locator("tbody tr").all_inner_texts()
    assert len(rows) == 2 and all("0.0001" in row and "‡ better" in row for row in rows)
    assert "corrected p-values" in page.locator("#overview-differences-summary").inner_text()
    assert page.locator(".meanings li").count() == 3
    assert page.locator("#curve-chart .scatterlayer .point").count() >= 3  # the best epochs
    assert page.locator("#theme").inner_text().count("☀") == 0


def test_the_metric_of_the_headline_is_on_a_phones_screen(page):
    page.set_viewport_size({"width": 390, "height": 800})
    box = page.locator("#comparison td.main").first.bounding_box()
    assert box["x"] + box["width"] <= 390
    until(page, "document.querySelector('.scroll:has(#comparison)').dataset.more !== undefined")
    assert "Left" not in page.locator("#relaxed").inner_text()


def test_a_bad_first_epoch_and_a_metric_of_any_name(opens, written, run_folder, lists):
    place, data = written.parent / "odd", lists(6)
    for loss in ("mse", "ranknet"):
        run = run_folder(place / loss, data, loss=loss, epochs=20)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lines[0]["ndcg@10"] = -30.0
        if loss == "mse":
            lines = [{**line, "__proto__": 0.5, "constructor": 0.25} for line in lines]
        (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    report.write([place], place / "odd.html")
    page = opens(place / "odd.html")
    lowest = "document.getElementById('curve-chart').layout.yaxis.range[0]"
    assert page.evaluate(lowest) > 0
    assert "outside of the chart" in page.locator("#curve-summary").inner_text()
    for metric in ("__proto__", "constructor"):
        page.locator("#curve-metric").select_option(metric)
        assert page.evaluate("document.getElementById('curve-chart').data.length") == 2
