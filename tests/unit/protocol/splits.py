"""Ways to cut bytes into pieces, as networks do."""

from collections.abc import Iterable, Iterator

from hypothesis import strategies as st

# Where to cut, as fractions of whatever is to be cut.
random_cuts = st.lists(st.floats(0, 1), max_size=12)


def two_pieces(data: bytes) -> Iterator[list[bytes]]:
    """Cut in two at every byte, both ends included."""
    for at in range(len(data) + 1):
        yield [data[:at], data[at:]]


def single_bytes(data: bytes) -> list[bytes]:
    """One piece for each byte."""
    return [data[at : at + 1] for at in range(len(data))]


def cut_at(data: bytes, cuts: Iterable[float]) -> list[bytes]:
    """Cut at these fractions; pieces may be empty."""
    places = sorted(round(cut * len(data)) for cut in cuts)
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
