"""Every route against every kind of token: who is let in, and who is told what instead."""

import hashlib
import json
from itertools import product

import httpx
import pytest

from holdfast.http.access.scopes import Need
from holdfast.http.app import TREE
from holdfast.http.routes import Resource
from holdfast.protocol.parts import PartAppend, encode_append
from tests.server_process import ServerProcess

# What a token is about: (what it allows, on which bucket, on which streams of it).
TOKENS = {
    "read:demo1": (Need.READ, "demo1", None),
    "write:demo1": (Need.WRITE, "demo1", None),
    "admin:demo1": (Need.ADMIN, "demo1", None),
    "read:demo1/a*": (Need.READ, "demo1", "a"),
    "write:demo1/a": (Need.WRITE, "demo1", "a"),
    "admin:demo1/b*": (Need.ADMIN, "demo1", "b"),
    "admin:other1": (Need.ADMIN, "other1", None),
    "read:*": (Need.READ, "*", None),
    "write:*": (Need.WRITE, "*", None),
    "admin:*": (Need.ADMIN, "*", None),
}
# What a route is about: the server as a whole, the bucket demo1, its stream `a`, or streams that
# the body names.
SERVER, BUCKET, STREAM, SOMEWHERE = "server", "bucket", "stream", "somewhere"
NOTHING, READ, WRITE, ADMIN = Need.NOTHING, Need.READ, Need.WRITE, Need.ADMIN
SUBSCRIPTION = "/v1/stream/__ds/subscriptions/s1"
OFFSET = "0" * 20

