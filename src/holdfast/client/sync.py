"""The client for code that is not async: the same methods, which wait.

with SyncClient("http://127.0.0.1:4437") as client:
    stream = client.stream("demo/hello")
    stream.append("hello")
    for message in stream.read():
        print(message.text)

Nothing is written twice: each method runs the async one in a thread with an event loop, and has its
signature. Everything here may be used from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self

from holdfast.client.buckets import Bucket
from holdfast.client.client import Client
from holdfast.client.loop_thread import Facade, Items, LoopThread, blocking, facing, iterating
from holdfast.client.messages import Message
from holdfast.client.producer import Producer
from holdfast.client.proxy_sync import SyncProxy
from holdfast.client.reading import Reading, handing_out
from holdfast.client.snapshots import Bootstrap, Snapshots
from holdfast.client.storage import Storage
from holdfast.client.stream import Stream
from holdfast.client.types import Appended, Created

P = ParamSpec("P")


def _with_arguments_of(
    _: Callable[P, Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Type a constructor like another one, instead of repeating its arguments."""
    return lambda constructor: constructor


class SyncReading(Facade):
    """A read under way: iterate over it for messages, or over `batches()`."""

    _inner: Reading

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        # Threads take turns once for all messages that came together, not for each.
        for messages in Items(self._thread, self._inner.message_lists()):
            yield from handing_out(self._inner, messages)

    @property
    def offset(self) -> str:
        """Behind the last thing handed out: give it back to a later read."""
        return self._inner.offset

    @property
    def cursor(self) -> str | None:
        """For caches in between: give it back to a later read, too."""
        return self._inner.cursor

    @property
    def content_type(self) -> str:
        """The stream's content type, once something was read."""
        return self._inner.content_type

    @property
    def up_to_date(self) -> bool:
        """Whether the tail was reached."""
        return self._inner.up_to_date

    @property
    def closed(self) -> bool:
        """Whether the stream is closed, and all of it was read."""
        return self._inner.closed

    batches = iterating(Reading.batches)
    read_bytes = blocking(Reading.read_bytes)
    read_text = blocking(Reading.read_text)
    read_json = blocking(Reading.read_json)
    close = blocking(Reading.aclose)


class SyncProducer(Facade):
    """A writer whose appends are stored exactly once."""

    _inner: Producer

    def __enter__(self) -> Self:
        self._thread.call(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.call(self._inner.__aexit__(kind, error, trace))

    @property
    def acknowledged(self) -> int:
        """Messages that the server has."""
        return self._inner.acknowledged

    @property
    def pending_bytes(self) -> int:
        """Bytes that are not acknowledged yet."""
        return self._inner.pending_bytes

    @property
    def epoch(self) -> int:
        """The epoch that it writes under."""
        return self._inner.epoch

    @property
    def last(self) -> Appended | None:
        """The server's last answer."""
        return self._inner.last

    def append_many(self, messages: Iterable[Any]) -> None:
        """Take messages, one by one; a list or another sequence is faster than an iterator."""
        if isinstance(messages, Sequence):
            self._thread.call(self._inner.append_many(messages))
            return
        # It may take its time between two of them, or wait for the client itself.
        for message in messages:
            self.append(message)

    append = blocking(Producer.append)
    flush = blocking(Producer.flush)
    close = blocking(Producer.close)
    close_stream = blocking(Producer.close_stream)


class SyncSnapshots(Facade):
    """The snapshots of one stream."""

    publish = blocking(Snapshots.publish)
    get = blocking(Snapshots.get)
    delete = blocking(Snapshots.delete)


class SyncBootstrap(Facade):
    """The answer to a bootstrap: read the snapshot first, then iterate over the messages."""

    _inner: Bootstrap

    @property
    def snapshot_offset(self) -> str:
        """Where the snapshot is; `-1` if there is none."""
        return self._inner.snapshot_offset

    @property
    def next_offset(self) -> str:
        """Where to read on."""
        return self._inner.next_offset

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return self._inner.closed

    snapshot = blocking(Bootstrap.snapshot)
    snapshot_pieces = iterating(Bootstrap.snapshot_pieces)
    messages = iterating(Bootstrap.messages)


class SyncStream(Facade):
    """A stream by its name."""

    _inner: Stream

    def __init__(self, thread: LoopThread, inner: Stream) -> None:
        super().__init__(thread, inner)
        self.snapshots = SyncSnapshots(thread, inner.snapshots)

    @property
    def name(self) -> str:
        """As it was given."""
        return self._inner.name

    @property
    def url(self) -> str:
        """Where it is."""
        return self._inner.url

    create = blocking(Stream.create, lists="messages")
    append = blocking(Stream.append)
    append_many = blocking(Stream.append_many, lists="messages")
    close = blocking(Stream.close)
    head = blocking(Stream.head)
    delete = blocking(Stream.delete)
    read = facing(Stream.read, SyncReading)
    producer = facing(Stream.producer, SyncProducer)
    bootstrap_and_follow = iterating(Stream.bootstrap_and_follow)

    def fork(self, source: SyncStream, **options: Any) -> Created:
        """Create this stream as a fork of another one; the options are those of `Stream.fork`."""
        return self._thread.call(self._inner.fork(source._inner, **options))

    @contextmanager
    def bootstrap(self) -> Iterator[SyncBootstrap]:
        """The snapshot and every message since, in one answer, read as it arrives."""
        opening = self._inner.bootstrap()
        answer = self._thread.call(opening.__aenter__())
        try:
            yield SyncBootstrap(self._thread, answer)
        finally:
            self._thread.call(opening.__aexit__(None, None, None))


class SyncBucket(Facade):
    """A bucket by its id."""

    create = blocking(Bucket.create)
    info = blocking(Bucket.info)
    delete = blocking(Bucket.delete)
    scan = blocking(Bucket.scan)
    until = blocking(Bucket.until)
    streams = iterating(Bucket.streams)
    changes = iterating(Bucket.changes)
    ranges = iterating(Bucket.ranges)
    records = iterating(Bucket.records)


class SyncStorage(Facade):
    """The storage of a server."""

    store = blocking(Storage.store)
    packs = iterating(Storage.packs)
    extents = iterating(Storage.extents)
    pack_data = blocking(Storage.pack_data)
    flush = blocking(Storage.flush)
    swap_packs = blocking(Storage.swap_packs)
    pin_packs = blocking(Storage.pin_packs)
    collect_garbage = blocking(Storage.collect_garbage)
    stats = blocking(Storage.stats)


class SyncClient(Facade):
    """A client of one server; its arguments are those of `Client`."""

    _inner: Client

    @_with_arguments_of(Client)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Made first: arguments that are wrong leave no thread behind.
        client = Client(*arguments, **options)
        super().__init__(LoopThread(), client)
        self.storage = SyncStorage(self._thread, client.storage)
        self.proxy = SyncProxy(self._thread, client.proxy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection, and the thread; doing so again changes nothing."""
        if self._thread.is_alive:
            self._thread.call(self._inner.aclose())
            self._thread.stop()

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._inner.url

    stream = facing(Client.stream, SyncStream)
    bucket = facing(Client.bucket, SyncBucket)
    request = blocking(Client.request)
