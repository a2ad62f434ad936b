"""The Authorization header on the wire: kept once, refused twice, never repeated."""

from collections.abc import Callable

import httpx

from tests.http.raw import RawConnection
from tests.http.streams import Stream


def test_a_repeated_header_is_refused_without_its_value(
    connect: Callable[[], RawConnection],
) -> None:
    connection = connect()
    connection.send(
        b"GET /v1/stream/test/x?offset=-1 HTTP/1.1\r\nHost: a\r\n"
        b"Authorization: Bearer sesame\r\nauthorization: Bearer mellon\r\n\r\n"
    )
    response = connection.response("GET")
    assert response.status == 400
    assert b"authorization is given more than once" in response.body
    assert b"sesame" not in response.body
    assert b"mellon" not in response.body


def test_without_access_control_the_header_means_nothing(
    client: httpx.Client, new_stream: Callable[..., Stream]
) -> None:
    stream = new_stream()
    for value in ("Bearer x", "Basic x", "x"):
        response = client.get(stream.url, params={"offset": "-1"}, headers={"Authorization": value})
        assert response.status_code == 200
