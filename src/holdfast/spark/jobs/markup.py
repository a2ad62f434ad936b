"""Elements of HTML and SVG: what is put into them is escaped by construction."""

from __future__ import annotations

from typing import TypeAlias
from xml.etree import ElementTree as ET

__all__ = ["Node", "node", "text_of"]

Node: TypeAlias = ET.Element
Attribute: TypeAlias = str | float | int


def node(tag: str, *children: Node | str, **attributes: Attribute) -> Node:
    """An element; `class_` is its class, and `text_anchor` the attribute `text-anchor`."""
    made = ET.Element(tag, {_name(key): _value(value) for key, value in attributes.items()})
    last: Node | None = None
    for child in children:
        if isinstance(child, str):
            said = _printable(child)
            if last is None:
                made.text = (made.text or "") + said
            else:
                last.tail = (last.tail or "") + said
        else:
            made.append(child)
            last = child
    return made


def text_of(element: Node) -> str:
    """The element as HTML text."""
    return ET.tostring(element, encoding="unicode", method="html")


def _name(key: str) -> str:
    # SVG has one attribute with a capital that we use.
    return "viewBox" if key == "view_box" else key.rstrip("_").replace("_", "-")


def _value(value: Attribute) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return _printable(str(value))


def _printable(text: str) -> str:
    """Text without what HTML does not allow: names of streams may hold anything."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for each in text
    )
