"""Reading a report as its readers do."""

import json
import re
from html.parser import HTMLParser


def data_of(page: str) -> dict:
    """What the script of a page is given."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(found[1])


def text_of(page: str) -> str:
    """The text that a reader without a script sees, in one line."""

    class Text(HTMLParser):
        def __init__(self):
            super().__init__()
            self.parts, self.skip = [], False

        def handle_starttag(self, tag, attrs):
            self.skip = tag in ("script", "style")

        def handle_endtag(self, tag):
            self.skip = False

        def handle_data(self, data):
            if not self.skip:
                self.parts.append(data)

    parser = Text()
    parser.feed(page)
    return " ".join("".join(parser.parts).split())
