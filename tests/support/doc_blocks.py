"""The pages of the documentation: their blocks of code, links and headings."""

import re
from typing import NamedTuple

from doc_tables import PAGES

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+?) -->\n)?```(?P<kind>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    page: str
    kind: str  # python, sh, diff, or empty for what a program prints
    code: str
    why_not_run: str  # empty where a test runs the block


def blocks(kind):
    """All blocks of a kind, in the order of the pages."""
    return [
        Block(page.name, kind, found["code"], found["why"] or "")
        for page in PAGES
        for found in _FENCE.finditer(page.read_text(encoding="utf-8"))
        if found["kind"] == kind
    ]


def script_of(diff):
    """The lines of a script after a diff; `...` is the script's own part."""
    lines = [line for line in diff.splitlines() if not line.startswith("-")]
    return "\n".join(line[1:] for line in lines) + "\n"


def prose(text):
    """A page without its blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))


def links(text):
    """`(path, anchor)` of all links that lead to files, either one perhaps empty."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", prose(text))
    return [(path, anchor) for path, anchor in found if "://" not in path]


def anchors(text):
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
