"""Files of tokens and keys: read again when they change, and forgiven when they break."""

import logging
import os

import pytest

from holdfast.errors import SettingsError
from holdfast.http.access import sources
from holdfast.http.access.sources import WatchedFile


def number(content):
    try:
        return int(content)
    except ValueError:
        raise ValueError("it is no number") from None


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "number"
    path.write_text("1")
    return path


def replace(path, text):
    """As editors and Kubernetes do it: another file takes the name."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.rename(path)


def test_an_unchanged_file_is_not_read_again(path):
    reads = []
    file = WatchedFile(path, reads.append)
    assert not file.poll()
    assert not file.poll()
    assert len(reads) == 1


def test_a_changed_file_is_read_again(path):
    file = WatchedFile(path, number)
    assert file.value == 1
    replace(path, "2")
    assert file.poll()
    assert file.value == 2
    path.write_text("33")
    assert file.poll()
    assert file.value == 33
    assert not file.poll()


def test_a_change_of_the_time_alone_is_seen(path):
    file = WatchedFile(path, number)
    os.utime(path, ns=(1, 1))
    assert file.poll()


def test_a_broken_file_leaves_the_old_value_and_says_so_once(path, caplog):
    file = WatchedFile(path, number)
    replace(path, "sesame")
    assert not file.poll()
    assert not file.poll()
    assert file.value == 1
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "it is no number" in record.getMessage()
    assert "sesame" not in caplog.text
    replace(path, "4")
    assert file.poll()
    assert file.value == 4


def test_a_file_that_is_gone_leaves_the_old_value(path, caplog):
    file = WatchedFile(path, number)
    path.unlink()
    assert not file.poll()
    assert not file.poll()
    assert file.value == 1
    assert len(caplog.records) == 1
    path.write_text("5")
    assert file.poll()
    assert file.value == 5


@pytest.mark.parametrize(
    ("content", "says"), [(None, "No such file"), ("x", "no number"), ("1" * 20, "larger than 10")]
)
def test_at_the_start_it_has_to_be_good(tmp_path, monkeypatch, content, says):
    monkeypatch.setattr(sources, "FILE_BYTES_MAX", 10)
    path = tmp_path / "number"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=says) as caught:
        WatchedFile(path, number)
    assert str(path) in caught.value.message