# (method, path, what it takes, what it is about)
ROUTES = [
    ("GET", "/healthz", NOTHING, SERVER),
    ("HEAD", "/healthz", NOTHING, SERVER),
    ("GET", "/readyz/local", NOTHING, SERVER),
    ("HEAD", "/readyz/local", NOTHING, SERVER),
    ("GET", "/readyz/cluster", NOTHING, SERVER),
    ("HEAD", "/readyz/cluster", NOTHING, SERVER),
    ("GET", "/openapi.json", NOTHING, SERVER),
    ("HEAD", "/openapi.json", NOTHING, SERVER),
    ("GET", "/metrics", READ, SERVER),
    ("HEAD", "/metrics", READ, SERVER),
    ("GET", "/cluster/status", READ, SERVER),
    ("HEAD", "/cluster/status", READ, SERVER),
    ("GET", "/cluster/hot-cold-stats", READ, SERVER),
    ("HEAD", "/cluster/hot-cold-stats", READ, SERVER),
    ("GET", "/cluster/buckets", READ, SERVER),
    ("HEAD", "/cluster/buckets", READ, SERVER),
    ("GET", "/cluster/store", READ, SERVER),
    ("HEAD", "/cluster/store", READ, SERVER),
    ("GET", "/cluster/packs", READ, SERVER),
    ("HEAD", "/cluster/packs", READ, SERVER),
    ("GET", "/cluster/packs/extents", READ, SERVER),
    ("HEAD", "/cluster/packs/extents", READ, SERVER),
    ("GET", "/cluster/packs/data", READ, SERVER),
    ("HEAD", "/cluster/packs/data", READ, SERVER),
    ("POST", "/cluster/flush", ADMIN, SERVER),
    ("POST", "/cluster/swap-packs", ADMIN, SERVER),
    ("POST", "/cluster/pin-packs", ADMIN, SERVER),
    ("POST", "/cluster/collect-garbage", ADMIN, SERVER),
    ("POST", "/v1/batch", WRITE, SOMEWHERE),
    ("POST", "/v1/batch/part", WRITE, SOMEWHERE),
    ("DELETE", "/v1/batch/part", WRITE, SOMEWHERE),
    ("PUT", "/demo1", ADMIN, BUCKET),
    ("GET", "/demo1", READ, BUCKET),
    ("HEAD", "/demo1", READ, BUCKET),
    ("DELETE", "/demo1", ADMIN, BUCKET),
    ("OPTIONS", "/demo1", NOTHING, BUCKET),
    ("GET", "/demo1/streams", READ, BUCKET),
    ("HEAD", "/demo1/streams", READ, BUCKET),
    ("OPTIONS", "/demo1/streams", NOTHING, BUCKET),
    ("GET", "/demo1/streams?prefix=a", READ, STREAM),
    ("GET", "/demo1/streams/changes", READ, BUCKET),
    ("OPTIONS", "/demo1/streams/changes", NOTHING, BUCKET),
    ("GET", "/demo1/streams/changes?prefix=a", READ, STREAM),
    ("GET", "/demo1/streams/scan", READ, BUCKET),
    ("HEAD", "/demo1/streams/scan", READ, BUCKET),
    ("OPTIONS", "/demo1/streams/scan", NOTHING, BUCKET),
    ("GET", "/demo1/streams/scan?prefix=a", READ, STREAM),
    ("GET", "/demo1/streams/scan/ranges", READ, BUCKET),
    ("HEAD", "/demo1/streams/scan/ranges", READ, BUCKET),
    ("OPTIONS", "/demo1/streams/scan/ranges", NOTHING, BUCKET),
    ("GET", "/demo1/streams/scan/ranges?prefix=a", READ, STREAM),
    ("GET", "/demo1/streams/scan/pack", READ, BUCKET),
    ("HEAD", "/demo1/streams/scan/pack", READ, BUCKET),
    ("OPTIONS", "/demo1/streams/scan/pack", NOTHING, BUCKET),
    ("GET", "/demo1/streams/scan/pack?prefix=a", READ, STREAM),
    ("GET", "/demo1/streams/scan/until", READ, BUCKET),
    ("HEAD", "/demo1/streams/scan/until", READ, BUCKET),
    ("OPTIONS", "/demo1/streams/scan/until", NOTHING, BUCKET),
    ("GET", "/demo1/streams/scan/until?prefix=a", READ, STREAM),
    ("POST", "/demo1/streams/snapshots", WRITE, BUCKET),
    ("OPTIONS", "/demo1/streams/snapshots", NOTHING, BUCKET),
    ("POST", "/demo1/streams/snapshots?prefix=a", WRITE, STREAM),
    ("GET", "/demo1/streams/scan/forks", READ, BUCKET),
    ("HEAD", "/demo1/streams/scan/forks", READ, BUCKET),
    ("OPTIONS", "/demo1/streams/scan/forks", NOTHING, BUCKET),
    ("GET", "/demo1/streams/scan/forks?prefix=a", READ, STREAM),
    ("GET", "/demo1/streams/scan/inherited", READ, BUCKET),
    ("HEAD", "/demo1/streams/scan/inherited", READ, BUCKET),
    ("OPTIONS", "/demo1/streams/scan/inherited", NOTHING, BUCKET),
    ("GET", "/demo1/streams/scan/inherited?prefix=a", READ, STREAM),
    ("GET", "/demo1/streams/records", READ, BUCKET),
    ("HEAD", "/demo1/streams/records", READ, BUCKET),
    ("OPTIONS", "/demo1/streams/records", NOTHING, BUCKET),
    ("GET", "/demo1/streams/records?prefix=a", READ, STREAM),
    *(
        (method, path, need, STREAM)
        for path in ("/demo1/a", "/v1/stream/demo1/a")
        for method, need in (
            ("GET", READ),
            ("HEAD", READ),
            ("PUT", WRITE),
            ("POST", WRITE),
            ("DELETE", WRITE),
            ("OPTIONS", NOTHING),
        )
    ),
    ("GET", "/demo1/a/snapshot", READ, STREAM),
    ("HEAD", "/demo1/a/snapshot", READ, STREAM),
    ("OPTIONS", "/demo1/a/snapshot", NOTHING, STREAM),
    ("GET", "/demo1/a/bootstrap", READ, STREAM),
    ("HEAD", "/demo1/a/bootstrap", READ, STREAM),
    ("OPTIONS", "/demo1/a/bootstrap", NOTHING, STREAM),
    ("GET", f"/demo1/a/snapshot/{OFFSET}", READ, STREAM),
    ("HEAD", f"/demo1/a/snapshot/{OFFSET}", READ, STREAM),
    ("PUT", f"/demo1/a/snapshot/{OFFSET}", WRITE, STREAM),
    ("DELETE", f"/demo1/a/snapshot/{OFFSET}", WRITE, STREAM),
    ("OPTIONS", f"/demo1/a/snapshot/{OFFSET}", NOTHING, STREAM),
    ("GET", "/v1/stream/__ds/jwks.json", NOTHING, SERVER),
    ("GET", "/v1/stream/__ds/subscriptions", READ, SERVER),
    ("PUT", SUBSCRIPTION, WRITE, SERVER),
    ("GET", SUBSCRIPTION, READ, SERVER),
    ("DELETE", SUBSCRIPTION, WRITE, SERVER),
    ("POST", f"{SUBSCRIPTION}/streams", WRITE, SERVER),
    ("DELETE", f"{SUBSCRIPTION}/streams/demo1%2Fa", WRITE, SERVER),
    ("POST", f"{SUBSCRIPTION}/claim", WRITE, SERVER),
]
# Their tokens are those of wakes, whatever access control says.
OF_WAKES = [("POST", f"{SUBSCRIPTION}/{action}") for action in ("callback", "ack", "release")]


