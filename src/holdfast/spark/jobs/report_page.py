"""The report's page: totals, then one section after the other, with nothing from elsewhere.

A `Section` is a title, a note and elements (`markup.node`, `charts`); whoever makes one can have it
on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.spark.jobs.markup import Node, node, text_of
from holdfast.spark.jobs.report_style import STYLE

__all__ = ["Section", "Tile", "legend", "page", "table"]


@dataclass(frozen=True)
class Tile:
    """One figure of the whole: what it is, its value, and what else there is to say of it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    title: str
    content: Sequence[Node]
    note: str = ""
    # A stable name to link to; made of the title if left out.
    anchor: str = field(default="")


def page(
    title: str, subtitle: str, tiles: Sequence[Tile], sections: Sequence[Section], made: str
) -> str:
    """The whole page as text."""
    figures = node("dl", *(_tile(each) for each in tiles), class_="tiles")
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("meta", name="color-scheme", content="light dark"),
        # Nothing is fetched: a browser that finds an address here must not follow it.
        node(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'",
        ),
        node("title", title),
        node("style", STYLE),
    )
    body = node(
        "body",
        node("header", node("h1", title), node("p", subtitle)),
        node("main", figures, *(_section(each) for each in sections)),
        node("footer", node("p", made)),
    )
    return "<!DOCTYPE html>\n" + text_of(node("html", head, body, lang="en")) + "\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], kinds: Sequence[str]) -> Node:
    """A table; a column's kind is `word`, `number` or `time`."""

    def cell(tag: str, at: int, said: str) -> Node:
        return node(tag, said, class_=kinds[at])

    head = node("tr", *(cell("th", at, each) for at, each in enumerate(headings)))
    lines = [node("tr", *(cell("td", at, each) for at, each in enumerate(row))) for row in rows]
    made = node("table", node("thead", head), node("tbody", *lines))
    return node("div", made, class_="table")


def legend(names: Sequence[tuple[str, int | None]]) -> Node:
    """What each colour stands for."""
    entries = [
        node("li", node("i", class_="rest" if colour is None else f"s{colour}"), name)
        for name, colour in names
    ]
    return node("ul", *entries, class_="legend")


def _tile(tile: Tile) -> Node:
    parts = [node("dt", tile.name), node("dd", tile.value, class_="value")]
    if tile.note:
        parts.append(node("dd", tile.note, class_="note"))
    return node("div", *parts)


def _section(section: Section) -> Node:
    anchor = section.anchor or "-".join(section.title.lower().split())
    parts = [node("h2", section.title)]
    if section.note:
        parts.append(node("p", section.note, class_="note"))
    return node("section", *parts, *section.content, id=anchor)
