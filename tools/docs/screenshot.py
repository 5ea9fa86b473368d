"""Take the picture of a report that the README shows: ``python tools/docs/screenshot.py REPORT``.

The report of ``make demo`` is at ``rankgrad-demo/report.html``. The picture shows the sentence at
the top of the report and the chart of means, reduced in height, and nothing else. It needs
playwright and Chromium.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"

#: Hides what the picture leaves out, and reduces the space around the rest.
_STYLE = """
.brand, h1, .subtitle, .aside, .cards, nav.jump, .controls, .meanings, #overview :is(h2, h3),
figcaption, #overview-differences-title ~ * { display: none !important; }
header.top, header.top .wrap { padding-top: 2px !important; padding-bottom: 0 !important; }
header.top, body, main, #overview { background: none !important; border: 0 !important; }
main, #overview { margin: 0 !important; padding-top: 0 !important; box-shadow: none !important; }
.headline, figure { margin: 6px 0 !important; }
"""


def main() -> None:
    """Read the options and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, help="an HTML file of `rankgrad report`")
    parser.add_argument("--out", type=Path, default=ASSETS / "report.png")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        # The README shows it about 400 pixels wide: this viewport keeps text readable. Twice the
        # pixels are for screens of high resolution.
        page = browser.new_page(viewport={"width": 560, "height": 400}, device_scale_factor=2)
        page.goto(options.report.resolve().as_uri())
        page.wait_for_load_state("networkidle")
        page.add_style_tag(content=_STYLE)
        page.evaluate("Plotly.relayout('overview-means', {height: 205, 'margin.t': 4})")
        chart = page.locator("#overview-means .main-svg").first.bounding_box()
        assert chart is not None
        size = {"x": 0.0, "y": 0.0, "width": 560.0, "height": chart["y"] + chart["height"]}
        page.screenshot(path=options.out, clip=size, full_page=True)
        browser.close()
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
