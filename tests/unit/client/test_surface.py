"""What the client gives out, that its two faces are the same, and what importing it loads."""

import inspect
import re
import subprocess
import sys
import threading

import pytest

import holdfast.client
from holdfast.client import (
    Bootstrap,
    Bucket,
    Client,
    FrameReading,
    Producer,
    Proxy,
    ProxyResponse,
    ProxySession,
    Reading,
    ResponseReading,
    Snapshots,
    Storage,
    Stream,
    SyncClient,
)
from holdfast.client.loop_thread import Facade
from holdfast.client.sync import (
    SyncBootstrap,
    SyncBucket,
    SyncFrameReading,
    SyncProducer,
    SyncProxy,
    SyncProxyResponse,
    SyncProxySession,
    SyncReading,
    SyncResponseReading,
    SyncSnapshots,
    SyncStorage,
    SyncStream,
)
from holdfast.errors import InvalidRequestError
from tests.thorough import for_each

FACES = [
    (Client, SyncClient),
    (Stream, SyncStream),
    (Reading, SyncReading),
    (Producer, SyncProducer),
    (Snapshots, SyncSnapshots),
    (Bootstrap, SyncBootstrap),
    (Bucket, SyncBucket),
    (Storage, SyncStorage),
    (Proxy, SyncProxy),
    (ProxyResponse, SyncProxyResponse),
    (ProxySession, SyncProxySession),
    (ResponseReading, SyncResponseReading),
    (FrameReading, SyncFrameReading),
]
# What only the async ones have: how others are made, or called otherwise there.
ASYNC_ONLY = {
    (Client, "aclose"),
    (Reading, "aclose"),
    (Reading, "message_lists"),
    (ResponseReading, "aclose"),
    (FrameReading, "aclose"),
    (FrameReading, "placed"),
    (Stream, "post"),
    (Stream, "known_content_type"),
}
SYNC_ONLY = {
    (SyncClient, "close"),
    (SyncReading, "close"),
    (SyncResponseReading, "close"),
    (SyncFrameReading, "close"),
}
# Those that take something that has a face, too.
OTHER_SIGNATURE = {(Stream, "fork")}
SERVER = ("http", "engine", "log", "storage", "settings", "cli", "subscriptions", "format")
HEAVY = (
    "uvloop", "obstore", "prometheus_client", "cyclopts", "jwt", "cryptography", "rich", "pyspark",
    "h2", "hpack", "certifi", "idna",
)  # fmt: skip


def public_methods(cls):
    return {
        name: member
        for name, member in vars(cls).items()
        if not name.startswith("_") and callable(member)
    }


class TestNames:
    def test_all_is_sorted_and_there(self):
        names = holdfast.client.__all__
        assert len(set(names)) == len(names)
        for name in names:
            assert hasattr(holdfast.client, name)

    def test_nothing_else_is_given_out(self):
        # Some names are loaded on first use.
        loaded = {name: getattr(holdfast.client, name) for name in holdfast.client.__all__}
        public = {
            name
            for name, value in (vars(holdfast.client) | loaded).items()
            if not name.startswith("_") and not inspect.ismodule(value)
        }
        assert public == set(holdfast.client.__all__)

    def test_the_surface_is_this(self):
        assert set(holdfast.client.__all__) == {
            "NOW", "NO_RETRY", "START", "Appended", "Auth", "Basic", "Batch", "Bearer",
            "Bootstrap", "Bucket", "BucketInfo", "Change", "ChangePage", "Client", "Created",
            "Digest", "Frame", "FrameReading", "Message", "NewSnapshot", "Outcome", "PackExtent",
            "PackInfo", "PackStreams", "Producer", "ProducerLimits", "ProducerStamp", "Proxy",
            "ProxyResponse", "ProxySession", "Reading", "Record", "ResponseReading", "Retry",
            "ScanEnd", "ScanHot", "ScanPart", "ScanPartition", "ScanPlan", "ScanRange", "Snapshot",
            "Snapshots", "SseEvent", "StartInfo", "Storage", "StoreInfo", "Stream", "StreamHead",
            "StreamInfo", "SyncClient", "Timeouts", "chained_digest",
        }  # fmt: skip

    @for_each("name", holdfast.client.__all__)
    def test_everything_is_described(self, name):
        value = getattr(holdfast.client, name)
        if inspect.isclass(value):
            assert value.__doc__
            for method in public_methods(value).values():
                assert method.__doc__, method


@pytest.mark.parametrize(("cls", "face"), FACES, ids=lambda cls: cls.__name__)
class TestFaces:
    def test_have_the_same_methods(self, cls, face):
        ours = {name for name in public_methods(cls) if (cls, name) not in ASYNC_ONLY}
        theirs = {name for name in public_methods(face) if (face, name) not in SYNC_ONLY}
        assert theirs == ours

    def test_methods_have_the_same_signature(self, cls, face):
        for name, method in public_methods(cls).items():
            if (cls, name) in ASYNC_ONLY | OTHER_SIGNATURE:
                continue
            ours = inspect.signature(method).parameters
            theirs = inspect.signature(getattr(face, name)).parameters
            assert list(ours.values()) == list(theirs.values()), name

    def test_methods_are_no_coroutines(self, cls, face):
        for name, method in public_methods(face).items():
            assert not inspect.iscoroutinefunction(method), name
            assert not inspect.isasyncgenfunction(method), name

    def test_are_faces(self, cls, face):
        assert issubclass(face, Facade)
        assert face.__doc__


class TestSyncClient:
    def test_is_made_like_the_async_one(self):
        with SyncClient("http://me:secret@host/x", streams_path="s") as client:
            assert client.url == "http://host/x"
            assert client.stream("b/s").url == "http://host/x/s/b/s"
            assert client.stream("b/s").name == "b/s"
            assert repr(client.stream("b/s")) == "SyncStream('b/s')"
            assert repr(client.bucket("b")) == "SyncBucket('b')"

    def test_that_cannot_be_made_leaves_no_thread_behind(self):
        before = threading.active_count()
        with pytest.raises(InvalidRequestError):
            SyncClient("ftp://host")
        assert threading.active_count() == before

    def test_closing_ends_its_thread_and_may_be_repeated(self):
        before = threading.active_count()
        with SyncClient("http://host") as client:
            assert threading.active_count() == before + 1
            client.close()
            assert threading.active_count() == before
        client.close()

    def test_closed_one_says_so(self):
        client = SyncClient("http://host")
        stream = client.stream("b/s", content_type="text/plain")
        client.close()
        with pytest.raises(RuntimeError, match="The client is closed"):
            stream.append("hello")
        with pytest.raises(RuntimeError, match="The client is closed"):
            list(stream.read())


def test_importing_the_client_loads_nothing_of_the_server():
    code = "import sys, holdfast.client; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "holdfast.client.client" in loaded
    unwanted = re.compile(rf"holdfast\.({'|'.join(SERVER)})(\.|$)|({'|'.join(HEAVY)})(\.|$)")
    assert [name for name in loaded if unwanted.match(name)] == []
