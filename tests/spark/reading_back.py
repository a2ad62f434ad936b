"""What is in the streams of a server."""

from uuid import uuid4

from holdfast.client import SyncClient


def new_bucket():
    """A bucket that no other test uses."""
    return f"spark-{uuid4().hex}"


def messages(url, bucket, framing=None):
    """The messages of every stream of a bucket, as text."""
    with SyncClient(url) as client:
        ids = [info.stream_id for info in client.bucket(bucket).streams()]
        streams = {each: client.stream(f"{bucket}/{each}", framing=framing) for each in ids}
        return {each: [message.text for message in streams[each].read()] for each in ids}
