"""The client for blocking code: the same methods, which wait for their results.

with SyncClient("http://127.0.0.1:4437") as client:
    stream = client.stream("demo/hello")
    stream.append("hello")
    for message in stream.read():
        print(message.text)

There is no second implementation: each method has the signature of the async one and runs it in a
thread with an event loop. All classes here may be used from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self

from holdfast.client.buckets import Bucket
from holdfast.client.client import Client
from holdfast.client.loop_thread import (
    Attribute,
    BlockingIterator,
    ClosingFacade,
    Facade,
    LoopThread,
    blocking,
    iterating,
    wrapping,
    wrapping_result,
)
from holdfast.client.messages import Message
from holdfast.client.producer import Appended, Producer
from holdfast.client.proxy import Proxy, ProxySession
from holdfast.client.proxy_frames import FrameReading
from holdfast.client.proxy_response import ProxyResponse, ResponseReading
from holdfast.client.reading import Reading, advancing
from holdfast.client.snapshots import Bootstrap, Snapshots
from holdfast.client.storage import Storage
from holdfast.client.stream import Created, Stream
from holdfast.protocol.frames import Frame, Outcome

P = ParamSpec("P")


def _with_arguments_of(
    _: Callable[P, Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the type of another one, instead of repeating its arguments."""
    return lambda constructor: constructor


class SyncReading(ClosingFacade):
    """A read in progress: iterate over it for messages, or over `batches()`."""

    _inner: Reading

    def __iter__(self) -> Iterator[Message]:
        # One switch between threads for all messages that arrived together, not for each.
        for messages in BlockingIterator(self._thread, self._inner.message_lists()):
            yield from advancing(self._inner, messages)

    offset = Attribute[str]()
    cursor = Attribute[str | None]()
    content_type = Attribute[str]()
    up_to_date = Attribute[bool]()
    closed = Attribute[bool]()
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

    def append_many(self, messages: Iterable[Any]) -> None:
        """Buffer messages, one by one; a sequence is faster than an iterator."""
        if isinstance(messages, Sequence):
            self._thread.call(self._inner.append_many(messages))
            return
        # An iterator may be slow, or wait for the client itself.
        for message in messages:
            self.append(message)

    acknowledged = Attribute[int]()
    pending_bytes = Attribute[int]()
    epoch = Attribute[int]()
    last = Attribute[Appended | None]()
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
    """The response to a bootstrap request: the snapshot comes first, then the messages."""

    snapshot_offset = Attribute[str]()
    next_offset = Attribute[str]()
    closed = Attribute[bool]()
    snapshot = blocking(Bootstrap.snapshot)
    snapshot_pieces = iterating(Bootstrap.snapshot_pieces)
    messages = iterating(Bootstrap.messages)


class SyncStream(Facade):
    """A stream; creating this object sends no request."""

    _inner: Stream

    def __init__(self, thread: LoopThread, inner: Stream) -> None:
        super().__init__(thread, inner)
        self.snapshots = SyncSnapshots(thread, inner.snapshots)

    name = Attribute[str]()
    url = Attribute[str]()
    create = blocking(Stream.create, lists="messages")
    append = blocking(Stream.append)
    append_many = blocking(Stream.append_many, lists="messages")
    close = blocking(Stream.close)
    head = blocking(Stream.head)
    delete = blocking(Stream.delete)
    read = wrapping(Stream.read, SyncReading)
    producer = wrapping(Stream.producer, SyncProducer)
    bootstrap_and_follow = iterating(Stream.bootstrap_and_follow)

    def fork(self, source: SyncStream, **options: Any) -> Created:
        """Create this stream as a fork of another one; the options are those of `Stream.fork`."""
        return self._thread.call(self._inner.fork(source._inner, **options))

    @contextmanager
    def bootstrap(self) -> Iterator[SyncBootstrap]:
        """The snapshot and every message since, in one response that is read as it arrives."""
        bootstrap = self._inner.bootstrap()
        response = self._thread.call(bootstrap.__aenter__())
        try:
            yield SyncBootstrap(self._thread, response)
        finally:
            self._thread.call(bootstrap.__aexit__(None, None, None))


