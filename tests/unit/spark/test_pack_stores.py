"""Which store executors read packs from, and for how long one counts as absent."""

from pathlib import Path

from holdfast.client.auth import shared_tls
from holdfast.objects.directory_objects import DirectoryObjects
from holdfast.objects.locations import StoreLocation
from holdfast.objects.store import MARKER, encode_marker
from holdfast.spark.reading.packs import reachable_store
from holdfast.testing import FakeClock


def test_a_store_that_comes_later_is_found(tmp_path: Path) -> None:
    clock, place = FakeClock(), StoreLocation(str(tmp_path / "store"))

    def look(*, insist: bool = False) -> object:
        return reachable_store(place, "abc", insist=insist, clock=clock)

    said = look()
    assert said == f"The object store {place.url} does not exist, or is not one of Holdfast's."
    DirectoryObjects(tmp_path / "store").put(MARKER, encode_marker("abc"))
    # Asking takes seconds where nobody answers, so it is not done for every slice.
    assert look() == said
    clock.advance(61)
    assert isinstance(look(), DirectoryObjects)


def test_who_insists_looks_again(tmp_path: Path) -> None:
    clock, place = FakeClock(), StoreLocation(str(tmp_path / "store"))
    assert isinstance(reachable_store(place, "abc", clock=clock), str)
    DirectoryObjects(tmp_path / "store").put(MARKER, encode_marker("abc"))
    assert isinstance(reachable_store(place, "abc", insist=True, clock=clock), DirectoryObjects)


def test_a_store_of_another_server(tmp_path: Path) -> None:
    DirectoryObjects(tmp_path).put(MARKER, encode_marker("other"))
    said = reachable_store(StoreLocation(str(tmp_path)), "abc", clock=FakeClock())
    assert said == f"The object store {tmp_path} is not the server's own."


def test_certificates_are_read_once() -> None:
    assert shared_tls("") is shared_tls("")
