"""What tokens that were not seen before cost the address they come from."""

import pytest

from holdfast.errors import RateLimitedError, UnauthorizedError
from holdfast.http.access.scopes import Need
from holdfast.testing import FakeClock
from tests.unit.http.access.gates import gate, request
from tests.unit.http.access.signing import NOW_S, SECRET, signed

PROXY, ELSEWHERE = "10.0.0.1", "10.0.0.2"
RATE = 10


@pytest.fixture
def clock():
    return FakeClock(start_ms=NOW_S * 1000)


@pytest.fixture
def guarded(clock):
    return gate(clock, access_jwt_secret=SECRET, client_rate=str(RATE))


def ask(guarded, token, peer=PROXY):
    """The status of a request with this token."""
    try:
        guarded.admit(request(token, peer=peer), Need.READ, "demo", "a")
    except (UnauthorizedError, RateLimitedError) as error:
        return error.status
    return 200


def user(number):
    return signed(sub=f"user-{number}").decode()


def guess(number):
    return signed(key=f"a secret that is not the server's: {number}").decode()


def test_many_users_behind_one_proxy(guarded):
    """Each has an allowance of its own."""
    assert [ask(guarded, user(number)) for number in range(5 * RATE)] == [200] * (5 * RATE)
    for number in range(3):
        rest = [ask(guarded, user(number)) for _ in range(RATE)]
        assert rest == [200] * (RATE - 1) + [429]


def test_one_user_with_many_tokens(guarded):
    """The allowance is the user's, however many tokens there are."""
    tokens = [signed(sub="one", exp=NOW_S + 600 + number).decode() for number in range(2 * RATE)]
    assert [ask(guarded, token) for token in tokens] == [200] * RATE + [429] * RATE


def test_guesses_are_charged_to_the_address(guarded):
    assert [ask(guarded, guess(number)) for number in range(2 * RATE)] == [401] * RATE + [
        429
    ] * RATE
    assert ask(guarded, guess(0), ELSEWHERE) == 401


def test_good_tokens_among_guesses(guarded):
    """They cost the address nothing, and wait only once its guesses are used up."""
    ask(guarded, user(0))
    for number in range(1, RATE + 1):
        assert ask(guarded, user(number)) == 200
        assert ask(guarded, guess(number)) == 401
    assert ask(guarded, guess(99)) == 429
    assert ask(guarded, user(99)) == 429
    # Whoever was seen before is not held up, nor is anybody elsewhere.
    assert ask(guarded, user(0)) == 200
    assert ask(guarded, user(99), ELSEWHERE) == 200


def test_guesses_are_forgiven_in_time(guarded, clock):
    for number in range(2 * RATE):
        ask(guarded, guess(number))
    assert ask(guarded, user(1)) == 429
    clock.advance(1 / RATE)
    # Asking took nothing: there is room for exactly one.
    assert ask(guarded, user(1)) == 200
    assert ask(guarded, guess(100)) == 401
    assert ask(guarded, guess(101)) == 429
