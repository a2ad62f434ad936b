"""What clients of subscriptions may get wrong, and what they are told then."""

from uuid import uuid4

import pytest

from tests.http.streams import check_error

SUBSCRIPTIONS = "/v1/stream/__ds/subscriptions"


@pytest.mark.parametrize(
    "limit",
    ["0", "00", "10001", "99999999", "-1", "+1", "1.0", "x", "", "٣", "1 ", "0" * 8 + "19999999"],
)
def test_limit_that_is_none_is_400(client, limit) -> None:
    answer = client.get(SUBSCRIPTIONS, params={"limit": limit})
    check_error(answer, 400, "invalid_request", about="limit")


@pytest.mark.parametrize("zeros", [0, 8, 100])
@pytest.mark.parametrize("digits", [5000, 20_000])
def test_limit_with_more_digits_than_numbers_have_is_400(client, zeros, digits) -> None:
    answer = client.get(f"{SUBSCRIPTIONS}?limit={'0' * zeros}1{'9' * digits}")
    check_error(answer, 400, "invalid_request", about="limit")


@pytest.mark.parametrize("limit", ["1", "10000", "007"])
def test_limit(client, limit) -> None:
    answer = client.get(SUBSCRIPTIONS, params={"limit": limit})
    assert answer.status_code == 200
    assert "subscriptions" in answer.json()


@pytest.mark.parametrize("host", ["xn--", "xn--a", "xn--0.example", "b..example", "ü" * 80])
def test_webhook_whose_host_is_no_name(client, host) -> None:
    url = f"{SUBSCRIPTIONS}/sub-{uuid4().hex}"
    body = {"type": "webhook", "pattern": "events/*", "webhook": {"url": f"https://{host}/"}}
    answer = client.put(url, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "WEBHOOK_URL_REJECTED"
    assert client.get(url).status_code == 404
