"""Errors about what a request is for: it is missing, gone, or in another state."""

from __future__ import annotations

from holdfast.errors.root import HoldfastError


class ProducerFencedError(HoldfastError):
    """A newer epoch of this producer has written: this one is a zombie."""

    code = "stale_producer_epoch"
    status = 403

    def __init__(self, epoch: int) -> None:
        super().__init__(
            f"The producer's epoch is stale: the stream has seen epoch {epoch}. "
            f"Claim the producer with epoch {epoch + 1} and sequence 0."
        )
        self.epoch = epoch


class NotFoundError(HoldfastError):
    """Nothing lives at this path."""

    code = "not_found"
    status = 404


class StreamNotFoundError(NotFoundError):
    """The stream does not exist, was deleted, or has expired."""

    code = "stream_not_found"

    def __init__(self, name: str) -> None:
        path = name.removeprefix("_default/")
        super().__init__(f"There is no stream {path!r}. Create it with PUT first.")


class BucketNotFoundError(NotFoundError):
    """The bucket does not exist."""

    code = "bucket_not_found"

    def __init__(self, bucket: str) -> None:
        super().__init__(f"There is no bucket {bucket!r}. Create it with PUT /{bucket} first.")


class SnapshotNotFoundError(NotFoundError):
    """The stream has no snapshot, or none at this offset."""

    code = "snapshot_not_found"


class ConflictError(HoldfastError):
    """The request contradicts the state of the stream."""

    code = "conflict"
    status = 409


class StreamExistsError(ConflictError):
    """The stream exists with another configuration."""

    code = "stream_exists"


class BucketExistsError(ConflictError):
    """The bucket was created before."""

    code = "bucket_exists"


class BucketNotEmptyError(ConflictError):
    """The bucket still holds streams."""

    code = "bucket_not_empty"


class SnapshotConflictError(ConflictError):
    """The snapshot lies past the tail, or is the one that readers need."""

    code = "snapshot_conflict"


class ForkSourceDeletedError(ConflictError):
    """The stream to fork was deleted, and lives on in its forks only."""

    code = "fork_source_deleted"


class StreamClosedError(ConflictError):
    """The stream is closed: nothing can be appended any more."""

    code = "stream_closed"

    def __init__(self, tail: int) -> None:
        super().__init__("The stream is closed and takes no more appends.")
        self.tail = tail


class ContentTypeMismatchError(ConflictError):
    """The append's content type is not the stream's."""

    code = "content_type_mismatch"


class ProducerGapError(ConflictError):
    """A producer skipped a sequence number."""

    code = "producer_sequence_gap"

    def __init__(self, expected: int, received: int) -> None:
        super().__init__(f"The producer's next sequence is {expected}, not {received}.")
        self.expected = expected
        self.received = received


class StreamSeqError(ConflictError):
    """`Stream-Seq` did not increase."""

    code = "stream_seq_regression"


class SwapRefusedError(ConflictError):
    """A pack is not in use any more, or the new packs do not hold the same bytes."""

    code = "swap_refused"


class GoneError(HoldfastError):
    """What was here is gone for good."""

    code = "gone"
    status = 410


class StreamDeletedError(GoneError):
    """The stream was deleted, but forks of it live on: its name is not free yet."""

    code = "stream_deleted"

    def __init__(self, name: str) -> None:
        path = name.removeprefix("_default/")
        super().__init__(f"The stream {path!r} was deleted; its name is free once its forks are.")


class OffsetGoneError(GoneError):
    """The offset lies before the earliest one that is retained."""

    code = "offset_gone"

    def __init__(self, earliest: int) -> None:
        super().__init__(
            f"Everything before offset {earliest:020d} is in a snapshot: start with /bootstrap, "
            "or read from that offset on."
        )
        self.earliest = earliest
        self.earliest_offset = f"{earliest:020d}"


class CursorGoneError(GoneError):
    """The changes since this cursor are not in the log any more."""

    code = "cursor_gone"

    def __init__(self, earliest: int) -> None:
        super().__init__(
            f"The changes before cursor {earliest:020d} are not kept any longer: "
            "scan the bucket, and follow its changes from where the scan ends."
        )
        self.earliest = earliest
        self.earliest_cursor = f"{earliest:020d}"


class PreconditionFailedError(HoldfastError):
    """`If-Match` names another state of the stream than the present one."""

    code = "precondition_failed"
    status = 412
