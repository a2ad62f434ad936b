"""What the server writes to its log, at its most talkative."""

import re
from uuid import uuid4

import pytest

from tests.proxy.proxying import (
    OLD_SECRET,
    PATH,
    SECRET,
    expired,
    id_of,
    kinds_of,
    sign,
)
from tests.storage_stats import flush

CREDENTIAL = "sk-upstream-credential-5d2c"


@pytest.mark.spec("proxy 13.2-5")
def test_no_secrets_and_no_signed_urls(strict, strict_server, upstream) -> None:
    headers = {
        "Upstream-Authorization": f"Bearer {CREDENTIAL}",
        "X-Api-Key": CREDENTIAL,
        "Cookie": f"session={CREDENTIAL}",
    }
    path_secret = f"/fixed/{CREDENTIAL}"
    upstream.routes[path_secret] = upstream.routes["/fixed"]
    ask = {"headers": headers}
    location = strict.created(upstream.url(path_secret, key=CREDENTIAL, body="x"), **ask)
    strict.frames(location)
    session_id = f"{CREDENTIAL}-{uuid4().hex}"
    strict.connect(session_id, headers=headers | {"Upstream-URL": upstream.url("/auth")})
    strict.connect(headers=headers | {"Upstream-URL": upstream.url("/auth", status=403)})
    for url in (
        upstream.url("/error", key=CREDENTIAL),
        upstream.url("/redirect", to=f"/{CREDENTIAL}"),
        upstream.url("/raw", body="nonsense", key=CREDENTIAL),
        upstream.url("/bytes", count=20, piece=9, after=1, end="cut", key=CREDENTIAL),
        upstream.url("/fixed", body="x" * 20, encoding="gzip", truncate=3),
        f"http://127.0.0.1:9/{CREDENTIAL}",
        f"http://user:{CREDENTIAL}@127.0.0.1:9/",
        f"nonsense {CREDENTIAL}",
        f"https://{CREDENTIAL}.example/",
    ):
        strict.append(location, url, **ask)
        strict.create(url, **ask)
    signed = strict.at(location)
    stream_id = id_of(location)
    old = f"{PATH}/{stream_id}?{sign(stream_id, 1, OLD_SECRET)}"
    for method in ("GET", "HEAD", "PATCH", "DELETE", "PUT", "POST", "OPTIONS"):
        for url in (signed, strict.at(expired(location)), old, f"{signed}x", f"{signed}&offset=x"):
            strict.client.request(method, f"{url}&action=nonsense")
            strict.client.request(method, f"{url}&secret=x{SECRET}")
        strict.client.request(method, f"/v1/stream/_proxy/{stream_id}?secret=x{SECRET}")
        strict.client.request(method, f"/_proxy/streams?secret=x{SECRET}")
    strict.append(f"{location}x", upstream.url(), **ask)
    strict.client.post(f"{PATH}?secret=x{SECRET}", headers=headers)
    number = strict.appended(location, upstream.url("/bytes", count=9, gate=1), **ask)
    strict.abort(location, response=number)
    assert kinds_of(strict.now(location), number) == "SA"
    assert strict.client.delete(f"{PATH}/{stream_id}?secret={SECRET}").status_code == 204

    # The storage process, too, has something to say by then.
    flush(strict.client)
    text = strict_server.stderr()
    assert "DEBUG" in text, "the log was asked to say everything"
    for secret in (SECRET, OLD_SECRET, CREDENTIAL):
        assert secret not in text
    assert not re.search(r"signature=|expires=|[?&]secret=", text)
    for url in (location, signed, old):
        assert url.rpartition("signature=")[2] not in text
