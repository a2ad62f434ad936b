"""A job that scans a bucket: it reads packs from the store's directory, and the rest by HTTP."""

import base64
import json
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import msgspec

from holdfast.errors import ObjectMissingError
from holdfast.format.packs import PackStreams
from holdfast.format.rows import decode_row
from holdfast.objects.directory_objects import DirectoryObjects
from holdfast.objects.pack_reader import Pack
from tests.server_process import ServerProcess


class Message(NamedTuple):
    """One message of a scan; its number tells streams of one name apart."""

    stream_id: str
    stream: int
    offset: int
    # As stored: of a JSON stream with what separates it from the next.
    data: bytes
    position: int


class Scan:
    """What a plan says, and everything that it leads to."""

    def __init__(
        self, client: httpx.Client, server: ServerProcess, bucket: str, **query: str
    ) -> None:
        self._client = client
        self._path = f"/{bucket}/streams"
        self._store = DirectoryObjects(server.data_dir / "objects")
        self._query = query
        self.plan: dict[str, Any] = self._get("/scan", **query).json()
        assert self.plan["bucket_id"] == bucket

    @property
    def next_cursor(self) -> str:
        """Where the next scan, or the changes, go on."""
        return self.plan["next_cursor"]

    def messages(self, between: Callable[[], object] = lambda: None) -> list[Message]:
        """Everything; `between` is done when half of it is known, but nothing is read."""
        ranges = [(each, self.ranges(each)) for each in self.plan["partitions"]]
        between()
        found: list[Message] = []
        for partition, lines in ranges:
            found += self._read_partition(partition, lines)
        for part in self.plan["parts"]:
            found += self._read_part(part)
        return found + list(self.hot())

    def ranges(self, partition: dict[str, Any]) -> list[dict[str, Any]]:
        """Where the bytes of a partition are by now."""
        query = {
            "first": partition["first_stream_id"],
            "last": partition["last_stream_id"],
            "after": partition["after"],
            "until": partition["until"],
        }
        prefix = {name: self._query[name] for name in ("prefix",) if name in self._query}
        return self._lines("/scan/ranges", **query, **prefix)

    def hot(self) -> Iterator[Message]:
        """The messages that were not in packs when the plan was made."""
        for hot in self.plan["hot"]:
            query = {
                **{
                    name: self._query[name]
                    for name in ("prefix", "from_ms", "to_ms")
                    if name in self._query
                },
                "after": hot["after"],
                "until": hot["until"],
                "first": hot["first_stream_id"],
                "last": hot["last_stream_id"],
            }
            for line in self._lines("/records", **query):
                data = base64.b64decode(line["payload"])
                size = line["next_offset"] - line["offset"]
                assert size - len(data) == (1 if line["content_type"] == "application/json" else 0)
                data += b"\x1e" * (size - len(data))
                ids = line["stream_id"], line["stream"]
                yield Message(*ids, line["offset"], data, line["position"])

    def _read_part(self, part: dict[str, Any]) -> list[Message]:
        """Read a part from its packs, or from those that hold it by now."""
        packs = [self.plan["packs"][at]["name"] for at in part["packs"]]
        while True:
            try:
                return [message for pack in packs for message in self._read_pack(part, pack)]
            except ObjectMissingError:
                query = {"after": f"{part['after']}", "until": f"{part['until']}", "by": "packs"}
                packs = [each["name"] for each in self._get("/scan", **query).json()["packs"]]

    def _read_pack(self, part: dict[str, Any], name: str) -> Iterator[Message]:
        answer = self._client.get(self._path + "/scan/pack", params={"pack": name})
        if answer.status_code == 404:
            raise ObjectMissingError(name)
        assert answer.status_code == 200, answer.text
        streams = msgspec.msgpack.decode(answer.content, type=PackStreams)
        live = None if streams.live is None else set(array("Q", streams.live))
        visible = dict(
            zip(array("Q", streams.hidden), array("q", streams.visible_from), strict=True)
        )
        pack = Pack(self._store, name)
        rows = {number: decode_row(row) for number, row in pack.delta().items()}
        for extent in pack.directory():
            number = extent.stream
            if number in rows:
                bucket, _, stream_id = rows[number].meta.name.partition("/")
                if f"/{bucket}/streams" != self._path:
                    continue
            else:
                stream_id = streams.names.get(number, ("", ""))[0] or self._name(name, number)
            if not stream_id.startswith(self._query.get("prefix", "")):
                continue
            if live is not None and number not in live:
                continue
            data = self._store.read(name, extent.data_at, extent.length)
            index = pack.index().part(extent.message_at, extent.message_at + extent.messages)
            at = extent.start
            last = part["last"]
            for size, position in zip(index.lengths, index.positions, strict=True):
                if (
                    part["after"] < position <= part["until"]
                    and at >= visible.get(number, 0)
                    and [number, at] >= part["first"]
                    and (last is None or [number, at] < last)
                ):
                    inside = at - extent.start
                    yield Message(stream_id, number, at, data[inside : inside + size], position)
                at += size

    def _name(self, pack: str, number: int) -> str:
        """The name of a stream that has no row in the pack; empty if it is in another bucket."""
        answer = self._get("/scan/pack", pack=pack, numbers=str(number))
        streams = msgspec.msgpack.decode(answer.content, type=PackStreams)
        return streams.names.get(number, ("", ""))[0]

    def _read_partition(
        self, partition: dict[str, Any], lines: list[dict[str, Any]]
    ) -> list[Message]:
        while True:
            try:
                return [message for line in lines for message in self._read_range(partition, line)]
            except ObjectMissingError:
                # Merged away meanwhile.
                lines = self.ranges(partition)

    def _read_range(self, partition: dict[str, Any], line: dict[str, Any]) -> Iterator[Message]:
        after, until = int(partition["after"]), int(partition["until"])
        pack = Pack(self._store, line["pack"])
        (extent,) = [
            each
            for each in pack.directory()
            if (each.stream, each.start) == (line["stream"], line["offset"])
        ]
        assert extent.length == line["length"]
        positions = extent.first_position, extent.last_position
        assert positions == (line["first_position"], line["last_position"])
        data = self._store.read(line["pack"], extent.data_at, extent.length)
        index = pack.index().part(extent.message_at, extent.message_at + extent.messages)
        at = 0
        for size, position in zip(index.lengths, index.positions, strict=True):
            if after < position <= until and extent.start + at >= line["earliest"]:
                yield Message(
                    line["stream_id"],
                    line["stream"],
                    extent.start + at,
                    data[at : at + size],
                    position,
                )
            at += size

    def _lines(self, below: str, **query: str) -> list[dict[str, Any]]:
        answer = self._get(below, **query)
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.content.splitlines()]

    def _get(self, below: str, **query: str) -> httpx.Response:
        answer = self._client.get(self._path + below, params=query)
        assert answer.status_code == 200, answer.text
        return answer
