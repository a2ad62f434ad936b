"""Buckets and their streams as a client of the bucketed surface sees them."""

from email.message import Message
from email.parser import BytesParser
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx

from tests.http.streams import TEXT, Stream, header_names

Part = tuple[str, bytes]


class BucketStream(Stream):
    """The stream of one bucket, at `/{bucket}/{stream}`; it need not exist."""

    def __init__(
        self, client: httpx.Client, bucket: str, stream_id: str, content_type: str = TEXT
    ) -> None:
        super().__init__(client, f"{bucket}/{stream_id}", content_type)
        self.bucket = bucket
        self.stream_id = stream_id
        self.url = f"/{bucket}/{quote(stream_id, safe='')}"

    @property
    def flat(self) -> Stream:
        """The same stream on the flat surface."""
        return Stream(self.client, self.path, self.content_type)

    def publish(
        self,
        offset: str,
        body: Any = b"state",
        content_type: str | None = None,
        **headers: str,
    ) -> httpx.Response:
        """PUT a snapshot."""
        headers = header_names(headers)
        if content_type is not None:
            headers["Content-Type"] = content_type
        return self.client.put(f"{self.url}/snapshot/{offset}", content=body, headers=headers)

    def snapshot(self, offset: str = "") -> httpx.Response:
        """GET the snapshot at an offset, or where the latest one is."""
        return self.client.get(f"{self.url}/snapshot{offset and '/'}{offset}")

    def bootstrap(self, **parameters: str) -> httpx.Response:
        """GET everything that a new reader needs."""
        return self.client.get(f"{self.url}/bootstrap", params=parameters)

    def fork(self, source: Stream | str, **headers: str) -> httpx.Response:
        """PUT, as a fork of another stream; its content type is the source's."""
        path = source if isinstance(source, str) else source.url
        return self.client.put(
            self.url, headers={"Stream-Forked-From": path} | header_names(headers)
        )


def unused_bucket() -> str:
    """The id of a bucket that does not exist."""
    return f"bucket-{uuid4().hex[:12]}"


def new_bucket(client: httpx.Client) -> str:
    """Create a bucket with an id of its own."""
    bucket = unused_bucket()
    answer = client.put(f"/{bucket}")
    assert answer.status_code == 201, answer.text
    return bucket


def new_stream_in(
    bucket: str, client: httpx.Client, *bodies: bytes, content_type: str = TEXT, stream_id: str = ""
) -> BucketStream:
    """Create a stream in a bucket, and append each body."""
    stream = BucketStream(client, bucket, stream_id or uuid4().hex[:12], content_type)
    answer = stream.create()
    assert answer.status_code == 201, answer.text
    for body in bodies:
        answer = stream.append(body)
        assert answer.status_code == 204, answer.text
    return stream


def bucket_stream(
    client: httpx.Client, *bodies: bytes, content_type: str = TEXT, stream_id: str = ""
) -> BucketStream:
    """Create a stream in a bucket of its own, and append each body."""
    bucket = new_bucket(client)
    return new_stream_in(bucket, client, *bodies, content_type=content_type, stream_id=stream_id)


def listing(client: httpx.Client, bucket: str, **parameters: object) -> dict[str, Any]:
    """A page of a bucket's streams."""
    answer = client.get(f"/{bucket}/streams", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids(client: httpx.Client, bucket: str, **parameters: object) -> list[str]:
    """The ids on a page of a bucket's streams."""
    return [each["stream_id"] for each in listing(client, bucket, **parameters)["streams"]]


def parts(answer: httpx.Response) -> list[Part]:
    """The parts of a bootstrap as the standard library reads them: content type and body."""
    assert answer.status_code == 200, answer.text
    head = f"Content-Type: {answer.headers['Content-Type']}\r\n\r\n".encode()
    message = BytesParser().parsebytes(head + answer.content)
    assert message.is_multipart()
    assert not message.defects
    assert not message.preamble
    assert not message.epilogue
    return [(each["Content-Type"], _body(each)) for each in message.get_payload()]


def _body(part: Message) -> bytes:
    assert not part.defects
    body = part.get_payload(decode=True)
    assert isinstance(body, bytes)
    return body


def offset(number: int) -> str:
    """An offset as the protocol writes it."""
    return f"{number:020d}"
