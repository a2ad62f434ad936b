"""The proxy's allowlist: what patterns mean, and all that must not get past them."""

import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from posixpath import normpath
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import OutboundRefusedError, SettingsError
from holdfast.net.targets import Allowlist, Target
from tests.thorough import for_each

# As an operator would write them: two model providers, a host inside, and a model on this machine.
PATTERNS = [
    "https://api.openai.com",
    "https://*.openai.com/v1/*",
    "models.example:8443/v1/models/*:generate",
    "http://llm.internal.example:8000",
    "http://10.1.0.0/16:8000",
    "http://127.0.0.1:*/v1/*",
    "http://localhost:11434",
    "https://[fc00:1::/32]",
    "https://xn--mnchen-3ya.example",
    "https://8.8.8.8",
]


def refusal(policy, url):
    with pytest.raises(OutboundRefusedError) as caught:
        policy.check_url(url)
    return caught.value.message


@pytest.mark.spec("proxy 4.2-2", "proxy 7-1")
@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com",
        "https://api.openai.com/",
        "https://api.openai.com/v1/chat/completions?stream=true",
        "https://API.OpenAI.com.:443/v1/chat/completions",
        "HTTPS://api.openai.com/a%2Fb",
        "https://eu.openai.com/v1/responses",
        "https://a.b.openai.com/v1/",
        "https://eu.openai.com/v1/a//b/.well-known/..name/-._~!$&'()*+,;=:@%20%41%3a/c.d..",
        "https://models.example:8443/v1/models/tiny:generate",
        "http://llm.internal.example:8000/generate",
        "http://10.1.2.3:8000/",
        "http://127.0.0.1:9/v1/x",
        "http://[::ffff:127.0.0.1]:9/v1/x",
        "http://[::ffff:7f00:1]:9/v1/x",
        "http://localhost:11434/api/chat",
        "http://LOCALHOST.:11434/api/chat",
        "https://[fc00:1::5]/",
        "https://xn--mnchen-3ya.example/",
        "https://8.8.8.8/x",
    ],
)
def test_what_a_pattern_names_passes(url):
    assert isinstance(Allowlist(PATTERNS).check_url(url), Target)


