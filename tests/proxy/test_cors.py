"""Pages in browsers: what they may send, and what they see."""

import pytest

from tests.proxy.proxying import PATH, expired

ALLOWED = {
    "upstream-url",
    "upstream-authorization",
    "upstream-method",
    "use-stream-url",
    "session-id",
    "stream-signed-url-ttl",
    "authorization",
    "content-type",
}
EXPOSED = {"location", "upstream-content-type", "upstream-status", "stream-response-id"}
ORIGIN = {"Origin": "https://page.example"}


def names(answer, header: str) -> set[str]:
    values = answer.headers.get_list(header)
    return {name.strip().lower() for value in values for name in value.split(",")}


@pytest.mark.spec("proxy 11.1-1", "proxy 11.2-1", "proxy 11.2-3")
@pytest.mark.parametrize("path", [PATH, f"{PATH}/some-stream?expires=1&signature=x"])
@pytest.mark.parametrize("method", ["POST", "GET", "PATCH", "DELETE"])
def test_preflights(proxy, path, method) -> None:
    headers = ORIGIN | {"Access-Control-Request-Method": method}
    answer = proxy.client.options(path, headers=headers)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert method.lower() in names(answer, "access-control-allow-methods")
    assert names(answer, "access-control-allow-headers") >= ALLOWED
    assert names(answer, "access-control-expose-headers") >= EXPOSED
    assert int(answer.headers["access-control-max-age"]) > 0


@pytest.mark.spec("proxy 11.1-1", "proxy 11.2-3")
def test_pages_may_send_any_header(proxy) -> None:
    """All of them are forwarded, and only the page knows which ones its upstream needs."""
    asked = "x-api-key, anthropic-version,OpenAI-Organization ,traceparent"
    headers = ORIGIN | {"Access-Control-Request-Headers": asked.lower()}
    answer = proxy.client.options(PATH, headers=headers)
    wanted = {"x-api-key", "anthropic-version", "openai-organization", "traceparent"}
    assert names(answer, "access-control-allow-headers") >= ALLOWED | wanted


@pytest.mark.parametrize("asked", ["x-a\tb", "x a", "é", ";", "x-a,,x-b", 'x-"a"', "x-a:b", "("])
def test_what_is_no_list_of_headers_is_not_repeated(proxy, asked) -> None:
    headers = ORIGIN | {"Access-Control-Request-Headers": asked.encode()}
    answer = proxy.client.options(PATH, headers=headers)
    assert answer.status_code == 204
    assert asked not in answer.headers["access-control-allow-headers"]
    assert names(answer, "access-control-allow-headers") >= ALLOWED


@pytest.mark.spec("proxy 11.2-1", "proxy 11.2-2")
def test_answers_expose_their_headers(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/fixed", body="x"))
    proxy.frames(location)
    answers = [
        proxy.create(upstream.url("/fixed", body="x"), headers=ORIGIN),
        proxy.append(location, upstream.url("/fixed"), headers=ORIGIN),
        proxy.connect(headers=ORIGIN),
        proxy.create(upstream.url("/error"), headers=ORIGIN),
        proxy.client.get(location, headers=ORIGIN),
        proxy.client.get(f"{location}&offset=-1&live=long-poll", headers=ORIGIN),
        proxy.client.get(f"{location}&last=1", headers=ORIGIN),
        proxy.client.head(location, headers=ORIGIN | proxy.service),
        proxy.abort(location),
    ]
    proxy.close(location)
    answers += [
        proxy.append(location, upstream.url("/fixed"), headers=ORIGIN),
        proxy.client.get(location, headers=ORIGIN),
        proxy.client.get(expired(location), headers=ORIGIN),
    ]
    with proxy.client.stream("GET", f"{location}&offset=-1&live=sse", headers=ORIGIN) as events:
        answers.append(events)
    assert {each.status_code for each in answers} == {200, 201, 204, 401, 409, 502}
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == "*"
        exposed = names(answer, "access-control-expose-headers")
        for name in answer.headers:
            if name.startswith(("stream-", "upstream-")) or name in {"location", "etag"}:
                assert name in exposed, (answer.request, name)


@pytest.mark.spec("proxy 11.2-1")
def test_successes_and_upstream_errors_expose_what_they_are_about(proxy, upstream) -> None:
    for answer in (proxy.create(upstream.url()), proxy.connect()):
        assert names(answer, "access-control-expose-headers") >= EXPOSED
    answer = proxy.create(upstream.url("/error", status=429))
    assert "upstream-status" in names(answer, "access-control-expose-headers")
