"""Generate docs/coverage.md: every clause of the specifications with the tests that show it.

    python -m tools.coverage_page           writes the page
    python -m tools.coverage_page --check   only says whether it is up to date

The clauses come from `docs/spec/*.toml`, one file a specification; a new file is all that a further
one needs. The tests come from `@pytest.mark.spec("base 5.1-1", ...)` on test functions, on their
classes, or on a module as `pytestmark`. They are found by parsing, so nothing is imported and a
test that is skipped here counts all the same. A clause without a test or a reason, or a mark that
names no clause, makes the program fail.
"""

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/coverage.md")
LEVELS = ("MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "STATES")
CLAUSE_KEYS = {"level", "says", "not_ours", "decided"}


class CoverageError(Exception):
    """The clause lists or the marks cannot be read."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One requirement of a specification, paraphrased."""

    id: str
    level: str
    says: str
    not_ours: str = ""
    decided: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a specification, with its clauses in order."""

    title: str
    clauses: tuple[Clause, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """A specification: `name` is the first word of its clauses' ids."""

    name: str
    title: str
    source: str
    sections: tuple[Section, ...]

    def clauses(self) -> Iterator[Clause]:
        """All clauses, in order."""
        for section in self.sections:
            yield from section.clauses


@dataclass(frozen=True, slots=True, order=True)
class Test:
    """A test function, by file and name. No line numbers: they would date the page."""

    path: str
    name: str


Marks = dict[str, list[Test]]


def load_specs(root: Path) -> list[Spec]:
    """Read every clause list below `docs/spec`."""
    return [_load_spec(path) for path in sorted((root / "docs/spec").glob("*.toml"))]


def _load_spec(path: Path) -> Spec:
    tables = tomllib.loads(path.read_text())
    title, source = str(tables.pop("title")), str(tables.pop("source"))
    sections = tuple(
        Section(name, tuple(_clause(path, name, key, fields) for key, fields in table.items()))
        for name, table in tables.items()
    )
    return Spec(path.stem, title, source, sections)


def _clause(path: Path, section: str, clause_id: str, fields: dict[str, Any]) -> Clause:
    """One clause, its id checked against its file and section, and its fields against a list."""
    number = section.partition(" ")[0]
    if not clause_id.startswith(f"{path.stem} {number}-"):
        raise CoverageError(f"{path.name}: {clause_id!r} is not an id for section {number}")
    if unknown := set(fields) - CLAUSE_KEYS:
        raise CoverageError(f"{path.name}: {clause_id}: unknown field {min(unknown)!r}")
    clause = Clause(clause_id, **fields)
    if clause.level not in LEVELS:
        raise CoverageError(f"{path.name}: {clause_id}: unknown level {clause.level!r}")
    return clause


def find_marks(root: Path) -> Marks:
    """Collect the tests that show each clause, from the marks below `tests`."""
    marks: Marks = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        if "node_modules" in path.parts:
            continue
        relative = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(), relative)
        for name, ids in _marked_tests(tree, relative):
            for clause_id in ids:
                marks.setdefault(clause_id, []).append(Test(relative, name))
    return {clause_id: sorted(set(tests)) for clause_id, tests in marks.items()}


def _marked_tests(tree: ast.Module, where: str) -> Iterator[tuple[str, list[str]]]:
    """Each test of a module with the ids on it, on its class and on its module."""
    module_ids = [
        clause_id
        for node in tree.body
        if isinstance(node, ast.Assign) and _assigns_pytestmark(node)
        for clause_id in _ids(node.value, where)
    ]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            class_ids = module_ids + _decorator_ids(node, where)
            for item in node.body:
                if _is_test(item):
                    yield f"{node.name}::{item.name}", class_ids + _decorator_ids(item, where)
        elif _is_test(node):
            yield node.name, module_ids + _decorator_ids(node, where)


def _assigns_pytestmark(node: ast.Assign) -> bool:
    return any(isinstance(name, ast.Name) and name.id == "pytestmark" for name in node.targets)


def _is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(node, functions) and node.name.startswith("test_")


