"""A server whose streams are in many packs, and what a client sees of them."""

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import httpx

from holdfast.spark.connection import SparkConnection
from tests.http.bucketed import BucketStream, new_bucket, new_stream_in, offset
from tests.http.streams import JSON
from tests.server_process import COMMAND, ServerProcess
from tests.storage_stats import flush

# Nothing is merged or removed by itself.
STILL = {"merge_packs": 1000, "block_cache_bytes": 0, "wal_ballast_bytes": 0}
DEADLINE_S = 30.0
LARGE = b"0123456789abcdef" * 200_000


class Stored:
    """A server of its own with one bucket."""

    def __init__(self, data_dir: Path, **settings: object) -> None:
        self.data_dir = data_dir
        self._stack = ExitStack()
        self.start(**settings)
        self.bucket = new_bucket(self.client)

    @property
    def connection(self) -> SparkConnection:
        return SparkConnection(self.server.url, retries=2)

    @property
    def objects(self) -> Path:
        return self.data_dir / "objects"

    def stream(self, stream_id: str, content_type: str = "text/plain") -> BucketStream:
        return BucketStream(self.client, self.bucket, stream_id, content_type)

    def fill(self, rounds: int = 6) -> None:
        """A pack for each round; some streams grow, one is trimmed, one is forked, some go."""
        for name in ("text", "trimmed", "gone", "forked"):
            new_stream_in(self.bucket, self.client, b"start;", stream_id=name)
        new_stream_in(self.bucket, self.client, b"[0]", stream_id="json", content_type=JSON)
        for turn in range(rounds):
            for name in ("text", "trimmed", "gone", "forked"):
                self.append(name, f"{name} in turn {turn};".encode() * 20)
            self.append("json", b'[{"turn":%d},"x"]' % turn, JSON)
            new_stream_in(self.bucket, self.client, b"short", stream_id=f"only-{turn}")
            if turn == rounds // 2:
                fork = self.stream("fork").fork(self.stream("forked"))
                assert fork.status_code == 201, fork.text
                self.append("fork", b"of its own")
            flush(self.client)
        self.delete("gone")
        self.delete("only-1")
        # In the middle of an extent.
        tail = self.stream("trimmed").tail()
        self.append("trimmed", b"the rest")
        self.publish("trimmed", tail)
        flush(self.client)

    def fill_large(self) -> None:
        """A stream in a pack of its own, most of which is dead."""
        new_stream_in(self.bucket, self.client, *[LARGE] * 5, stream_id="large")
        flush(self.client)
        assert any(not pack["has_delta"] for pack in self.packs())
        # Two messages make an extent, so one is dead and of another a half.
        self.publish("large", offset(3 * len(LARGE)))
        flush(self.client)

    def publish(self, name: str, at: str) -> None:
        answer = self.stream(name).publish(at)
        assert answer.status_code < 300, answer.text

    def append(self, name: str, body: bytes, content_type: str = "text/plain") -> None:
        answer = self.stream(name, content_type).append(body)
        assert answer.status_code == 204, answer.text

    def delete(self, name: str) -> None:
        assert self.stream(name).delete().status_code == 204

    def packs(self) -> list[dict[str, object]]:
        """The packs in use."""
        lines = self.client.get("/cluster/packs").content.splitlines()
        return [json.loads(line) for line in lines]

    def names(self) -> set[str]:
        return {str(pack["name"]) for pack in self.packs()}

    def stored(self) -> set[str]:
        """The packs in the store."""
        return {f"packs/{path.name}" for path in (self.objects / "packs").iterdir()}

    def contents(self) -> dict[str, bytes]:
        """Every stream, from its earliest offset to its tail."""
        listed = self.client.get(f"/{self.bucket}/streams").json()["streams"]
        return {each["stream_id"]: self._read(each["stream_id"]) for each in listed}

    def _read(self, stream_id: str) -> bytes:
        pages, at = b"", "-1"
        while True:
            page = self.stream(stream_id).read(at)
            if page.status_code == 410:
                at = page.headers["Stream-Earliest-Offset"]
                continue
            assert page.status_code == 200, page.text
            pages, at = pages + page.content, page.headers["Stream-Next-Offset"]
            if "Stream-Up-To-Date" in page.headers:
                return pages

    def check(self) -> dict[str, object]:
        """Stop the server, and have `holdfast check` look over what it leaves."""
        self.close()
        env = {name: value for name, value in os.environ.items() if not name.startswith("HOLD")}
        done = subprocess.run(
            [COMMAND[0], "check", "--json", "--data-dir", str(self.data_dir)],
            capture_output=True,
            check=False,
            timeout=60,
            env=env,
        )
        found = json.loads(done.stdout)
        assert done.returncode == 0, found
        return found

    def rebuild(self) -> None:
        """Forget the catalog, and have it made anew from the packs; the server is stopped."""
        for path in self.data_dir.glob("catalog.sqlite*"):
            path.unlink()
        done = subprocess.run(
            [COMMAND[0], "check", "--repair", "--data-dir", str(self.data_dir)],
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, **settings: object) -> None:
        """Start the server, or start it again."""
        self.server = self._stack.enter_context(ServerProcess(self.data_dir, **STILL | settings))
        client = httpx.Client(base_url=self.server.url, timeout=DEADLINE_S)
        self.client = self._stack.enter_context(client)

    def close(self) -> None:
        """Stop the server."""
        self._stack.close()
