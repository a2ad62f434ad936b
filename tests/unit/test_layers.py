"""Imports go downward only; only the clock reads time and randomness."""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast import errors

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"

# Top first; packages on one line never import each other.
LAYERS = [
    {"cli"},
    {"node"},
    {"proxy", "spark"},
    {"http"},
    {"subscriptions"},
    {"engine"},
    {"log", "storage", "client"},
    {"objects"},
    {"net", "format", "settings"},
    {"protocol"},
    {"errors", "clock", "failpoints", "allocator", "version"},
]
HEIGHT = {name: -at for at, layer in enumerate(LAYERS) for name in layer}
# Packages that may import less than their height allows.
ONLY = {
    "protocol": {"errors"},
    "settings": {"protocol", "errors"},
    "objects": {"format", "protocol", "errors", "clock", "failpoints"},
    "client": {"net", "format", "protocol", "errors", "clock"},
    # Its jobs declare their options as the server declares its settings, and read the same files.
    "spark": {
        *("client", "format", "objects", "settings"),
        *("protocol", "errors", "clock", "failpoints"),
    },
}
LIBRARIES_OF_PROTOCOL = {"msgspec"}
CLOCK_MODULES = {"time", "random", "secrets"}
# `holdfast.testing` is for tests: it uses anything below http, and nothing uses it.
TESTING = "testing"


def modules():
    return sorted(SOURCE.rglob("*.py"))


def part_of(path):
    """The package (or top-level module) that a file belongs to; None for holdfast itself."""
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return None if first == "__init__" else first


def imports(path):
    """(line, dotted name) of everything a module imports, wherever in it."""
    package = ["holdfast", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def imported_parts(path):
    """(line, part of holdfast) for everything of ours that a module imports."""
    for line, name in imports(path):
        root, _, rest = name.partition(".")
        if root == "holdfast" and rest:
            yield line, rest.partition(".")[0]


def problems(check):
    return [
        f"{path.relative_to(SOURCE.parent)}:{line} imports {what}"
        for path in modules()
        for line, what in check(path)
    ]


def test_every_package_has_a_layer():
    found = {part_of(path) for path in modules()} - {None, "py"}
    assert found <= HEIGHT.keys() | {TESTING}


def test_imports_go_downward_only():
    def upward(path):
        part = part_of(path)
        if part in {None, TESTING}:
            return
        for line, imported in imported_parts(path):
            if imported == part:
                continue
            if imported == TESTING or HEIGHT[imported] >= HEIGHT[part]:
                yield line, f"holdfast.{imported}"

    assert problems(upward) == []


@pytest.mark.parametrize("part", sorted(ONLY))
def test_some_see_less_than_their_height_allows(part):
    def too_much(path):
        if part_of(path) == part:
            for line, imported in imported_parts(path):
                if imported not in ONLY[part] | {part}:
                    yield line, f"holdfast.{imported}"

    assert problems(too_much) == []


def test_testing_stays_below_http():
    def too_high(path):
        if part_of(path) == TESTING:
            for line, imported in imported_parts(path):
                if imported != TESTING and HEIGHT[imported] >= HEIGHT["http"]:
                    yield line, f"holdfast.{imported}"

    assert problems(too_high) == []


def test_protocol_uses_the_standard_library_and_msgspec_only():
    def foreign(path):
        if part_of(path) == "protocol":
            for line, name in imports(path):
                root = name.partition(".")[0]
                if root not in sys.stdlib_module_names | LIBRARIES_OF_PROTOCOL | {"holdfast"}:
                    yield line, root

    assert problems(foreign) == []


@pytest.mark.parametrize("part", ["protocol", "format"])
def test_what_does_no_io_imports_nothing_that_does(part):
    doors = {"asyncio", "io", "os", "pathlib", "select", "shutil", "socket", "ssl", "subprocess"}
    doors |= {"tempfile", "threading", "uvloop"}

    def reaching_out(path):
        if part_of(path) == part:
            for line, name in imports(path):
                if name.partition(".")[0] in doors:
                    yield line, name

    assert problems(reaching_out) == []


def test_only_the_clock_reads_time_and_randomness():
    def reading(path):
        if part_of(path) in {"clock", TESTING}:
            return
        for line, name in imports(path):
            if name.partition(".")[0] in CLOCK_MODULES:
                yield line, name

    assert problems(reading) == []


def test_nobody_asks_datetime_uuid_or_os_for_time_or_chance():
    asking = {
        ("datetime", "now"),
        ("datetime", "utcnow"),
        ("datetime", "today"),
        ("date", "today"),
        ("uuid", "uuid1"),
        ("uuid", "uuid4"),
        ("os", "urandom"),
        ("os", "getrandom"),
    }

    def calls(path):
        if part_of(path) in {"clock", TESTING}:
            return
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                owner = node.value
                name = getattr(owner, "id", getattr(owner, "attr", None))
                if (name, node.attr) in asking:
                    yield node.lineno, f"{name}.{node.attr}"

    assert problems(calls) == []


def test_the_scan_sees_what_it_should():
    path = SOURCE / "log" / "file.py"
    assert {"errors", "format", "log"} <= {part for _, part in imported_parts(path)}


def test_errors_with_a_code_have_one_home():
    """Otherwise which codes there are depends on what was imported."""
    roots = {name for name in dir(errors) if name.endswith("Error")}

    def strays(path):
        if part_of(path) in {"errors", TESTING}:
            return
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                for base in node.bases:
                    if getattr(base, "id", getattr(base, "attr", None)) in roots:
                        yield node.lineno, f"and extends an error as {node.name}"

    assert problems(strays) == []


# Public names of the client, which are also the protocol's words for what the server keeps.
NAMED_TWICE = {"Batch", "Producer", "Record", "Snapshot", "Stream"}


def test_a_public_class_name_means_one_thing():
    found = Counter(
        node.name
        for path in modules()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in found.items() if count > 1} <= NAMED_TWICE