def _decorator_ids(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, where: str
) -> list[str]:
    return [clause_id for mark in node.decorator_list for clause_id in _ids(mark, where)]


def _ids(tree: ast.expr, where: str) -> Iterator[str]:
    """Yield the ids in every `pytest.mark.spec(...)` of an expression, parameter sets included."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.spec")):
            continue
        for argument in node.args:
            if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                raise CoverageError(f"{where}:{node.lineno}: ids of clauses are plain strings")
            yield argument.value


def problems(root: Path, specs: list[Spec], marks: Marks) -> list[str]:
    """Say what keeps the page from being complete, one line each."""
    clauses = {clause.id: clause for spec in specs for clause in spec.clauses()}
    found = []
    for clause in clauses.values():
        tests = marks.get(clause.id)
        if not (tests or clause.not_ours):
            found.append(f"{clause.id} has neither a test nor a reason: {clause.says}")
        if tests and clause.not_ours:
            found.append(f"{clause.id} is not ours, yet {tests[0].path} is marked with it")
        if clause.decided and not (root / clause.decided).is_file():
            found.append(f"{clause.id} was decided in {clause.decided}, which does not exist")
    for clause_id in sorted(set(marks) - set(clauses)):
        test = marks[clause_id][0]
        found.append(f"{test.path}::{test.name} is marked with {clause_id!r}, which is no clause")
    return found


def render(specs: list[Spec], marks: Marks) -> str:
    """Write the page as Markdown."""
    lines = [
        "# Coverage of the specifications",
        "",
        "<!-- Generated by `python -m tools.coverage_page` from docs/spec and the marks. -->",
        "",
        "Every MUST and SHOULD with the tests that show it, or whose business it is instead.",
        "STATES marks what a specification says without a key word and clients rely on. The words",
        "are ours; the specification's own are one link away.",
        "",
        "| specification | clauses | shown by tests | decided otherwise | not ours |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [_summary_row(spec, marks) for spec in specs]
    for spec in specs:
        lines += ["", f"## {spec.name}", "", f"[{spec.title}]({spec.source})"]
        for section in spec.sections:
            lines += _section(section, marks)
    return "\n".join(lines) + "\n"


def _summary_row(spec: Spec, marks: Marks) -> str:
    clauses = list(spec.clauses())
    shown = sum(1 for clause in clauses if clause.id in marks and not clause.decided)
    decided = sum(1 for clause in clauses if clause.decided)
    not_ours = sum(1 for clause in clauses if clause.not_ours)
    return f"| [{spec.name}](#{spec.name}) | {len(clauses)} | {shown} | {decided} | {not_ours} |"


def _section(section: Section, marks: Marks) -> list[str]:
    head = [
        "",
        f"### {section.title}",
        "",
        "| id | level | clause | shown by |",
        "| --- | --- | --- | --- |",
    ]
    return head + [
        f"| {clause.id} | {clause.level} | {clause.says} | {_shown_by(clause, marks)} |"
        for clause in section.clauses
    ]


def _shown_by(clause: Clause, marks: Marks) -> str:
    if clause.not_ours:
        return f"not ours: {clause.not_ours}"
    tests = [
        f"[{test.path.removeprefix('tests/')}](../{test.path}) `{test.name}`"
        for test in marks.get(clause.id, [])
    ]
    if clause.decided:
        page = clause.decided.removeprefix("docs/")
        tests.insert(0, f"decided otherwise: [{Path(page).stem}]({page})")
    return "<br>".join(tests) or "nothing"


def main(arguments: list[str] | None = None) -> int:
    """Write or check the page; the exit status says whether all is well."""
    parser = argparse.ArgumentParser(prog="python -m tools.coverage_page")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args(arguments).check
    specs, marks = load_specs(ROOT), find_marks(ROOT)
    found, text, page = problems(ROOT, specs, marks), render(specs, marks), ROOT / PAGE
    if not check:
        page.write_text(text)
    elif not page.is_file() or page.read_text() != text:
        found.append(f"{PAGE} is out of date: run python -m tools.coverage_page")
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
