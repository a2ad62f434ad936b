"""What scenarios are made of: commands for the adapter, and what goes on around it meanwhile.

A step is a function of the `Run` it is part of. Streams have short names within a scenario, which
become paths of their own. `keep` remembers where a result has left the stream: `at` reads from
there, and `unless_since` appends only while it is still so.
"""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import httpx

from tests.conformance.client.driver import AdapterProcess
from tests.conformance.client.fault_front import Fault, FaultFront, Request

TEXT = "text/plain"
JSON = "application/json"
OCTETS = "application/octet-stream"

Expected = dict[str, Any]
Producer = tuple[str, int, int]


@dataclass
class Run:
    """One scenario under way."""

    adapter: AdapterProcess
    # A second one, for what happens while the first waits.
    other: AdapterProcess
    front: FaultFront
    streams_url: str
    kept: dict[str, str] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    token: str = field(default_factory=lambda: uuid4().hex)

    def path(self, stream: str) -> str:
        return f"/{self.token}-{stream}"

    def url(self, stream: str) -> str:
        return self.streams_url + self.path(stream)

    def asked_path(self, stream: str) -> str:
        """The path as it arrives at the front."""
        return httpx.URL(self.url(stream)).path

    def requests(self, stream: str, method: str) -> list[Request]:
        return [each for each in self.front.seen(self.asked_path(stream)) if each.method == method]


Step = Callable[[Run], None]


@dataclass(frozen=True)
class Scenario:
    """What it shows, the upstream cases with that behaviour, and how."""

    shows: str
    covers: str
    steps: list[Step]


def command(
    kind: str, stream: str = "s", *, gives: Expected | None = None, keep: str = "", **fields: Any
) -> Step:
    """Any command of the adapter."""

    def step(run: Run) -> None:
        sent = {"type": kind, "path": run.path(stream), **_resolved(run, fields)}
        result = run.adapter.call(sent)
        check(result, gives or {})
        if keep:
            run.kept[keep] = result["offset"]
            run.etags[keep] = result.get("headers", {}).get("etag", "")

    return step


def create(content_type: str = TEXT, stream: str = "s", **options: Any) -> Step:
    return command("create", stream, contentType=content_type, **options)


def append(data: str | bytes, stream: str = "s", **options: Any) -> Step:
    producer: Producer | None = options.pop("producer", None)
    if producer is not None:
        names = ("producerId", "producerEpoch", "producerSeq")
        options |= dict(zip(names, producer, strict=True))
    return command("append", stream, **_data(data), **options)


def appends(*data: str, stream: str = "s", kept: str = "") -> Step:
    """Several appends; the offset behind each is kept as `after-1`, `after-2` and so on."""
    return each_of(
        *(append(each, stream, keep=f"{kept}after-{n}") for n, each in enumerate(data, 1))
    )


def read(live: Any = None, stream: str = "s", **options: Any) -> Step:
    return command("read", stream, **_read_fields(live, options))


def close(data: str | None = None, **options: Any) -> Step:
    return command("close", **({} if data is None else {"data": data}), **options)


def produce(data: str | bytes, producer: str = "p", **options: Any) -> Step:
    return command("idempotent-append", producerId=producer, **_data(data), **options)


def produce_all(items: list[str], producer: str = "p", **options: Any) -> Step:
    return command("idempotent-append-batch", producerId=producer, items=items, **options)


def produce_close(data: str | None = None, producer: str = "p", **options: Any) -> Step:
    fields = {} if data is None else {"data": data}
    return command("idempotent-close", producerId=producer, **fields, **options)


def each_of(*steps: Step) -> Step:
    def step(run: Run) -> None:
        for each in steps:
            each(run)

    return step


def while_reading(
    live: Any,
    *steps: Step,
    gives: Expected,
    stream: str = "s",
    waits_by: str = "",
    **options: Any,
) -> Step:
    """Steps while a live read waits. The other adapter carries their commands out."""

    def step(run: Run) -> None:
        fields = _resolved(run, _read_fields(live, {"maxChunks": 1, "timeoutMs": 10_000} | options))
        run.adapter.send({"type": "read", "path": run.path(stream), **fields})
        waits = waits_by or ("sse" if live is True else live)
        run.front.wait_until_live(run.asked_path(stream), waits)
        aside = replace(run, adapter=run.other, other=run.adapter)
        try:
            for each in steps:
                each(aside)
        finally:
            result = run.adapter.result()
        check(result, gives)

    return step


def by_other(*steps: Step) -> Step:
    """Steps of another session, which knows nothing of the first one."""

    def step(run: Run) -> None:
        aside = replace(run, adapter=run.other, other=run.adapter)
        for each in steps:
            each(aside)

    return step


def fault(stream: str = "s", **what: Any) -> Step:
    return lambda run: run.front.inject(run.asked_path(stream), Fault(**what))


def sent_in_all(method: str, count: int, stream: str = "s") -> Step:
    def step(run: Run) -> None:
        assert len(run.requests(stream, method)) == count

    return step


def last_had(method: str, header: str, value: str, stream: str = "s") -> Step:
    def step(run: Run) -> None:
        assert run.requests(stream, method)[-1].headers[header.lower()] == value

    return step


def last_asked_for(method: str, parameter: str, stream: str = "s") -> Step:
    def step(run: Run) -> None:
        asked = run.requests(stream, method)[-1].query.split("&")
        assert any(each.startswith(parameter) for each in asked)

    return step


def ordered(*names: str) -> Step:
    """Offsets that were kept grow in this order."""

    def step(run: Run) -> None:
        offsets = [run.kept[name] for name in names]
        assert offsets == sorted(set(offsets))

    return step


def equal(one: str, other: str) -> Step:
    def step(run: Run) -> None:
        assert run.kept[one] == run.kept[other]

    return step


def check(result: dict[str, Any], expected: Expected) -> None:
    """Compare a result with what is expected of it: success, unless an error is."""
    fails = "errorCode" in expected or expected.get("status", 200) >= 400
    assert result["success"] is not fails, result
    seen = _observed(result)
    for name, value in expected.items():
        if name in {"contains", "says"}:
            text = seen["data"] if name == "contains" else seen["message"].lower()
            assert [each for each in value if each not in text] == [], result
        else:
            assert seen.get(name) == value, (name, result)


def _observed(result: dict[str, Any]) -> dict[str, Any]:
    chunks = result.get("chunks", [])
    seen = {
        "data": "".join(chunk["data"] for chunk in chunks),
        "chunkCount": len(chunks),
        "binary": any(chunk.get("binary") for chunk in chunks),
        "hasOffset": bool(result.get("offset")),
    }
    return seen | result


def _resolved(run: Run, fields: dict[str, Any]) -> dict[str, Any]:
    resolved = {name: value for name, value in fields.items() if name not in {"at", "unless_since"}}
    if "at" in fields:
        resolved["offset"] = run.kept[fields["at"]]
    if "unless_since" in fields:
        resolved["ifMatch"] = run.etags[fields["unless_since"]]
    return resolved


def _read_fields(live: Any, options: dict[str, Any]) -> dict[str, Any]:
    return options if live is None else {"live": live, **options}


def _data(data: str | bytes) -> dict[str, Any]:
    if isinstance(data, bytes):
        return {"data": b64encode(data).decode(), "binary": True}
    return {"data": data}


def base64(data: bytes) -> str:
    return b64encode(data).decode()
