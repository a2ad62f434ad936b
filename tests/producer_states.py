"""The producers of a stream, wherever the server has them."""

from holdfast.protocol.producer import ProducerState


def stored_producers(catalog, number):
    """Those in the catalog."""
    rows = catalog.read(
        "SELECT id, epoch, seq, used_ms, digest FROM producers WHERE stream = ?", (number,)
    )
    return {producer_id: ProducerState(*state) for producer_id, *state in rows}


def known_producers(catalog, stream):
    """Those of a stream in memory, in the catalog too."""
    stored = {} if catalog is None else stored_producers(catalog, stream.number)
    return {**stored, **(stream.cut_producers or {}), **(stream.producers or {})}
