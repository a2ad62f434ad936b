"""Data that a real server has flushed and merged, and `holdfast check` run over copies of it."""

import json
import os
import shutil
import subprocess
import time
from contextlib import closing, redirect_stderr, redirect_stdout
from io import StringIO

import httpx
import pytest

from holdfast.cli.main import main
from holdfast.storage.catalog import Catalog
from tests.cli.own_logging import own_logging
from tests.http.streams import JSON, Stream, producer
from tests.server_process import COMMAND, ServerProcess

SETTINGS = {
    "hot_bytes_soft": 3000,
    "hot_bytes_hard": 10_000_000,
    "merge_packs": 3,
    "wal_ballast_bytes": 0,
}
ROUNDS = 8
DEADLINE_S = 20.0
HEADERS = ("Content-Type", "Stream-Next-Offset", "ETag", "Stream-Closed", "Stream-TTL")


def check(data_dir, *arguments, failpoints=""):
    """Run the command; `found` of what it returns is its JSON, if it was to print some."""
    words = ["check", "--data-dir", str(data_dir), *arguments]
    run = _killed(words, failpoints) if failpoints else _run_here(words)
    assert "Traceback" not in run.stderr, run.stderr
    run.found = json.loads(run.stdout) if "--json" in arguments and run.stdout else None
    return run


def _run_here(words):
    """Run it in this process, where only what it prints and returns matters."""
    stdout, stderr = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        for name in os.environ:
            if name.startswith("HOLDFAST_"):
                patch.delenv(name)
        with own_logging():
            status = main(words)
    return subprocess.CompletedProcess(words, status, stdout.getvalue(), stderr.getvalue())


def _killed(words, failpoints):
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return subprocess.run(
        [COMMAND[0], *words],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        env=env | {"HOLDFAST_FAILPOINTS": failpoints},
    )


def places(found):
    return {each["where"] for each in found}


def make(data_dir, **settings):
    """Fill a data directory; what its streams look like to a client in the end."""
    with ServerProcess(data_dir, **SETTINGS, **settings) as server:
        with httpx.Client(base_url=server.url) as client:
            write(client, data_dir)
            settle(data_dir)
            keep_something_in_the_log(client, data_dir)
            return look(client)


def write(client, data_dir):
    """Rounds of writes, each enough for a flush, which is waited for."""
    for name in ("a", "b", "c/d", "gone", "back"):
        Stream(client, f"demo/{name}").create(f"start of {name};".encode())
    for name in ("json/1", "json/2", "gone too"):
        Stream(client, f"demo/{name}", JSON).create(b'[{"n":0}]')
    Stream(client, "demo/ttl").create(b"short lived", stream_ttl="3600")
    Stream(client, "demo/empty").create()
    for turn in range(ROUNDS):
        flushed = flushed_of(data_dir)
        for name in ("a", "b", "c/d", "back"):
            text = Stream(client, f"demo/{name}")
            text.append(f"{name} in turn {turn};".encode() * 20)
        for name in ("json/1", "json/2"):
            Stream(client, f"demo/{name}", JSON).append(b'[{"n":%d},[],"x"]' % turn)
        produced = Stream(client, "demo/a").append(b"produced;", **producer(turn, epoch=2))
        assert produced.status_code == 200
        if turn == 3:
            Stream(client, "demo/gone").delete()
            Stream(client, "demo/gone too", JSON).delete()
            Stream(client, "demo/back").delete()
            Stream(client, "demo/back", JSON).create(b"[1]")
        if turn == 4:
            closing_append = Stream(client, "demo/b").append(
                b"the end", stream_closed="true", **producer(0)
            )
            assert closing_append.status_code == 200
        wait_until(lambda before=flushed: flushed_of(data_dir) > before)


def wait_until(happened):
    deadline = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def settle(data_dir):
    """Wait until the storage process has nothing left to do."""
    seen = []

    def is_calm():
        time.sleep(0.1)
        with closing(Catalog(data_dir / "catalog.sqlite")) as catalog:
            seen.append(catalog.totals())
        return seen[-5:].count(seen[-1]) == 5

    wait_until(is_calm)
    assert seen[-1].packs >= 1
    assert seen[-1].retired_packs >= 2


def keep_something_in_the_log(client, data_dir):
    """Write until something is not flushed at once."""
    for turn in range(10):
        flushed = flushed_of(data_dir)
        Stream(client, "demo/c/d").append(b"late %d;" % turn)
        time.sleep(0.2)
        if flushed_of(data_dir) == flushed:
            return
    raise AssertionError("everything is flushed at once")


def flushed_of(data_dir):
    with closing(Catalog(data_dir / "catalog.sqlite")) as catalog:
        return catalog.flushed


def look(client):
    """Every stream as a client sees it, and that what is gone is gone."""
    seen = {}
    for name in ("a", "b", "c/d", "gone", "back", "json/1", "json/2", "gone too", "ttl", "empty"):
        stream = Stream(client, f"demo/{name}")
        head, body = stream.head(), stream.read("-1")
        assert head.status_code == body.status_code, body.text
        headers = {header: head.headers.get(header) for header in HEADERS}
        seen[name] = (head.status_code, headers, body.content if head.is_success else b"")
    assert [name for name, (status, *_) in seen.items() if status == 404] == ["gone", "gone too"]
    return seen


def check_streams_of(data_dir, expected, **settings):
    """Start a server over the data: every stream is as it was, and so is what protects it."""
    with ServerProcess(data_dir, **SETTINGS, **settings) as server:
        with httpx.Client(base_url=server.url) as client:
            assert look(client) == expected
            text = Stream(client, "demo/a")
            duplicate = text.append(b"produced;", **producer(ROUNDS - 1, epoch=2))
            assert duplicate.status_code == 204
            assert text.append(b"stale", **producer(0, epoch=1)).status_code == 403
            assert text.append(b"next;", **producer(ROUNDS, epoch=2)).status_code == 200
            closed = Stream(client, "demo/b")
            assert closed.append(b"more").status_code == 409
            again = closed.append(b"the end", stream_closed="true", **producer(0))
            assert again.status_code == 204
            assert text.read("-1").content == expected["a"][2] + b"next;"


def copy(made, directory):
    """A copy to damage."""
    shutil.copytree(made, directory)
    return directory


def contents(directory):
    """Every file with its bytes, but the lock, which says who had it last."""
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
