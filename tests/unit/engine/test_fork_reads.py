"""Reads of a fork with small limits: whatever is behind the fork's place is the fork's own."""

import pytest

from holdfast.storage.cold import ColdBytes
from tests.unit.engine.tiered import Tiered

TEXTS = ("abcdefghij", "añ€😀ö€ß", "€€€€")


@pytest.fixture(params=["hot", "cold", "source cold", "fork cold"])
def make(request, tmp_path):
    """A source, and a fork that starts somewhere in its only message and has bytes of its own."""
    drivers = []

    def made(source, at, own):
        driver = Tiered(tmp_path)
        drivers.append(driver)
        driver.create("b/source", body=source)
        if request.param in {"cold", "source cold"}:
            driver.flush()
        driver.fork("b/fork", "b/source", at, body=own)
        driver.commit()
        if request.param in {"cold", "fork cold"}:
            driver.flush()
        return driver

    yield made
    for driver in drivers:
        driver.close()


def read(driver, at, bytes_max):
    answers = []
    driver.shard.reader.read(driver.shard.find("b/fork"), at, bytes_max, answers.append)
    driver.clock.run()
    [answer] = answers
    return answer


def test_limit_that_is_smaller_than_a_character_may_be(make):
    """Text gives room for any one character, but not for what the source has behind the place."""
    driver = make(b"abcdefghij", 5, b"XYZ")
    assert read(driver, 0, 1) == ColdBytes(4, b"abcd")
    assert read(driver, 3, 1) == ColdBytes(5, b"de")
    assert read(driver, 4, 1) == ColdBytes(5, b"e")
    assert read(driver, 5, 1) == ColdBytes(8, b"XYZ")


@pytest.mark.parametrize("source", TEXTS)
def test_every_place_offset_and_limit(make, source):
    """Also where a character has to be looked at as a whole."""
    whole = source.encode()
    places = [len(source[:count].encode()) for count in range(len(source) + 1)]
    place = places[len(places) // 2]
    driver, expected = make(whole, place, b"XYZ"), whole[:place] + b"XYZ"
    for at in [each for each in places if each <= place] + [place + 1, place + 2]:
        for bytes_max in range(1, 9):
            end, data = read(driver, at, bytes_max)
            assert data
            assert data == expected[at:end]


@pytest.mark.parametrize("place", [0, 2, 5, 7, 10])
def test_whole_of_it_in_small_reads(make, place):
    driver = make(b"abcdefghij", place, b"XYZ")
    for bytes_max in range(1, 6):
        found = driver.content("b/fork", bytes_max=bytes_max)
        assert found == b"abcdefghij"[:place] + b"XYZ"
