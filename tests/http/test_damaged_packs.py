"""Packs that are damaged or gone: an error and a line in the log that name them, no wrong byte."""

import pytest

from tests.http.cold import IDLE
from tests.http.streams import JSON, TEXT, Stream, check_error
from tests.server_process import ServerProcess
from tests.storage_stats import flush, metrics

BODY = b"a message that is looked for in the pack"


class Damage:
    """A server with two streams in one pack, one of which is to be damaged."""

    def __init__(self, server: ServerProcess, stream_on, content_type: str = TEXT) -> None:
        self.server = server
        body = b'"%b"' % BODY if content_type == JSON else BODY
        self.stream: Stream = stream_on(server, content_type, body)
        self.other: Stream = stream_on(server, TEXT, b"another one")
        flush(self.stream.client)
        flush(self.other.client)
        (self.pack,) = (server.data_dir / "objects" / "packs").glob("*.pack")
        self.sound = self.pack.read_bytes()
        assert self.sound.count(BODY) == 1

    def flip(self, at: int) -> None:
        """Change one bit."""
        data = bytearray(self.sound)
        data[at] ^= 1
        self.pack.write_bytes(data)

    def mend(self) -> None:
        """Have the pack as it was."""
        self.pack.write_bytes(self.sound)

    def check_named(self) -> None:
        """The server's log says which pack it is."""
        assert f"packs/{self.pack.name}" in self.server.stderr()


@pytest.fixture
def damage(start_server, stream_on) -> Damage:
    return Damage(start_server(**IDLE), stream_on)


@pytest.mark.parametrize("place", ["first byte", "last byte"])
def test_flipped_bit(damage: Damage, place: str) -> None:
    at = damage.sound.index(BODY)
    damage.flip(at if place == "first byte" else at + len(BODY) - 1)
    answer = damage.stream.read()
    check_error(answer, 500, "pack_corrupt", damage.pack.name)
    assert BODY[1:-1] not in answer.content
    check_error(damage.stream.read(f"{5:020d}", max_bytes=3), 500, "pack_corrupt")
    check_error(damage.stream.long_poll("-1"), 500, "pack_corrupt")
    damage.check_named()
    # What lies beside it is sound, and so is what is written from now on.
    assert damage.other.read().content == b"another one"
    tail = damage.stream.tail()
    assert damage.stream.append(b"new").status_code == 204
    assert damage.stream.read(tail).content == b"new"
    damage.mend()
    assert damage.stream.read().content == BODY + b"new"


@pytest.mark.parametrize("content_type", [TEXT, JSON])
def test_event_stream_has_no_wrong_byte(start_server, stream_on, content_type: str) -> None:
    damage = Damage(start_server(**IDLE), stream_on, content_type)
    damage.flip(damage.sound.index(BODY) + 3)
    answer = damage.stream.get({"offset": "-1", "live": "sse"})
    check_error(answer, 500, "pack_corrupt", damage.pack.name)
    damage.check_named()


def test_damage_further_on_ends_an_event_stream(start_server, stream_on) -> None:
    """What is sound before it is sent; the client comes back where that ended, and is told why."""
    server = start_server(**IDLE)
    stream = stream_on(server, body=b"sound")
    flush(stream.client)
    (sound,) = (server.data_dir / "objects" / "packs").glob("*.pack")
    stream.append(BODY)
    flush(stream.client)
    (pack,) = {*(server.data_dir / "objects" / "packs").glob("*.pack")} - {sound}
    data = bytearray(pack.read_bytes())
    data[data.index(BODY)] ^= 1
    pack.write_bytes(data)
    with stream.sse(max_bytes=5) as events:
        event, control = events
    assert event.data == "sound"
    offset = control.json["streamNextOffset"]
    check_error(stream.get({"offset": offset, "live": "sse"}), 500, "pack_corrupt", pack.name)
    assert pack.name in server.stderr()


def test_flipped_bit_in_the_message_index(damage: Damage) -> None:
    """Where a read has to be cut the index says where."""
    at = damage.sound.index(len(BODY).to_bytes(4, "little"), damage.sound.index(BODY))
    damage.flip(at)
    check_error(damage.stream.read(max_bytes=7), 500, "pack_corrupt", damage.pack.name)
    damage.check_named()
    assert damage.stream.read().content == BODY
    damage.mend()
    assert damage.stream.read(max_bytes=7).content == BODY[:7]


def test_pack_cut_short(damage: Damage) -> None:
    damage.pack.write_bytes(damage.sound[: damage.sound.index(BODY) + 4])
    check_error(damage.stream.read(), 500, "pack_corrupt", damage.pack.name)
    damage.check_named()


def test_pack_removed_by_hand(damage: Damage) -> None:
    damage.pack.unlink()
    check_error(damage.stream.read(), 500, "object_missing", damage.pack.name)
    check_error(damage.other.long_poll("-1"), 500, "object_missing", damage.pack.name)
    assert damage.stream.head().status_code == 200
    assert damage.stream.append(b"new").status_code == 204
    assert metrics(damage.stream.client)["holdfast_cold_fetch_failures_total"] >= 2
    damage.check_named()
    damage.mend()
    assert damage.stream.read().content == BODY + b"new"


def test_damaged_pack_is_not_merged_away(start_server, stream_on) -> None:
    """Merging leaves it alone, and goes on without it."""
    server = start_server(merge_packs=2, block_cache_bytes=0)
    packs = server.data_dir / "objects" / "packs"
    stream = stream_on(server, body=BODY)
    flush(stream.client)
    (pack,) = packs.glob("*.pack")
    data = bytearray(pack.read_bytes())
    data[data.index(BODY)] ^= 1
    pack.write_bytes(data)
    for _ in range(4):
        stream.append(b"more")
        flush(stream.client)
    check_error(stream.read(), 500, "pack_corrupt", pack.name)
    assert stream.read(f"{len(BODY):020d}").content == b"more" * 4
    assert pack.exists()
    data[data.index(BODY[1:]) - 1] ^= 1
    pack.write_bytes(data)
    assert stream.read().content == BODY + b"more" * 4
