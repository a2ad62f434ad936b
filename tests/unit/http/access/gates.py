"""Gates for tests: settings in, a gate on a clock that stands still out."""

from holdfast.http.access.gate import open_gate
from holdfast.http.access.tokens import digest_of
from holdfast.http.exchange import Request
from holdfast.settings import load_settings
from holdfast.testing import FakeClock


def entry(name, token, *scopes, more=""):
    digest = digest_of(token.encode()).hex()
    listed = ", ".join(f'"{scope}"' for scope in scopes)
    return f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = [{listed}]\n{more}\n'


def gate(clock=None, **settings):
    loaded = load_settings(file=None, env={}, flags=settings)
    return open_gate(loaded, clock or FakeClock())


def request(token=None, *, peer="10.0.0.1", path=b"/v1/stream/demo/a", authorization=None):
    fields = {}
    if token is not None:
        fields[b"authorization"] = b"Bearer " + token.encode()
    if authorization is not None:
        fields[b"authorization"] = authorization
    return Request(b"GET", path, b"", fields, b"http", peer)