class SyncBucket(Facade):
    """A bucket; creating this object sends no request."""

    create = blocking(Bucket.create)
    info = blocking(Bucket.info)
    delete = blocking(Bucket.delete)
    publish_snapshots = blocking(Bucket.publish_snapshots)
    scan = blocking(Bucket.scan)
    pack_streams = blocking(Bucket.pack_streams)
    until = blocking(Bucket.until)
    forks = blocking(Bucket.forks)
    streams = iterating(Bucket.streams)
    changes = iterating(Bucket.changes)
    ranges = iterating(Bucket.ranges)
    records = iterating(Bucket.records)
    inherited = iterating(Bucket.inherited)


class SyncStorage(Facade):
    """The packs and the object store of a server."""

    store = blocking(Storage.store)
    packs = iterating(Storage.packs)
    extents = iterating(Storage.extents)
    pack_data = blocking(Storage.pack_data)
    flush = blocking(Storage.flush)
    swap_packs = blocking(Storage.swap_packs)
    pin_packs = blocking(Storage.pin_packs)
    collect_garbage = blocking(Storage.collect_garbage)
    stats = blocking(Storage.stats)


class SyncFrameReading(ClosingFacade):
    """All frames of a proxy stream as they arrive: iterate over it once."""

    def __iter__(self) -> Iterator[tuple[Frame, str]]:
        return BlockingIterator(self._thread, aiter(self._inner))

    offset = Attribute[str]()
    state = Attribute[str]()
    closed = Attribute[bool]()
    close = blocking(FrameReading.aclose)


class SyncResponseReading(ClosingFacade):
    """A response being read: its bytes, events, frames or all of it, once."""

    response_id = Attribute[int]()
    outcome = Attribute[Outcome]()
    offset = Attribute[str]()
    state = Attribute[str]()
    start = blocking(ResponseReading.start)
    read = blocking(ResponseReading.read)
    bytes = iterating(ResponseReading.bytes)
    events = iterating(ResponseReading.events)
    frames = iterating(ResponseReading.frames)
    close = blocking(ResponseReading.aclose)


class SyncProxyResponse(Facade):
    """A response that the proxy records, to be read now or at any later time."""

    stream_id = Attribute[str]()
    response_id = Attribute[int]()
    content_type = Attribute[str]()
    offset = Attribute[str]()
    url = Attribute[str]()
    follow = wrapping(ProxyResponse.follow, SyncResponseReading)


class SyncProxySession(Facade):
    """A connected session; `created` says whether its stream is new."""

    session_id = Attribute[str]()
    stream_id = Attribute[str]()
    created = Attribute[bool]()
    url = Attribute[str]()
    request = wrapping_result(ProxySession.request, SyncProxyResponse)
    follow = wrapping(ProxySession.follow, SyncResponseReading)
    frames = wrapping(ProxySession.frames, SyncFrameReading)
    abort = blocking(ProxySession.abort)
    renew = blocking(ProxySession.renew)


class SyncProxy(Facade):
    """The proxy of one server."""

    url = Attribute[str]()
    create = wrapping_result(Proxy.create, SyncProxyResponse)
    append = wrapping_result(Proxy.append, SyncProxyResponse)
    connect = wrapping_result(Proxy.connect, SyncProxySession)
    follow = wrapping(Proxy.follow, SyncResponseReading)
    frames = wrapping(Proxy.frames, SyncFrameReading)
    abort = blocking(Proxy.abort)
    head = blocking(Proxy.head)
    delete = blocking(Proxy.delete)


class SyncClient(ClosingFacade):
    """The client of a server; its arguments are those of `Client`."""

    _inner: Client

    @_with_arguments_of(Client)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Created before the thread, so that wrong arguments leave none behind.
        client = Client(*arguments, **options)
        super().__init__(LoopThread(), client)
        self.storage = SyncStorage(self._thread, client.storage)
        self.proxy = SyncProxy(self._thread, client.proxy)

    def close(self) -> None:
        """Close every connection and end the thread; repeating this has no effect."""
        if self._thread.is_alive:
            self._thread.call(self._inner.aclose())
            self._thread.stop()

    url = Attribute[str]()
    stream = wrapping(Client.stream, SyncStream)
    bucket = wrapping(Client.bucket, SyncBucket)
    bucket_ids = blocking(Client.bucket_ids)
    request = blocking(Client.request)
