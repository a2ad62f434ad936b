"""A client for Durable Streams servers: async, with a blocking facade.

It works with any server of the protocol, and uses Holdfast's extensions (buckets, snapshots,
bootstrap, changes, scans, message boundaries) where they exist. It loads nothing of the server, and
what few programs need only on first use.
"""

import importlib
import typing

from holdfast.client.auth import Auth, Basic, Bearer, Digest
from holdfast.client.calls import NO_RETRY, Retry, Timeouts
from holdfast.client.client import Client
from holdfast.client.messages import Batch, Message
from holdfast.client.producer import Appended, Producer, ProducerLimits, ProducerStamp
from holdfast.client.reading import Reading
from holdfast.client.stream import Created, Stream, StreamHead
from holdfast.protocol.headers import NOW, START
from holdfast.protocol.producer import chained_digest
from holdfast.protocol.sse import SseEvent

if typing.TYPE_CHECKING:
    from holdfast.client.buckets import (
        Bucket,
        BucketInfo,
        Change,
        ChangePage,
        Record,
        ScanEnd,
        ScanHot,
        ScanPartition,
        ScanPlan,
        StreamInfo,
    )
    from holdfast.client.proxy import Proxy, ProxySession
    from holdfast.client.proxy_frames import FrameReading
    from holdfast.client.proxy_response import ProxyResponse, ResponseReading
    from holdfast.client.snapshots import Bootstrap, NewSnapshot, Snapshot, Snapshots
    from holdfast.client.storage import Storage, StoreInfo
    from holdfast.client.sync import SyncClient
    from holdfast.format.packs import PackExtent, PackInfo, PackStreams, ScanPart, ScanRange
    from holdfast.protocol.frames import Frame, Outcome, StartInfo

__all__ = [
    "NOW",
    "NO_RETRY",
    "START",
    "Appended",
    "Auth",
    "Basic",
    "Batch",
    "Bearer",
    "Bootstrap",
    "Bucket",
    "BucketInfo",
    "Change",
    "ChangePage",
    "Client",
    "Created",
    "Digest",
    "Frame",
    "FrameReading",
    "Message",
    "NewSnapshot",
    "Outcome",
    "PackExtent",
    "PackInfo",
    "PackStreams",
    "Producer",
    "ProducerLimits",
    "ProducerStamp",
    "Proxy",
    "ProxyResponse",
    "ProxySession",
    "Reading",
    "Record",
    "ResponseReading",
    "Retry",
    "ScanEnd",
    "ScanHot",
    "ScanPart",
    "ScanPartition",
    "ScanPlan",
    "ScanRange",
    "Snapshot",
    "Snapshots",
    "SseEvent",
    "StartInfo",
    "Storage",
    "StoreInfo",
    "Stream",
    "StreamHead",
    "StreamInfo",
    "SyncClient",
    "Timeouts",
    "chained_digest",
]

_LAZY = {
    "client.buckets": "Bucket BucketInfo Change ChangePage Record ScanEnd ScanHot ScanPartition "
    "ScanPlan StreamInfo",
    "client.proxy": "Proxy ProxySession",
    "client.proxy_frames": "FrameReading",
    "client.proxy_response": "ProxyResponse ResponseReading",
    "client.snapshots": "Bootstrap NewSnapshot Snapshot Snapshots",
    "client.storage": "Storage StoreInfo",
    "client.sync": "SyncClient",
    "format.packs": "PackExtent PackInfo PackStreams ScanPart ScanRange",
    "protocol.frames": "Frame Outcome StartInfo",
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names.split()}


def __getattr__(name: str) -> typing.Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"holdfast.{_MODULES[name]}"), name)
    return value
