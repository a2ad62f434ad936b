"""The two log formats."""

import json
import logging
import sys

import pytest

from holdfast.cli.logs import JsonFormatter, TextFormatter, set_up_logging
from holdfast.settings import LogSettings


def record(**extra):
    values = {"name": "holdfast.x", "levelno": 30, "levelname": "WARNING", "created": 0.5}
    return logging.makeLogRecord({**values, "msg": "%s left", "args": ("7 MiB",), **extra})


def test_text():
    line = TextFormatter().format(record())
    assert line == "1970-01-01T00:00:00.500Z WARNING holdfast.x: 7 MiB left"


def test_json_with_extra_values():
    assert json.loads(JsonFormatter().format(record(path="/srv"))) == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "warning",
        "logger": "holdfast.x",
        "message": "7 MiB left",
        "path": "/srv",
    }


def test_json_keeps_a_traceback_on_one_line():
    try:
        raise ValueError("no")  # noqa: TRY301
    except ValueError:
        line = JsonFormatter().format(record(exc_info=sys.exc_info()))
    assert "\n" not in line
    assert "ValueError: no" in json.loads(line)["exception"]


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield root
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(capture=False)


def test_level_and_format_are_settings(root_logger, capsys):
    set_up_logging(LogSettings(level="warning", format="json"))
    logging.getLogger("holdfast.y").info("unheard")
    logging.getLogger("holdfast.y").error("heard")
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["heard"]