def token_of(scope):
    return f"the token for {scope}"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("access")
    entries = [
        f'[[token]]\nname = "token-{number}"\nsha256 = "{digest}"\nscopes = ["{scope}"]\n'
        for number, scope in enumerate(TOKENS)
        for digest in [hashlib.sha256(token_of(scope).encode()).hexdigest()]
    ]
    tokens = path / "tokens.toml"
    tokens.write_text("\n".join(entries))
    with ServerProcess(path / "data", access_tokens_file=tokens) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def ask(client, method, path, scope=None):
    headers = {} if scope is None else {"Authorization": f"Bearer {token_of(scope)}"}
    return client.request(method, path, headers=headers)


def is_allowed(scope, need, about):
    """The rules of docs/security.md in other words than the server's."""
    level, bucket, stream = TOKENS[scope]
    if need == NOTHING:
        return True
    if level < need:
        return False
    if bucket == "*" or about == SOMEWHERE:
        return True
    if about == SERVER or bucket != "demo1":
        return False
    return stream is None or (about == STREAM and stream == "a")


@pytest.mark.parametrize(("method", "path", "need", "about"), ROUTES)
class TestEveryRoute:
    @pytest.mark.spec("base 10.1-2")
    def test_every_token(self, client, method, path, need, about):
        wrong = []
        for scope in TOKENS:
            if "?prefix=" in path and scope == "write:demo1/a":
                # One stream is no prefix.
                expected = False
            else:
                expected = is_allowed(scope, need, about)
            status = ask(client, method, path, scope).status_code
            if (status not in {401, 403}) != expected or (not expected and status != 403):
                wrong.append((scope, status))
        assert not wrong

    @pytest.mark.spec("base 10.1-2", "base 10.2-1")
    def test_no_token_and_an_unknown_one(self, client, method, path, need, about):
        missing = ask(client, method, path)
        unknown = client.request(method, path, headers={"Authorization": "Bearer nobody's"})
        if need == NOTHING:
            assert 401 not in {missing.status_code, unknown.status_code}
            return
        for answer in (missing, unknown):
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            if method != "HEAD":
                assert answer.json()["error"]["code"] == "unauthorized"
                assert "nobody's" not in answer.text


@pytest.mark.parametrize(("method", "path"), OF_WAKES)
def test_wakes_have_tokens_of_their_own(client, method, path):
    for scope in (None, "admin:*"):
        answer = client.request(
            method,
            path,
            json={"wake_id": "w_1", "generation": 1},
            headers={} if scope is None else {"Authorization": f"Bearer {token_of(scope)}"},
        )
        assert answer.status_code in {401, 404}
        assert answer.json()["error"]["code"] in {"TOKEN_INVALID", "SUBSCRIPTION_NOT_FOUND"}


