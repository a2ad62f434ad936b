"""Creating, appending, closing, deleting: the same with every server of the protocol."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.client import Client, ProducerStamp
from holdfast.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    ProducerGapError,
    StreamClosedError,
    StreamNotFoundError,
)
from tests.client.collecting import payloads
from tests.client.conftest import MakeStream
from tests.client.targets import BINARY, JSON, TEXT, Target, new_name

pytestmark = pytest.mark.anyio


async def test_a_stream_is_created_once(client: Client) -> None:
    stream = client.stream(new_name())
    first, again = await stream.create(TEXT), await stream.create(TEXT)
    assert first.created
    assert not again.created
    assert first.content_type == again.content_type == TEXT
    assert first.next_offset == again.next_offset
    assert not first.closed
    with pytest.raises(ConflictError):
        await stream.create(JSON)


async def test_a_stream_is_created_with_its_content(client: Client) -> None:
    stream = client.stream(new_name())
    created = await stream.create(JSON, messages=[1, [2], "three"], closed=True)
    assert created.created
    assert created.closed
    assert await stream.read().read_json() == [1, [2], "three"]
    assert (await stream.head()).closed


@pytest.mark.parametrize(
    ("content_type", "appended"),
    [
        (TEXT, ["one", "zwei, 三 und 😀", "line\nbreaks\n\n"]),
        (BINARY, [b"\x00", bytes(range(256)), bytearray(b"\xff\xfe"), memoryview(b"\r\n")]),
        (JSON, [None, True, 1.5, "text", {"a": {"b": []}}, [], [1, [2]], "ü😀\u2028"]),
    ],
)
async def test_what_is_appended_comes_back(
    new_stream: MakeStream, content_type: str, appended: list[object]
) -> None:
    stream = await new_stream(content_type)
    offsets = [(await stream.append(each)).next_offset for each in appended]
    assert sorted(set(offsets)) == offsets
    assert (await stream.head()).next_offset == offsets[-1]
    if content_type == JSON:
        assert [message.json async for message in stream.read()] == appended
        assert await stream.read().read_json() == appended
    elif content_type == TEXT:
        assert "".join([message.text async for message in stream.read()]) == "".join(appended)
        assert await stream.read().read_text() == "".join(appended)
    else:
        assert b"".join(await payloads(stream)) == b"".join(appended)
        assert await stream.read().read_bytes() == b"".join(appended)


async def test_the_content_type_is_asked_for_where_it_is_not_known(
    client: Client, new_stream: MakeStream
) -> None:
    created = await new_stream(JSON)
    stream = client.stream(created.name)
    await stream.append({"a": 1})
    assert stream.content_type == JSON
    assert await stream.read().read_json() == [{"a": 1}]


async def test_arrays_stay_single_messages(new_stream: MakeStream) -> None:
    stream = await new_stream(JSON)
    await stream.append([1, 2])
    await stream.append_many([[3], 4, [[5]]])
    await stream.append(b"[6, 7]")
    assert [message.json async for message in stream.read()] == [[1, 2], [3], 4, [[5]], [6, 7]]


async def test_many_text_messages_in_one_request_become_one(new_stream: MakeStream) -> None:
    stream = await new_stream(TEXT)
    await stream.append_many(["a", "b", "c"])
    assert await payloads(stream) == [b"abc"]


async def test_all_names_can_be_used(client: Client, target: Target) -> None:
    endings = ["ü/名前/😀", "a b+c%2Fd", "q?x=1&y#z", "semi;colon,comma", "%", "'\"<>\\^`{|}"]
    for ending in endings:
        stream = client.stream(new_name(f"/{ending}"))
        assert (await stream.create(TEXT, messages=[ending])).created
        await stream.append("!")
        assert await stream.read().read_text() == f"{ending}!"
        by_url = client.stream(stream.url)
        assert await by_url.read().read_text() == f"{ending}!"


@pytest.mark.spec("base 5.6-8")
async def test_close(new_stream: MakeStream) -> None:
    stream = await new_stream(TEXT)
    await stream.append("last")
    closed = await stream.close()
    assert closed.closed
    assert (await stream.close()).next_offset == closed.next_offset
    head = await stream.head()
    assert head.closed
    assert head.next_offset == closed.next_offset
    with pytest.raises(StreamClosedError) as raised:
        await stream.append("more")
    assert raised.value.status == 409
    reading = stream.read()
    assert await reading.read_text() == "last"
    assert reading.closed


async def test_append_and_close_in_one_step(new_stream: MakeStream) -> None:
    stream = await new_stream(JSON)
    assert (await stream.append({"n": 1}, close=True)).closed
    with pytest.raises(StreamClosedError):
        await stream.append(2)
    assert await stream.read().read_json() == [{"n": 1}]


async def test_delete(client: Client, new_stream: MakeStream) -> None:
    stream = await new_stream(TEXT, messages=["x"])
    await stream.delete()
    for refused in (stream.head(), stream.append("y"), stream.delete(), stream.close()):
        with pytest.raises(StreamNotFoundError):
            await refused
    with pytest.raises(StreamNotFoundError):
        await stream.read().read_text()
    assert (await client.stream(stream.name).create(JSON)).created


async def test_a_name_is_used_again_with_another_type(
    client: Client, new_stream: MakeStream
) -> None:
    stream = await new_stream(TEXT)
    other = client.stream(stream.name)
    await other.delete()
    await other.create(JSON)
    with pytest.raises(ConflictError):
        await stream.append("text")
    await stream.append({"now": "known"})
    assert await stream.read().read_json() == [{"now": "known"}]


async def test_ttl(client: Client) -> None:
    lasting, passing = client.stream(new_name()), client.stream(new_name())
    await lasting.create(TEXT, ttl_s=3600)
    await passing.create(TEXT, ttl_s=1)
    assert (await lasting.head()).ttl_s == 3600
    with pytest.raises(ConflictError):
        await lasting.create(TEXT, ttl_s=60)

    async def watch() -> None:
        while True:  # HEAD does not renew it
            await passing.head()
            await asyncio.sleep(0.05)

    with pytest.raises(NotFoundError):
        await watch()


async def test_expiry(client: Client) -> None:
    stream = client.stream(new_name())
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    await stream.create(TEXT, expires_at=later)
    expires_at = (await stream.head()).expires_at
    assert expires_at is not None
    assert datetime.fromisoformat(expires_at) == datetime.fromisoformat(later)


async def test_stream_seq_must_increase(new_stream: MakeStream) -> None:
    stream = await new_stream(TEXT)
    await stream.append("a", seq="001")
    await stream.append("b", seq="002")
    for seq in ("002", "001"):
        with pytest.raises(ConflictError):
            await stream.append("c", seq=seq)
    assert await stream.read().read_text() == "ab"


async def test_appends_with_numbers_of_their_own(new_stream: MakeStream) -> None:
    stream = await new_stream(TEXT)
    first = await stream.append("a", producer=ProducerStamp("me", 0, 0))
    again = await stream.append("a", producer=ProducerStamp("me", 0, 0))
    second = await stream.append("b", producer=ProducerStamp("me", 0, 1))
    assert (first.duplicate, again.duplicate, second.duplicate) == (False, True, False)
    assert second.producer_seq == 1
    with pytest.raises(ProducerGapError) as raised:
        await stream.append("d", producer=ProducerStamp("me", 0, 3))
    assert (raised.value.expected, raised.value.received) == (2, 3)
    assert await stream.read().read_text() == "ab"


async def test_errors_have_the_same_classes_everywhere(
    client: Client, new_stream: MakeStream
) -> None:
    missing = client.stream(new_name(), content_type=TEXT)
    with pytest.raises(StreamNotFoundError) as raised:
        await missing.append("x")
    assert raised.value.status == 404
    assert str(raised.value).endswith(".")
    stream = await new_stream(TEXT, messages=["x"])
    with pytest.raises(InvalidRequestError):
        await stream.read("no offset").read_bytes()
    with pytest.raises(InvalidRequestError):
        await stream.post(b"", TEXT)
    with pytest.raises(ConflictError):
        await stream.post(b"{}", JSON)
    with pytest.raises(InvalidRequestError):
        await (await new_stream(JSON)).append(b"no JSON")
    with pytest.raises(InvalidRequestError):
        await client.stream(new_name()).create(TEXT, ttl_s=-1)
    with pytest.raises(StreamNotFoundError):
        await anext(aiter(missing.read(live="sse")))