@pytest.mark.spec("proxy 4.2-1", "proxy 4.2-2", "proxy 7-1", "proxy 13.1-1")
@for_each(
    "url",
    [
        # Hosts that look like one that is named.
        "https://example.com/",
        "https://openai.com/v1/x",
        "https://evilopenai.com/v1/x",
        "https://evilapi.openai.com/",
        "https://api.openai.com.evil.com/v1/x",
        "https://api.openai.com@evil.com/v1/x",
        "https://evil.com@api.openai.com/v1/x",
        "https://api.openai.com:443@evil.com/",
        "https://evil.com/https://api.openai.com/",
        "https://evil.com?https://api.openai.com/",
        "https://evil.com#@api.openai.com/",
        "https://evil.com\\@api.openai.com/",
        "https://api.openai.com%2eevil.com/",
        "https://api.openai.com%00.evil.com/",
        "https://api.openai.com../",
        "https://api。openai。com/",
        "https://xn--pi-7kc.openai.com/",
        "https://münchen.example/",
        "https://xn--zz-.example/",
        # Another scheme, or another port.
        "http://api.openai.com/",
        "https://api.openai.com:80/",
        "https://api.openai.com:8443/",
        "https://api.openai.com:0/",
        "https://api.openai.com:0443x/",
        "ftp://api.openai.com/",
        "file:///etc/passwd",
        "//api.openai.com/",
        "api.openai.com/v1",
        "https://localhost:11434/",
        "http://localhost/",
        "http://localhost:11435/",
        "http://10.1.2.3/",
        "https://10.1.2.3:8000/",
        "http://10.2.0.0:8000/",
        # Another path.
        "https://eu.openai.com/",
        "https://eu.openai.com/v1",
        "https://eu.openai.com/V1/x",
        "https://eu.openai.com/v2/x",
        "https://eu.openai.com//v1/x",
        "https://eu.openai.com?/v1/x",
        "https://eu.openai.com/%761/x",
        "https://models.example:8443/v1/models/a/b:generate",
        "https://models.example:8443/v1/models/a:generates",
        "http://127.0.0.1:9/",
        # Ways out of a path, and into it.
        "https://eu.openai.com/v1/../admin",
        "https://eu.openai.com/v1/./admin",
        "https://eu.openai.com/v1/..",
        "https://eu.openai.com/v1/%2e%2e/admin",
        "https://eu.openai.com/v1/.%2E/admin",
        "https://eu.openai.com/v1/%252e%252e/admin",
        "https://eu.openai.com/v1/..;/admin",
        "https://eu.openai.com/v1/..%2fadmin",
        "https://eu.openai.com/v1/..%5Cadmin",
        "https://eu.openai.com/v1/a%2f..%2f..%2fadmin",
        "https://eu.openai.com/v1/a%2fb",
        "https://eu.openai.com/v1/a%5cb",
        "https://eu.openai.com/v1/a%252Fb",
        "https://eu.openai.com/v1\\..\\admin",
        "https://eu.openai.com/v1/..%00/admin",
        "https://eu.openai.com/v1/..%09/admin",
        "https://eu.openai.com/v1/..%20/admin",
        "https://eu.openai.com/v1/%20../admin",
        "https://eu.openai.com/v1/%c0%ae%c0%ae/admin",
        "https://eu.openai.com/v1/%c0%2e%c0%2e/admin",
        "https://eu.openai.com/v1/%e0%80%ae%e0%80%ae/admin",
        "https://eu.openai.com/v1/%uff0e%uff0e/admin",
        "https://eu.openai.com/v1/%u002e%u002e%u2215admin",
        "https://eu.openai.com/v1/%EF%BC%8E%EF%BC%8E/admin",
        "https://eu.openai.com/v1/%C4%AE%C4%AE%C4%AFadmin",
        "https://eu.openai.com/v1/%25%32%65%25%32%65/admin",
        "https://eu.openai.com/v1/%2%65%2%65/admin",
        "https://eu.openai.com/v1/.../admin",
        "https://eu.openai.com/v1/a%0d%0aX:y",
        "https://eu.openai.com/v1/100%25",
        "https://api.openai.com/a/../b",
        "https://api.openai.com/%2E%2e",
        # Addresses in every spelling there is.
        "http://127.0.0.2:9/v1/x",
        "http://[::1]:9/v1/x",
        "http://127.1:9/v1/x",
        "http://2130706433:9/v1/x",
        "http://0x7f000001:9/v1/x",
        "http://0x7f.0.0.1:9/v1/x",
        "http://0177.0.0.1:9/v1/x",
        "http://017700000001:9/v1/x",
        "http://127.0.0.1.:9/",
        "http://127.000.000.001:9/v1/x",
        "http://127.0.0.1%2f@evil:9/v1/x",
        "http://１２７.0.0.1:9/v1/x",
        "http://[::ffff:127.0.0.2]:9/v1/x",
        "http://[::127.0.0.1]:9/v1/x",
        "http://[64:ff9b::7f00:1]:9/v1/x",
        "http://[2002:7f00:1::]:9/v1/x",
        "http://[fe80::1%25eth0]:9/v1/x",
        "http://[::ffff:127.0.0.1%25lo]:9/v1/x",
        "http://0.0.0.0:9/v1/x",
        "http://0:9/v1/x",
        "http://[::]:9/v1/x",
        "http://169.254.169.254/latest/meta-data/",
        "https://169.254.169.254/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
        "http://168.63.129.16/",
        "http://metadata.google.internal/",
        "https://8.8.4.4/",
        "http://8.8.8.8/",
        "https://[2001:4860:4860::8888]/",
        "http://a.localhost:11434/",
        "http://localhost.localdomain:11434/",
        "http://localhost.evil.com:11434/",
        "http://localhost:11434@evil.com/",
        # What is no URL.
        "",
        "https://api.openai.com/a b",
        "https://api.openai.com/\r\nX: y",
        "https://api.openai.com/\x00",
        "https://api.openai.com/#x",
        "https://[api.openai.com]/",
        "https://api.openai.com[::1]/",
        "https://api.openai.com/" + "a" * 5000,
    ],
)
def test_nothing_gets_past_the_patterns(url):
    assert refusal(Allowlist(PATTERNS), url).endswith(".")