def test_forking_takes_leave_to_read_the_source(client):
    ask(client, "PUT", "/v1/stream/other1/source", "admin:*")
    fork = {"Stream-Forked-From": "/v1/stream/other1/source"}
    for scope, status in (("write:demo1", 403), ("write:*", 201)):
        headers = fork | {"Authorization": f"Bearer {token_of(scope)}"}
        answer = client.put("/v1/stream/demo1/fork", headers=headers)
        assert answer.status_code == status, answer.text


@pytest.mark.spec("base 10.2-1")
def test_reads_are_private(client):
    ask(client, "PUT", "/v1/stream/demo1/cached", "admin:*")
    answer = ask(client, "GET", "/v1/stream/demo1/cached", "read:demo1")
    assert answer.headers["Cache-Control"].startswith("private")


def test_the_table_has_every_route():
    """A route that is not in the table would not be tested."""
    known = {(method, path.partition("?")[0]) for method, path, _, _ in ROUTES}
    for resource, path in resources():
        for method in resource.routes:
            assert (method.decode(), path) in known, (method, path)


def resources():
    assert isinstance(TREE.stream, Resource)
    yield from ((resource, path.decode()) for path, resource in TREE.fixed.items())
    yield from product([TREE.stream], ["/demo1/a", "/v1/stream/demo1/a"])
    yield TREE.bucket, "/demo1"
    for below, resource in TREE.of_bucket.items():
        yield resource, "/demo1/streams" + ("/" + below.decode() if below else "")
    for below, resource in TREE.of_stream.items():
        yield resource, f"/demo1/a/{below.decode()}"
    yield TREE.snapshot, f"/demo1/a/snapshot/{OFFSET}"


def test_who_may_read_a_fork_may_read_what_it_inherits(client):
    everything = {"Authorization": f"Bearer {token_of('admin:*')}"}
    text = everything | {"Content-Type": "text/plain"}
    assert client.put("/v1/stream/other1/origin", headers=text, content=b"abc").status_code == 201
    forked = everything | {"Stream-Forked-From": "/v1/stream/other1/origin"}
    assert client.put("/v1/stream/demo1/a-fork", headers=forked).status_code == 201
    found = ask(client, "GET", "/demo1/streams/scan/inherited?prefix=a", "read:demo1/a*")
    line = json.loads(found.content)
    assert (line["stream_id"], line["payload"]) == ("a-fork", "YWJj")
    for path in ("/other1/origin", "/other1/streams/scan/inherited?prefix=a"):
        assert ask(client, "GET", path, "read:demo1/a*").status_code == 403


def test_nobody_publishes_under_the_producer_of_another(client):
    """Under an epoch one batch is published: another holder's must not take the place of mine."""
    for epoch, scope, stream in (
        (5, "admin:other1", "other1/x"),
        (5, "write:demo1", "demo1/x"),
        (4, "admin:demo1/b*", "demo1/b-x"),
    ):
        token = {"Authorization": f"Bearer {token_of(scope)}"}
        part = {"part": f"part-of-{scope.translate({58: 45, 47: 45, 42: 45})}-----"}
        append = encode_append(PartAppend(stream, b"[1]"))
        staged = client.post(
            "/v1/batch/part", params=part | {"seq": 0}, content=append, headers=token
        )
        assert staged.status_code == 204, staged.text
        batch = {
            "producer_id": "nightly",
            "epoch": epoch,
            "scope": "demo1",
            "content_type": "application/json",
            "parts": [{"id": part["part"], "bytes": int(staged.headers["Stream-Next-Offset"])}],
        }
        answer = client.post("/v1/batch", json=batch, headers=token)
        assert answer.json() == {"published": True, "repeated": False}
        assert ask(client, "GET", f"/v1/stream/{stream}", scope).json() == [1]
