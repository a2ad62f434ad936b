"""Look-ups that may wait: they say what they need, and are made once it is there."""

from queue import SimpleQueue

import pytest

from holdfast.storage.catalog import BY_NAME
from holdfast.storage.warm_catalog import _THREADS, CatalogWait, WarmCatalog
from holdfast.testing import FakeClock

LOOK = (BY_NAME, ("b/s",))
OTHER = (BY_NAME, ("b/t",))


@pytest.fixture
def catalog(rig):
    """A catalog that is not in the page cache, with one stream."""
    rig.log.create("b/s", b"x")
    rig.flush()
    catalog = WarmCatalog(rig.catalog.path, FakeClock())
    catalog.may_wait = True
    yield catalog
    catalog.close()


def test_only_attempts_wait(catalog):
    assert catalog.find_name("b/s").tail == 1
    with pytest.raises(CatalogWait) as wait:
        catalog.attempt(lambda: catalog.find_name("b/s"))
    assert wait.value.looks == [LOOK]
    assert catalog.find_name("b/s").tail == 1, "what follows does not wait"
    assert catalog.attempt(lambda: catalog.find_name("b/s"), wait.value.looks).tail == 1
    catalog.may_wait = False
    assert catalog.attempt(lambda: catalog.find_name("b/s")).tail == 1


def test_what_is_expected_is_waited_for_once_and_nothing_after_it(catalog):
    changes = []

    def call():
        catalog.expect([LOOK, OTHER])
        changes.append("made")
        return catalog.find_name("b/none"), catalog.find_name("b/s").tail

    for warmed in ([], [LOOK]):
        with pytest.raises(CatalogWait) as wait:
            catalog.attempt(call, warmed)
        assert wait.value.looks == [look for look in (LOOK, OTHER) if look not in warmed]
    assert not changes
    assert catalog.attempt(call, [LOOK, OTHER]) == (None, 1)
    assert changes == ["made"]


def test_a_look_up_that_fails_gets_its_result_and_ends_no_thread(rig, caplog):
    clock, posted = FakeClock(), SimpleQueue()
    rig.log.create("b/s", b"x")
    rig.flush()
    catalog = WarmCatalog(rig.catalog.path, clock)
    catalog.start(lambda *call: posted.put(call))

    def answered(job):
        """The result of a job that is handed over by itself."""
        results = []
        catalog.warm(job).then(results.append)
        clock.advance(0.001)
        while not results:
            call, *arguments = posted.get(timeout=10)
            call(*arguments)
        return results

    def fail(_):
        raise OSError("too many open files")

    try:
        for _ in range(_THREADS + 1):
            assert answered(fail) == [None]
        assert answered(lambda reader: reader.find_name("b/s").tail) == [1]
    finally:
        catalog.close()
    assert "too many open files" in caplog.text
