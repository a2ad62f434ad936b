"""Reading a proxy stream: with a signed URL, or as a service."""

import pytest

from tests.proxy.proxying import (
    PATH,
    SECRET,
    bytes_of,
    check_error,
    expired,
    frames_of,
    id_of,
)
from tests.upstreams import pattern


@pytest.fixture
def location(proxy, upstream) -> str:
    """A stream with one response that has ended."""
    location = proxy.created(upstream.url("/bytes", count=1000))
    proxy.frames(location)
    return location


@pytest.mark.spec("proxy 4.5-1", "proxy 4.5-6", "proxy 1.1-1", "proxy 1.1-2", "proxy 8.3-1")
def test_a_signed_url_gives_the_frames(proxy, location) -> None:
    answer = proxy.client.get(location)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["stream-up-to-date"] == "true"
    assert int(answer.headers["stream-next-offset"]) == len(answer.content)
    assert "stream-closed" not in answer.headers
    assert bytes_of(frames_of(answer.content)) == answer.content
    assert pattern(1000) in answer.content


@pytest.mark.spec("proxy 4.5-1", "proxy 10.2-1")
def test_services_need_no_signed_url(proxy, location) -> None:
    path = f"{PATH}/{id_of(location)}"
    whole = proxy.client.get(location).content
    assert proxy.client.get(path, headers=proxy.service).content == whole
    assert proxy.client.get(f"{path}?secret={SECRET}").content == whole
    lower = {"Authorization": f"bearer  {SECRET}"}
    assert proxy.client.get(path, headers=lower).content == whole


@pytest.mark.spec("proxy 10.2-1")
def test_services_may_have_any_url(proxy, location) -> None:
    """Service authentication is what is left if the URL will not do."""
    whole = proxy.client.get(location).content
    for url in (expired(location), f"{location}x", f"{location.partition('&')[0]}"):
        assert proxy.client.get(url, headers=proxy.service).content == whole
        assert proxy.client.get(f"{url}&secret={SECRET}").content == whole


def test_a_good_url_needs_no_good_secret(proxy, location) -> None:
    """A page may have an Authorization header for something else."""
    headers = {"Authorization": "Bearer of a gateway"}
    assert proxy.client.get(location, headers=headers).status_code == 200


@pytest.mark.spec("proxy 4.5-2", "proxy 4.5-4", "proxy 1.1-2")
def test_reads_start_at_any_byte(proxy, location) -> None:
    whole = proxy.client.get(location).content
    for offset in (0, 1, 8, 9, 10, 200, len(whole) - 9, len(whole) - 1, len(whole)):
        answer = proxy.client.get(f"{location}&offset={offset:020d}")
        assert answer.status_code == 200
        assert answer.content == whole[offset:]
        assert int(answer.headers["stream-next-offset"]) == len(whole)


@pytest.mark.spec("proxy 4.5-2", "proxy 4.5-4")
def test_a_read_that_is_cut_in_the_middle_of_a_frame_goes_on_there(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/bytes", count=5000))
    proxy.frames(location)
    whole = proxy.client.get(location).content
    data, offset = b"", "-1"
    for _ in range(100):
        answer = proxy.client.get(f"{location}&offset={offset}&max_bytes=700")
        data += answer.content
        offset = answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            break
    assert data == whole


@pytest.mark.spec("proxy 4.5-2")
def test_offsets(proxy, location) -> None:
    assert proxy.client.get(f"{location}&offset=-1").content == proxy.client.get(location).content
    now = proxy.client.get(f"{location}&offset=now")
    assert (now.status_code, now.content) == (200, b"")
    for wrong in ("x", "", "1e3", "00000000000000009999", "-2"):
        assert proxy.client.get(f"{location}&offset={wrong}").status_code == 400
    assert proxy.client.get(f"{location}&live=nonsense").status_code == 400


@pytest.mark.spec("proxy 4.5-7")
def test_streams_that_are_not_there(proxy, upstream) -> None:
    location = proxy.created(upstream.url())
    proxy.client.delete(location, headers=proxy.service)
    for live in ("", "&live=long-poll&offset=-1", "&live=sse&offset=-1"):
        check_error(proxy.client.get(location + live), 404, "STREAM_NOT_FOUND")
    unknown = f"{PATH}/{'0' * 8}-0000-4000-8000-{'0' * 12}"
    check_error(proxy.client.get(unknown, headers=proxy.service), 404, "STREAM_NOT_FOUND")
    for odd in ("x", "%C3%BC", "a%20b", "...", "x" * 500):
        answer = proxy.client.get(f"{PATH}/{odd}", headers=proxy.service)
        check_error(answer, 404, "STREAM_NOT_FOUND")


@pytest.mark.spec("proxy 4.5-7")
def test_without_authentication_nobody_learns_whether_there_is_a_stream(proxy, location) -> None:
    there = proxy.client.get(location.partition("?")[0])
    absent = proxy.client.get(f"{PATH}/nothing")
    assert there.content == absent.content
    check_error(there, 401, "MISSING_SIGNATURE")


@pytest.mark.spec("proxy 4.9-1")
def test_the_end_of_a_response_closes_nothing(proxy, upstream, location) -> None:
    assert "stream-closed" not in proxy.client.get(location).headers
    assert "stream-closed" not in proxy.client.head(location, headers=proxy.service).headers
    assert proxy.appended(location, upstream.url()) == 2


def test_last_and_lengths_work_as_elsewhere(proxy, location) -> None:
    """Each append of the proxy is a message: frames can be counted back."""
    answer = proxy.client.get(f"{location}&last=1")
    assert [each.type for each in frames_of(answer.content)] == ["C"]
    lengths = proxy.client.get(f"{location}&lengths=true")
    assert lengths.status_code == 200
