"""The policy on targets: what passes, what does not, and that errors give nothing away."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import OutboundRefusedError, SettingsError
from holdfast.net.targets import URL_BYTES_MAX, Target, TargetPolicy
from tests.thorough import for_each

PATTERNS = [
    "http://127.0.0.1:*",
    "http://localhost:*",
    "https://*.internal.example:8443",
    "https://hooks.example",
    "http://10.0.0.0/8",
    "https://[fd00:1::/32]:*",
    "http://[::1]:4000",
]

ALLOWED_TO_ALL = [
    ("https://example.com", "https://example.com:443"),
    ("https://example.com/a?b=c@d", "https://example.com:443"),
    ("https://example.com?b=c@d", "https://example.com:443"),
    ("https://EXAMPLE.com.:8443/", "https://example.com:8443"),
    ("HTTPS://example.com/", "https://example.com:443"),
    ("https://8.8.8.8/x", "https://8.8.8.8:443"),
    ("https://[2606:4700:4700::1111]:99/", "https://[2606:4700:4700::1111]:99"),
    ("https://xn--mnchen-3ya.example/", "https://xn--mnchen-3ya.example:443"),
    ("https://under_score.example/", "https://under_score.example:443"),
]
REFUSED_TO_ALL = [
    "",
    "example.com",
    "//example.com/",
    "/path",
    "https:",
    "https://",
    "https:///path",
    "https:/example.com",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "https://user@example.com/",
    "https://user:secret@example.com/",
    "https://example.com/#fragment",
    "https://example.com#",
    "https://exa mple.com/",
    "https://example.com/a b",
    "https://example.com/\r\nHost: x",
    "https://example.com/\x00",
    "https://example.com\\@evil.example/",
    "https://münchen.example/",
    "https://１２７.０.０.１/",
    "https://example.com:0/",
    "https://example.com:65536/",
    "https://example.com:x/",
    "https://127.1/",
    "https://0x7f000001/",
    "https://2130706433/",
    "https://0177.0.0.1/",
    "https://%31%32%37.0.0.1/",
    "https://[fe80::1%25eth0]/",
    "https://[::1",
    "https://evil.example[::1]/",
    "https://[2606:4700::1]evil.example/",
    "https://[v1.example.com]/",
    "https://-a.example/",
    "https://a..example/",
    "https://" + "a" * 64 + ".example/",
    "https://example.com/" + "a" * URL_BYTES_MAX,
]
REFUSED_UNLESS_NAMED = [
    "http://example.com/",
    "http://8.8.8.8/",
    "http://127.0.0.1/",
    "https://127.0.0.1/",
    "https://[::1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://localhost/",
    "https://LOCALHOST./",
    "https://a.localhost/",
    "https://10.0.0.1/",
    "https://169.254.169.254/latest/meta-data",
    "https://100.64.1.1/",
    "https://224.0.0.1/",
    "https://0.0.0.0/",
]


def refusal(policy, url):
    with pytest.raises(OutboundRefusedError) as caught:
        policy.check_url(url)
    return caught.value.message


@pytest.mark.parametrize("patterns", [[], PATTERNS], ids=["bare", "with patterns"])
@pytest.mark.parametrize(("url", "target"), ALLOWED_TO_ALL)
def test_public_https_passes(patterns, url, target):
    assert str(TargetPolicy(patterns).check_url(url)) == target


@for_each("patterns", [[], PATTERNS])
@for_each("url", REFUSED_TO_ALL)
def test_what_is_no_plain_url_is_refused(patterns, url):
    assert refusal(TargetPolicy(patterns), url).endswith(".")


@pytest.mark.spec(
    "subscriptions 6.2-11",
    "subscriptions 6.2-12",
    "subscriptions 12.8-1",
    "subscriptions 12.8-2",
    "subscriptions 12.8-3",
    "subscriptions 12.8-4",
)
@pytest.mark.parametrize("url", REFUSED_UNLESS_NAMED)
def test_plain_http_and_inner_addresses_need_a_name(url):
    message = refusal(TargetPolicy(), url)
    assert "ask the operator to allow it" in message


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.0.0.1:9999/hook",
        "http://localhost:3000/",
        "http://LocalHost.:3000/",
        "https://a.internal.example:8443/",
        "https://a.b.internal.example:8443/",
        "http://10.200.3.4/",
        "https://[fd00:1::5]:1234/",
        "http://[::1]:4000/",
    ],
)
def test_patterns_name_exceptions(url):
    assert TargetPolicy(PATTERNS).check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/",
        "http://127.0.0.2/",
        "http://[::ffff:127.0.0.1]/",
        "https://localhost:3000/",
        "http://a.localhost:3000/",
        "http://a.internal.example:8443/",
        "http://hooks.example/",
        "http://10.0.0.1:81/",
        "https://10.0.0.1/",
        "https://[fd00:2::5]/",
        "http://[::1]:4001/",
        "http://11.0.0.1/",
    ],
)
def test_patterns_name_no_more_than_they_say(url):
    assert refusal(TargetPolicy(PATTERNS), url)


@pytest.mark.spec("subscriptions 6.2-10", "subscriptions 12.8-3", "subscriptions 12.8-4")
@pytest.mark.parametrize(
    ("host", "port", "address", "passes"),
    [
        ("example.com", 443, "93.184.215.14", True),
        ("example.com", 443, "2606:4700::1", True),
        ("example.com", 443, "127.0.0.1", False),
        ("example.com", 443, "10.0.0.1", False),
        ("example.com", 443, "::ffff:10.0.0.1", False),
        ("example.com", 443, "fe80::1%eth0", False),
        ("example.com", 443, "169.254.169.254", False),
        ("example.com", 443, "nonsense", False),
        # A pattern with a name lets it be inside, but not at a metadata server.
        ("a.internal.example", 8443, "10.0.0.1", True),
        ("A.Internal.Example.", 8443, "127.0.0.1", True),
        ("a.internal.example", 8443, "100.64.0.9", True),
        ("a.internal.example", 443, "10.0.0.1", False),
        ("internal.example", 8443, "10.0.0.1", False),
        ("evilinternal.example", 8443, "10.0.0.1", False),
        ("a.internal.example", 8443, "169.254.169.254", False),
        ("a.internal.example", 8443, "0.0.0.0", False),
        ("a.internal.example", 8443, "224.0.0.1", False),
        ("hooks.example", 443, "192.168.0.9", True),
        # A range under https holds for every name, one under http for what spells the address.
        ("example.com", 443, "fd00:1::9", True),
        ("example.com", 443, "fd00:2::9", False),
        ("example.com", 80, "10.0.0.1", False),
        ("10.0.0.1", 80, "10.0.0.1", True),
    ],
)
def test_addresses_are_checked_again_for_each_connection(host, port, address, passes):
    policy = TargetPolicy(PATTERNS)
    if passes:
        policy.check_address(host, port, address)
    else:
        with pytest.raises(OutboundRefusedError):
            policy.check_address(host, port, address)


def test_link_local_needs_a_pattern_for_the_address():
    policy = TargetPolicy(["http://169.254.169.254"])
    assert policy.check_url("http://169.254.169.254/x") == Target("http", "169.254.169.254", 80)
    policy.check_address("169.254.169.254", 80, "169.254.169.254")


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "*",
        "localhost",
        "localhost:80",
        "ftp://a",
        "https://",
        "https://*",
        "https://a*.example",
        "https://*.*.example",
        "https://user@a",
        "https://a/path",
        "https://a:0",
        "https://a:70000",
        "https://a:b",
        "http://10.0.0.1/8",
        "http://10.0.0.0/33",
        "http://127.1",
        "http://[::1]/64",
    ],
)
def test_a_pattern_that_is_none_is_a_settings_error(pattern):
    with pytest.raises(SettingsError, match="pattern"):
        TargetPolicy([pattern])


@given(st.text(max_size=60))
@example("https://user:hunter2@host/secret")
@example("https://host/secret#x")
@example("http://host/secret?token=secret")
def test_any_text_is_taken_or_refused_and_never_repeated(text):
    said = ""
    try:
        target = TargetPolicy().check_url(text)
    except OutboundRefusedError as error:
        said = error.message
    else:
        assert target.scheme == "https"
        assert target.host in text.lower()
    assert "secret" not in said
    assert "hunter2" not in said


@pytest.mark.spec("subscriptions 6.2-12", "subscriptions 12.8-3")
@given(
    st.ip_addresses(v=4).filter(lambda each: not each.is_global),
    st.sampled_from(["https://{}/", "https://[::ffff:{}]/", "https://{}.:8443/"]),
)
def test_no_spelling_of_an_inner_address_passes(address, form):
    assert refusal(TargetPolicy(), form.format(address))
