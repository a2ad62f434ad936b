"""What jobs ask about packs: which are in use, what is in them, their bytes."""

import json

import pytest

from holdfast.format.packs import block_sums, checksum
from tests.http.bucketed import new_bucket, new_stream_in, offset
from tests.http.cold import IDLE
from tests.http.streams import JSON, check_error
from tests.storage_stats import flush, metrics, until


def lines(client, path: str, **query: object) -> list[dict[str, object]]:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.content.splitlines()]


@pytest.fixture
def filled(start_server, client_of):
    """A server with one pack: a text stream, of which a part is trimmed, and a JSON stream."""
    server = start_server(**IDLE)
    client = client_of(server)
    bucket = new_bucket(client)
    text = new_stream_in(bucket, client, b"12345", b"678", stream_id="text")
    new_stream_in(bucket, client, b"[1,22]", stream_id="json", content_type=JSON)
    text.publish(offset(5))
    flush(client)
    return server, client, bucket


def test_store(filled) -> None:
    server, client, bucket = filled
    marker = json.loads((server.data_dir / "objects" / "holdfast-store.json").read_text())
    assert client.get("/cluster/store").json() == {
        "store": (server.data_dir / "objects").absolute().as_uri(),
        "store_id": marker["id"],
        "flushed": client.get(f"/{bucket}/streams/changes?after=now").json()["next_cursor"],
    }


def test_packs(filled) -> None:
    server, client, _ = filled
    (pack,) = lines(client, "/cluster/packs")
    path = server.data_dir / "objects" / pack.pop("name")
    after, through, salt = path.stem.split("-")
    assert (pack.pop("after"), pack.pop("through")) == (int(after, 16), int(through, 16))
    assert pack.pop("salt") == salt
    assert pack.pop("size_bytes") == path.stat().st_size
    assert pack.pop("created_ms") > 0
    assert pack == {
        "data_bytes": 13,
        "dead_bytes": 0,
        "messages": 4,
        "rows": 2,
        "has_delta": True,
        "superseded": [],
    }


def test_extents_can_be_read_and_verified_through_the_server(filled) -> None:
    _, client, bucket = filled
    (pack,) = lines(client, "/cluster/packs")
    salt = int(pack["salt"], 16)
    lengths_at = 16 + pack["data_bytes"] + 7 & ~7
    found = {}
    for each in lines(client, "/cluster/packs/extents", pack=pack["name"]):

        def part(at: int, size: int) -> bytes:
            query = {"pack": pack["name"], "at": at, "size": size}
            answer = client.get("/cluster/packs/data", params=query)
            assert answer.status_code == 200, answer.text
            assert answer.headers["Content-Type"] == "application/octet-stream"
            return answer.content

        data = part(each.pop("data_at"), each["length"])
        assert block_sums(data, salt).tobytes().hex() == each.pop("sums")
        index = part(lengths_at + 4 * each.pop("message_at"), 4 * each["messages"])
        assert checksum(index, salt).to_bytes(8, "little").hex() == each.pop("index_sum")
        assert 0 < each.pop("first_position") <= each.pop("last_position")
        assert each.pop("stream") > 0
        found[each.pop("name")] = data, each
    assert found == {
        f"{bucket}/text": (
            b"12345678",
            {
                "start": 0,
                "length": 8,
                "messages": 2,
                "needed_from": 5,
                "json": False,
                "tail": 8,
            },
        ),
        f"{bucket}/json": (
            b"1\x1e22\x1e",
            {"start": 0, "length": 5, "messages": 2, "needed_from": 0, "json": True, "tail": 5},
        ),
    }


def test_part_past_the_end_is_shorter(filled) -> None:
    server, client, _ = filled
    (pack,) = lines(client, "/cluster/packs")
    whole = (server.data_dir / "objects" / pack["name"]).read_bytes()
    query = {"pack": pack["name"], "at": len(whole) - 5, "size": 100}
    assert client.get("/cluster/packs/data", params=query).content == whole[-5:]
    query["at"] = len(whole) + 5
    assert client.get("/cluster/packs/data", params=query).content == b""


def test_merged_packs_are_superseded(start_server, client_of) -> None:
    client = client_of(start_server(**IDLE | {"merge_packs": 2}))
    bucket = new_bucket(client)
    stream = new_stream_in(bucket, client, b"1", stream_id="a")
    flush(client)
    (first,) = lines(client, "/cluster/packs")
    stream.append(b"2")
    flush(client)
    until(lambda: metrics(client)["holdfast_merges_total"] >= 1)
    (merged,) = lines(client, "/cluster/packs")
    assert first["name"] in merged["superseded"]
    assert len(merged["superseded"]) == 2
    gone = client.get("/cluster/packs/extents", params={"pack": first["name"]})
    check_error(gone, 404, "not_found")
    assert gone.json()["error"]["message"] == f"The pack '{first['name']}' is not in use."
    # Its object is still there.
    query = {"pack": first["name"], "at": 0, "size": 6}
    assert client.get("/cluster/packs/data", params=query).content == b"HFPACK"


@pytest.mark.parametrize(
    "name",
    [
        "packs/none.pack",
        "packs/../holdfast-store.json",
        "holdfast-store.json",
        "packs/",
        "packs/a.pack/../../holdfast-store.json",
        "packs/.pack\n",
        f"packs/{'x' * 300}.pack",
        "/etc/passwd",
        "",
    ],
)
@pytest.mark.parametrize("below", ["extents", "data"])
def test_what_is_no_pack_is_404(client, name, below) -> None:
    query = {"pack": name, "at": 0, "size": 10}
    check_error(client.get(f"/cluster/packs/{below}", params=query), 404, "not_found")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("extents", "The parameter 'pack' is needed."),
        ("data?at=0&size=1", "The parameter 'pack' is needed."),
        ("data?pack=packs/a.pack&size=1", "The parameters 'at' and 'size' are needed."),
        ("data?pack=packs/a.pack&at=0", "The parameters 'at' and 'size' are needed."),
        (
            "data?pack=packs/a.pack&at=0&size=16777217",
            "The parameter 'size' takes a whole number from 1 to 16777216.",
        ),
        (
            "data?pack=packs/a.pack&at=0&size=0",
            "The parameter 'size' takes a whole number from 1 to 16777216.",
        ),
        ("data?pack=packs/a.pack&at=-1&size=1", "The parameter 'at' takes a whole number from 0"),
    ],
)
def test_malformed_request_is_400(client, path, words) -> None:
    answer = client.get(f"/cluster/packs/{path}")
    check_error(answer, 400, "invalid_request")
    assert words in answer.json()["error"]["message"]


def test_server_in_memory_has_no_packs(start_server, client_of) -> None:
    client = client_of(start_server(durability="memory"))
    for path in ("store", "packs", "packs/extents?pack=packs/a.pack", "packs/data"):
        check_error(client.get(f"/cluster/{path}"), 404, "not_found")