@pytest.mark.spec("proxy 7-2")
@pytest.mark.parametrize(
    "url",
    ["https://api.openai.com/", "https://8.8.8.8/", "http://127.0.0.1/", "https://localhost/"],
)
def test_an_empty_allowlist_refuses_everything(url):
    assert "empty" in refusal(Allowlist([]), url)


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("api.example", "https://api.example/x"),
        ("api.example:*", "https://api.example:9/x"),
        ("API.Example.", "https://api.example/x"),
        ("https://api.example/", "https://api.example/x/y?z"),
        ("https://api.example/*", "https://api.example/a%2fb"),
        ("https://api.example/**", "https://api.example/a%2fb"),
        ("https://api.example/%41", "https://api.example/%41"),
        ("http://10.0.0.0/8", "http://10.9.9.9/"),
        ("http://10.0.0.0/8:*", "http://10.9.9.9:5/x"),
        ("http://10.0.0.0/8:81/v1/*", "http://10.9.9.9:81/v1/x"),
        ("http://10.0.0.0/8/v1/*", "http://10.9.9.9/v1/x"),
        ("http://10.0.0.1/32/8", "http://10.0.0.1/8"),
        ("http://10.0.0.1:80/8", "http://10.0.0.1/8"),
        ("http://10.0.0.1/8x", "http://10.0.0.1/8x"),
        ("http://[fc00::/7]:*/a*", "http://[fd00::1]:7/abc"),
        ("http://[::ffff:10.0.0.0/104]", "http://[::ffff:10.9.9.9]/"),
        ("http://169.254.169.254", "http://169.254.169.254/latest"),
        ("http://a.localhost:*", "http://a.localhost:5/"),
    ],
)
def test_how_a_pattern_is_read(pattern, url):
    assert Allowlist([pattern]).check_url(url)


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("api.example", "http://api.example/x"),
        ("http://10.0.0.0/8:81", "http://10.0.0.1/"),
        ("http://10.0.0.0/8/v1/*", "http://10.0.0.1/v2"),
        ("http://10.0.0.1/8x", "http://10.9.9.9/8x"),
        ("*.example", "https://example/"),
        ("*.a.example", "https://b.example/"),
        ("https://api.example/a", "https://api.example/"),
        ("http://[::1]:80", "http://127.0.0.1/"),
    ],
)
def test_how_a_pattern_is_not_read(pattern, url):
    assert refusal(Allowlist([pattern]), url)


@for_each(
    "pattern",
    [
        "",
        " ",
        "*",
        "https://*",
        "https://*:*",
        "https://*/v1",
        "https://a*.example",
        "https://*.*.example",
        "https://*example.com",
        "ftp://a.example",
        "https://",
        "https:///v1",
        "/v1/*",
        "https://user@a.example",
        "https://a.example:0",
        "https://a.example:65536",
        "https://a.example:http",
        "https://a.example:8*",
        "https://a.example/v1?x=*",
        "https://a.example/v1#x",
        "https://a.example/a b",
        "https://a.example/../b",
        "https://a.example/%2e%2e/b",
        "https://a.example/a%2fb",
        "https://a.example/a\\b",
        "https://münchen.example",
        "https://a.example/münchen",
        "http://10.0.0.1/8",
        "http://10.0.0.0/33",
        "http://10.0.0.0/8/16/../x",
        "http://127.1",
        "http://0x7f000001",
        "http://256.0.0.1",
        "fc00::/7",
        "https://[fc00::/129]",
        "https://[fc00::1/7]",
        "https://[::1]/64",
        "https://[a.example]",
    ],
)
def test_a_pattern_that_is_none_is_a_settings_error(pattern):
    with pytest.raises(SettingsError, match="pattern"):
        Allowlist([pattern])


