"""How input is cut into messages, whatever pieces it comes in."""

import asyncio
import os

import pytest

from holdfast.cli.client import sources
from holdfast.cli.client.sources import Sources
from holdfast.errors import HoldfastError, InvalidJsonError, SettingsError
from tests.thorough import for_each

JSON = "application/json"
TEXT = "text/plain"


def read(path, media, *, lines=True, framed=False):
    async def collect():
        made = Sources((), [str(path)], lines=lines, framed=framed)
        return [message async for message in made.messages(media)], made.read_bytes

    return asyncio.run(collect())


@for_each("piece_bytes", [1, 2, 3, 5, 1000])
@for_each("content", [b"", b"a", b"\n", b"a\nb", b"a\r\n\r\n\nbc\rd\n", b"\n\n\x00\xff"])
def test_lines_are_the_same_in_whatever_pieces_they_come(
    tmp_path, monkeypatch, content, piece_bytes
):
    monkeypatch.setattr(sources, "PIECE_BYTES", piece_bytes)
    path = tmp_path / "input"
    path.write_bytes(content)
    messages, read_bytes = read(path, TEXT)
    assert b"".join(messages) == content
    assert read_bytes == len(content)
    assert all(b"\n" not in message[:-1] and message for message in messages)
    framed, _ = read(path, TEXT, framed=True)
    assert framed == [each.removesuffix(b"\n").removesuffix(b"\r") for each in messages]


def test_json_lines_are_stripped_and_empty_ones_passed_over(tmp_path):
    path = tmp_path / "input"
    path.write_bytes(b' 1 \r\n\n\t\n"a\xc3\xa9"')
    assert read(path, JSON)[0] == [b"1", b'"a\xc3\xa9"']
    assert read(path, JSON, framed=True)[0] == [b"1", b'"a\xc3\xa9"']


@pytest.mark.parametrize("line", [b"1,2", b"{", b'"\xff"', b"[" * 5000, b"]["])
def test_what_is_not_json_is_named(tmp_path, line):
    path = tmp_path / "input"
    path.write_bytes(b"1\n" + line)
    with pytest.raises(InvalidJsonError, match=f"line 2 of {path} is not "):
        read(path, JSON)
    path.write_bytes(line)
    with pytest.raises(InvalidJsonError, match=f"{path} is not "):
        read(path, JSON, lines=False)


def test_what_cannot_be_read_is_found_before(tmp_path):
    for name in (tmp_path, tmp_path / "missing"):
        with pytest.raises(HoldfastError, match=f"{name} cannot be read: "):
            Sources((), [str(name)], lines=False, framed=False).check()


def test_a_named_pipe_is_left_alone_until_it_is_read(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    Sources((), [str(path)], lines=False, framed=False).check()


@pytest.mark.parametrize(("messages", "files"), [(("a", ""), []), ((), ["-", "-"])])
def test_what_makes_no_sense_is_refused(messages, files):
    with pytest.raises(SettingsError):
        Sources(messages, files, lines=False, framed=False)


def test_how_much_there_is(tmp_path):
    path = tmp_path / "input"
    path.write_bytes(b"12345")
    assert Sources((), [str(path)] * 2, lines=False, framed=False).total_bytes == 10
    assert Sources((), [str(path), "-"], lines=False, framed=False).total_bytes is None
    assert Sources(("a",), [], lines=False, framed=False).total_bytes is None


def test_how_much_there_is_in_a_file_that_stdin_is(tmp_path):
    path = tmp_path / "input"
    path.write_bytes(b"12345")
    kept, file = os.dup(0), os.open(path, os.O_RDONLY)
    try:
        os.dup2(file, 0)
        assert Sources((), [], lines=False, framed=False).total_bytes == 5
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(file)
