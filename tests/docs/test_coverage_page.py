"""docs/coverage.md is complete and up to date, and its generator notices when it is not."""

from pathlib import Path

import pytest

from tools import coverage_page
from tools.coverage_page import ROOT, CoverageError, find_marks, load_specs, problems, render

CLAUSES = """
title = "A protocol"
source = "https://example.com/protocol"

["1 Words"]
"tiny 1-1" = { level = "MUST", says = "Words are spoken." }
"tiny 1-2" = { level = "SHOULD", says = "Words are heard.", not_ours = "A listener's." }
"""
MARKED_TEST = """
import pytest

@pytest.mark.spec("tiny 1-1")
def test_speaks(): ...
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a specification of two clauses and a test for the one that is its own."""
    for folder in ("docs/spec", "tests/http"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs/spec/tiny.toml").write_text(CLAUSES)
    (tmp_path / "tests/http/test_words.py").write_text(MARKED_TEST)
    return tmp_path


def found_problems(project: Path) -> list[str]:
    return problems(project, load_specs(project), find_marks(project))


def test_every_clause_has_a_test_or_a_reason() -> None:
    assert problems(ROOT, load_specs(ROOT), find_marks(ROOT)) == []


def test_page_is_up_to_date() -> None:
    text = render(load_specs(ROOT), find_marks(ROOT))
    assert (ROOT / coverage_page.PAGE).read_text() == text, "run python -m tools.coverage_page"


def test_page_names_the_tests_and_the_reasons(project: Path) -> None:
    text = render(load_specs(project), find_marks(project))
    assert "[http/test_words.py](../tests/http/test_words.py) `test_speaks`" in text
    assert "not ours: A listener's." in text
    assert "| [tiny](#tiny) | 2 | 1 | 0 | 1 |" in text
    assert found_problems(project) == []


def test_clause_without_test_or_reason_is_reported(project: Path) -> None:
    (project / "tests/http/test_words.py").unlink()
    assert found_problems(project) == [
        "tiny 1-1 has neither a test nor a reason: Words are spoken."
    ]


def test_mark_of_an_unknown_clause_is_reported(project: Path) -> None:
    path = project / "tests/http/test_words.py"
    path.write_text(MARKED_TEST.replace('"tiny 1-1"', '"tiny 1-1", "tiny 1-9"'))
    assert found_problems(project) == [
        "tests/http/test_words.py::test_speaks is marked with 'tiny 1-9', which is no clause"
    ]


def test_test_of_what_is_not_ours_is_reported(project: Path) -> None:
    path = project / "tests/http/test_words.py"
    path.write_text(MARKED_TEST.replace('"tiny 1-1"', '"tiny 1-1", "tiny 1-2"'))
    assert found_problems(project) == [
        "tiny 1-2 is not ours, yet tests/http/test_words.py is marked with it"
    ]


def test_decision_without_a_page_is_reported(project: Path) -> None:
    path = project / "docs/spec/tiny.toml"
    decided = 'not_ours = "A listener\'s.", decided = "docs/decisions/1.md"'
    path.write_text(CLAUSES.replace('not_ours = "A listener\'s."', decided))
    assert found_problems(project) == [
        "tiny 1-2 was decided in docs/decisions/1.md, which does not exist"
    ]


@pytest.mark.parametrize(
    "marked",
    [
        'pytestmark = pytest.mark.spec("tiny 1-1")\ndef test_a(): ...',
        'pytestmark = [pytest.mark.spec("tiny 1-1")]\nasync def test_a(): ...',
        '@pytest.mark.spec("tiny 1-1")\nclass TestA:\n    def test_a(self): ...',
        'class TestA:\n    @pytest.mark.spec("tiny 1-1")\n    def test_a(self): ...',
        (
            '@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.spec("tiny 1-1"))])'
            "\ndef test_a(x): ..."
        ),
    ],
    ids=["module", "module list", "class", "method", "parameter"],
)
def test_marks_are_found_wherever_pytest_takes_them(project: Path, marked: str) -> None:
    (project / "tests/http/test_words.py").write_text(marked)
    assert list(find_marks(project)) == ["tiny 1-1"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('"tiny 2-1" = { level = "MUST", says = "x" }', "not an id for section 1"),
        ('"tiny 1-3" = { level = "MAY", says = "x" }', "unknown level 'MAY'"),
        ('"tiny 1-3" = { level = "MUST", says = "x", why = "y" }', "unknown field 'why'"),
    ],
    ids=["id", "level", "field"],
)
def test_malformed_clause_is_refused(project: Path, wrong: str, message: str) -> None:
    (project / "docs/spec/tiny.toml").write_text(CLAUSES + wrong)
    with pytest.raises(CoverageError, match=message):
        load_specs(project)


def test_mark_that_is_no_plain_string_is_refused(project: Path) -> None:
    (project / "tests/http/test_words.py").write_text(MARKED_TEST.replace('"tiny 1-1"', "CLAUSE"))
    with pytest.raises(CoverageError, match=r"test_words\.py:4"):
        find_marks(project)
