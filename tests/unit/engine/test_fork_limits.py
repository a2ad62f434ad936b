"""Forks that come to nothing: their source was replaced, or lies too deep."""

import pytest

from holdfast.engine import creating
from holdfast.engine.requests import CreateRequest, ForkRequest
from holdfast.errors import ConflictError, StreamNotFoundError, UnavailableError
from tests.unit.engine.driver import NAME, TEXT, Driver, created

FORK = "bucket/fork"


@pytest.fixture
def driver():
    """A stream of ten bytes."""
    driver = Driver()
    driver.create(body=b"0123456789")
    driver.commit()
    return driver


def fork(driver, offset, source, name=FORK):
    request = CreateRequest(None, fork=ForkRequest(NAME, offset, offset, source=source))
    return driver._ask(driver.shard.create, name, request)


class TestSource:
    """An offset was resolved for one stream, and holds for no other of the same name."""

    def test_the_one_that_the_offset_was_resolved_for(self, driver):
        number = driver.shard.find(NAME).number
        asked = fork(driver, 5, number)
        assert driver.committed(asked) == created(True, TEXT, 5, closed=False)

    @pytest.mark.parametrize("body", [b"0123456789", b"short"])
    def test_another_one(self, driver, body):
        number = driver.shard.find(NAME).number
        driver.delete()
        driver.create(body=body)
        pending = fork(driver, 5, number)
        driver.clock.run()
        # It rests on a deletion and a creation that are not durable yet.
        assert not pending.answered
        assert isinstance(driver.committed(pending), UnavailableError)
        assert isinstance(fork(driver, 5, number).outcome, UnavailableError)
        assert not driver.exists(FORK)

    def test_one_that_is_gone(self, driver):
        number = driver.shard.find(NAME).number
        driver.committed(driver.delete())
        assert isinstance(fork(driver, 5, number).outcome, StreamNotFoundError)

    def test_offset_that_was_not_resolved(self, driver):
        """The name was taken when the request came, and is free by now."""
        refused = fork(driver, 5, 0).outcome
        assert isinstance(refused, UnavailableError)
        assert refused.retryable
        assert not driver.exists(FORK)

    def test_without_an_offset_there_is_nothing_to_resolve(self, driver):
        asked = fork(driver, None, 0)
        assert driver.committed(asked) == created(True, TEXT, 10, closed=False)

    def test_fork_that_is_there_is_confirmed(self, driver):
        driver.committed(driver.fork(FORK, offset=5))
        assert fork(driver, 5, 0).outcome == created(False, TEXT, 5, closed=False)


class TestDepth:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch):
        monkeypatch.setattr(creating, "FORK_DEPTH_MAX", 3)

    def chain(self, driver, length, commits):
        """Forks of forks, and what the last of them was answered."""
        source, ask = NAME, None
        for number in range(1, length + 1):
            ask = driver.fork(f"b/{number}", source)
            if commits:
                driver.commit()
            source = f"b/{number}"
        return driver.committed(ask)

    @pytest.mark.parametrize("commits", [True, False], ids=["durable", "pending"])
    def test_beyond_the_limit_is_a_conflict(self, driver, commits):
        assert self.chain(driver, 3, commits).created
        refused = driver.committed(driver.fork("b/4", "b/3"))
        assert (type(refused), refused.code, refused.status) == (ConflictError, "conflict", 409)
        assert not driver.exists("b/4")

    def test_any_number_of_forks_of_one_stream(self, driver):
        for number in range(10):
            assert driver.committed(driver.fork(f"b/{number}")).created

    def test_sources_that_are_deleted_count(self, driver):
        self.chain(driver, 3, commits=True)
        for name in (NAME, "b/1", "b/2"):
            driver.committed(driver.delete(name))
        assert isinstance(driver.committed(driver.fork("b/4", "b/3")), ConflictError)
        assert driver.content("b/3") == b"0123456789"

    def test_refusal_holds_nothing(self, driver):
        self.chain(driver, 3, commits=True)
        driver.committed(driver.fork("b/4", "b/3"))
        for name in ("b/3", "b/2", "b/1", NAME):
            driver.committed(driver.delete(name))
        assert not driver.shard.state.by_name
