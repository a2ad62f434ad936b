"""A client for Durable Streams servers: async first, with a sync facade.

Works against any server of the protocol; what is Holdfast's own (buckets, snapshots, bootstrap,
changes, scans, the boundaries of messages) is used where it is there. Importing this loads nothing
of the server.
"""

from holdfast.client.auth import Auth, Basic, Bearer, Digest
from holdfast.client.buckets import Bucket
from holdfast.client.calls import NO_RETRY, Retry, Timeouts
from holdfast.client.client import Client
from holdfast.client.messages import Batch, Message
from holdfast.client.producer import Producer, ProducerLimits
from holdfast.client.proxy import Proxy, ProxySession
from holdfast.client.proxy_frames import FrameReading
from holdfast.client.proxy_response import ProxyResponse, ResponseReading
from holdfast.client.reading import Reading
from holdfast.client.snapshots import Bootstrap, Snapshot, Snapshots
from holdfast.client.storage import Storage
from holdfast.client.stream import Stream
from holdfast.client.sync import SyncClient
from holdfast.client.types import (
    Appended,
    BucketInfo,
    Change,
    ChangePage,
    Created,
    ProducerStamp,
    Record,
    ScanEnd,
    ScanPartition,
    ScanPlan,
    ScanRange,
    StoreInfo,
    StreamHead,
    StreamInfo,
)
from holdfast.format.packs import PackExtent, PackInfo
from holdfast.protocol.frames import Frame, Outcome, StartInfo
from holdfast.protocol.headers import NOW, START
from holdfast.protocol.sse import SseEvent

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
    "Outcome",
    "PackExtent",
    "PackInfo",
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
]