@pytest.mark.spec("proxy 13.1-3")
@for_each(
    ("host", "port", "address", "passes"),
    [
        ("api.openai.com", 443, "104.18.6.192", True),
        ("API.openai.com.", 443, "2606:4700::1", True),
        ("api.openai.com", 443, "::ffff:104.18.6.192", True),
        ("api.openai.com", 443, "64:ff9b::6812:6c0", True),
        # A name that is named is not thereby let inside.
        ("api.openai.com", 443, "127.0.0.1", False),
        ("api.openai.com", 443, "::1", False),
        ("api.openai.com", 443, "::ffff:127.0.0.1", False),
        ("api.openai.com", 443, "10.1.0.1", False),
        ("api.openai.com", 443, "10.0.0.1", False),
        ("api.openai.com", 443, "192.168.1.1", False),
        ("api.openai.com", 443, "100.64.0.1", False),
        ("api.openai.com", 443, "169.254.169.254", False),
        ("api.openai.com", 443, "100.100.100.200", False),
        ("api.openai.com", 443, "168.63.129.16", False),
        ("api.openai.com", 443, "fd00:ec2::254", False),
        ("api.openai.com", 443, "fe80::1%eth0", False),
        ("api.openai.com", 443, "64:ff9b::a9fe:a9fe", False),
        ("api.openai.com", 443, "2002:7f00:1::1", False),
        ("api.openai.com", 443, "0.0.0.0", False),
        ("api.openai.com", 443, "::", False),
        ("api.openai.com", 443, "224.0.0.1", False),
        ("api.openai.com", 443, "255.255.255.255", False),
        ("api.openai.com", 443, "nonsense", False),
        # Named by name and by range, with the port.
        ("llm.internal.example", 8000, "10.1.2.3", True),
        ("llm.internal.example", 8000, "::ffff:10.1.2.3", True),
        ("llm.internal.example", 8000, "10.2.2.3", False),
        ("llm.internal.example", 8000, "127.0.0.1", True),
        ("llm.internal.example", 8000, "127.0.0.2", False),
        ("api.openai.com", 443, "fc00:1::7", True),
        # Not named at all: there is no URL that leads here.
        ("example.com", 443, "93.184.215.14", False),
        ("api.openai.com", 80, "104.18.6.192", False),
        ("10.1.2.3", 8001, "10.1.2.3", False),
        ("8.8.4.4", 443, "8.8.4.4", False),
        # What spells an address.
        ("10.1.2.3", 8000, "10.1.2.3", True),
        ("127.0.0.1", 5, "127.0.0.1", True),
        ("::ffff:127.0.0.1", 5, "::ffff:127.0.0.1", True),
        ("8.8.8.8", 443, "8.8.8.8", True),
        # This machine, by its name.
        ("localhost", 11434, "127.0.0.1", True),
        ("localhost", 11434, "::1", True),
        ("localhost", 11434, "10.0.0.1", False),
        ("localhost", 11434, "169.254.169.254", False),
        ("localhost", 11435, "127.0.0.1", False),
        ("a.localhost", 11434, "127.0.0.1", False),
    ],
)
def test_every_address_is_judged_when_it_is_connected_to(host, port, address, passes):
    policy = Allowlist(PATTERNS)
    if passes:
        policy.check_address(host, port, address)
    else:
        with pytest.raises(OutboundRefusedError):
            policy.check_address(host, port, address)


