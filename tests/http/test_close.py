"""POST with `Stream-Closed`: the end of a stream, and what comes after it."""

import pytest

from tests.http.streams import check_error


@pytest.mark.spec("base 5.3-1")
def test_close_is_204_and_leaves_the_tail_where_it_was(new_stream) -> None:
    stream = new_stream(body=b"all")
    tail = stream.tail()
    response = stream.close()
    assert response.status_code == 204
    assert response.headers["Stream-Next-Offset"] == tail == stream.tail()
    assert response.headers["Stream-Closed"] == "true"
    assert stream.head().headers["Stream-Closed"] == "true"


@pytest.mark.spec("base 5.2-10", "base 5.3-2")
def test_closing_again_is_204(new_stream) -> None:
    stream = new_stream(body=b"all")
    stream.close()
    for _ in range(2):
        again = stream.close()
        assert again.status_code == 204
        assert again.headers["Stream-Closed"] == "true"
        assert again.headers["Stream-Next-Offset"] == stream.tail()


@pytest.mark.spec("base 5.3-3")
def test_closing_a_stream_that_does_not_exist_is_404(absent) -> None:
    check_error(absent().close(), 404, "stream_not_found")


@pytest.mark.spec("base 5.2-21")
def test_append_and_close_is_one_step(new_stream) -> None:
    stream = new_stream(body=b"almost,")
    response = stream.append(b"all", stream_closed="true")
    assert response.status_code == 204
    assert response.headers["Stream-Closed"] == "true"
    assert response.headers["Stream-Next-Offset"] == "10".zfill(20)
    read = stream.read()
    assert read.content == b"almost,all"
    assert read.headers["Stream-Closed"] == "true"


@pytest.mark.spec("base 5.2-21")
def test_refused_append_does_not_close(new_stream) -> None:
    stream = new_stream()
    response = stream.append(b"{}", stream_closed="true", content_type="application/json")
    check_error(response, 409, "content_type_mismatch")
    assert "Stream-Closed" not in stream.head().headers
    assert stream.append(b"open").status_code == 204


@pytest.mark.spec("base 5.2-13", "base 5.2-14")
def test_append_to_a_closed_stream_is_409_with_the_final_offset(new_stream) -> None:
    stream = new_stream(body=b"all")
    stream.close()
    response = stream.append(b"more")
    check_error(response, 409, "stream_closed")
    assert response.headers["Stream-Closed"] == "true"
    assert response.headers["Stream-Next-Offset"] == stream.tail() == "3".zfill(20)
    assert stream.read().content == b"all"


@pytest.mark.spec("base 5.2-11")
def test_append_and_close_of_a_closed_stream_is_409(new_stream) -> None:
    stream = new_stream(body=b"all")
    assert stream.append(b"!", stream_closed="true").status_code == 204
    response = stream.append(b"!", stream_closed="true")
    check_error(response, 409, "stream_closed")
    assert response.headers["Stream-Closed"] == "true"
    assert stream.read().content == b"all!"


def test_empty_append_to_a_closed_stream_is_400(new_stream) -> None:
    stream = new_stream(stream_closed="true")
    assert stream.append(b"").status_code in {400, 409}


@pytest.mark.spec("base 4.1-5")
def test_closed_stream_cannot_be_reopened(new_stream) -> None:
    stream = new_stream(stream_closed="true")
    check_error(stream.create(), 409, "stream_exists")
    check_error(stream.append(b"x", stream_closed="false"), 409, "stream_closed")
    assert stream.head().headers["Stream-Closed"] == "true"


@pytest.mark.spec("base 4.1-6")
def test_closed_stream_stays_readable_from_every_offset(new_stream) -> None:
    stream = new_stream()
    middle = stream.append(b"one,").headers["Stream-Next-Offset"]
    stream.append(b"two", stream_closed="true")
    assert stream.read().content == b"one,two"
    assert stream.read(middle).content == b"two"


@pytest.mark.spec("base 4.1-1")
@pytest.mark.parametrize("value", ["true", "TRUE", "True", "tRuE"])
def test_stream_closed_is_true_in_any_case(new_stream, value) -> None:
    for stream in (new_stream(), new_stream()):
        response = stream.close(stream_closed=value)
        assert response.headers["Stream-Closed"] == "true"
    assert "Stream-Closed" in new_stream(stream_closed=value).head().headers


@pytest.mark.spec("base 4.1-2", "base 4.1-3")
@pytest.mark.parametrize("value", ["false", "yes", "1", "", "true, true", "truey", '"true"'])
def test_any_other_stream_closed_counts_as_none(new_stream, absent, value) -> None:
    stream = absent()
    assert stream.create(stream_closed=value).status_code == 201
    assert stream.append(b"x", stream_closed=value).status_code == 204
    assert "Stream-Closed" not in stream.head().headers
    check_error(stream.append(b"", stream_closed=value), 400)
