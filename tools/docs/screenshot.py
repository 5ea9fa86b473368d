"""Take the picture of a report that the README shows: ``python tools/docs/screenshot.py REPORT``.

The report of ``make demo`` is at ``rankgrad-demo/report.html``. Needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"


def main() -> None:
    """Read the options and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, help="an HTML file of `rankgrad report`")
    parser.add_argument("--out", type=Path, default=ASSETS / "report.png")
    parser.add_argument("--height", type=int, default=430, help="pixels from the top")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": options.height})
        page.goto(options.report.resolve().as_uri())
        page.wait_for_load_state("networkidle")
        page.screenshot(path=options.out)
        browser.close()
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