def test_names_below_localhost_are_named_one_by_one():
    exact, all_of_them = Allowlist(["http://a.localhost"]), Allowlist(["http://*.localhost"])
    exact.check_address("a.localhost", 80, "127.0.0.1")
    with pytest.raises(OutboundRefusedError):
        exact.check_address("a.localhost", 80, "192.168.0.1")
    with pytest.raises(OutboundRefusedError):
        all_of_them.check_address("a.localhost", 80, "127.0.0.1")


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/hunter2/../x",
        "https://eu.openai.com/hunter2?token=hunter2",
        "https://eu.openai.com/v1/hunter2%2fx",
        "https://example.com/hunter2?token=hunter2",
        "https://user:hunter2@api.openai.com/",
        "http://169.254.169.254/hunter2",
    ],
)
def test_refusals_say_what_to_do_and_repeat_no_secret(url):
    message = refusal(Allowlist(PATTERNS), url)
    assert "hunter2" not in message
    assert "operator" in message or "Leave them out" in message or "Resolve them" in message


@given(st.text(max_size=60))
@example("https://api.openai.com/secret/../x")
@example("https://api.openai.com/secret")
def test_any_text_is_refused_or_names_a_host_that_is_named(text):
    said = ""
    try:
        target = Allowlist(PATTERNS).check_url(text)
    except OutboundRefusedError as error:
        said = error.message
    else:
        assert target.host in text.lower()
    assert "secret" not in said


@given(
    st.ip_addresses(v=4).filter(lambda each: not each.is_global),
    st.sampled_from(["{}", "::ffff:{}", "64:ff9b::{}"]),
)
def test_no_name_leads_inside(address, form):
    with pytest.raises(OutboundRefusedError):
        Allowlist(["api.example:*"]).check_address("api.example", 443, form.format(address))


DOTS = (".", "%2e", "%2E", "%252e", "%c0%ae", "%e0%80%ae", "%uff0e", "%EF%BC%8E", "%C4%AE", "%2%65")
SLASHES = ("/", "\\", "%2f", "%5C", "%252f", "%c0%af", "%u2215", "%EF%BC%8F", "%C4%AF", "%%32f")
NOISE = (*(f"%{byte:02x}" for byte in (*range(0x22), 0x3B, 0x3F, 0x7F, 0x80, 0xFF)), *";:,~a")


def lenient_readings(path: bytes) -> Iterator[bytes]:
    """What servers are known to make of a path: each fault alone and after the others."""
    faults = (
        unquote_to_bytes,
        lambda text: re.sub(
            rb"%u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)).encode(), text
        ),
        # Overlong UTF-8, wide forms, and characters that are cut to their lower byte.
        lambda text: re.sub(
            rb"(?:[\xc0\xc1]|\xe0\x80)(.)", lambda found: bytes([found[1][0] & 0x7F]), text
        ),
        lambda text: unicodedata.normalize("NFKC", text.decode(errors="ignore")).encode(),
        lambda text: bytes(ord(each) & 0x7F for each in text.decode(errors="ignore")),
        lambda text: text.partition(b"\0")[0],
        lambda text: re.sub(rb"[\x00-\x20\x7f-\xff]+", b"", text),
        lambda text: text.replace(b"\\", b"/"),
        lambda text: re.sub(rb";[^/]*", b"", text),
        lambda text: re.sub(rb"[. ]+(?=/|$)", lambda found: found[0].strip(b" ")[:2], text),
    )
    known = {path}
    waiting = [path]
    while waiting:
        text = waiting.pop()
        yield text
        new = {fault(text) for fault in faults} - known
        known |= new
        waiting += new


@given(st.lists(st.sampled_from([*DOTS, *DOTS, *SLASHES, *SLASHES, *NOISE]), max_size=8))
@example(["%uff0e", "%uff0e", "/", "a"])
@example([".", "%2e", "%00", "/"])
def test_no_encoding_leads_out_of_a_path(parts):
    path = f"/ok/{''.join(parts)}"
    with suppress(OutboundRefusedError):
        Allowlist(["https://api.example/ok/*"]).check_url(f"https://api.example{path}")
        for reading in lenient_readings(path.encode()):
            assert normpath(b"/" + reading.lstrip(b"/")).startswith(b"/ok"), reading
