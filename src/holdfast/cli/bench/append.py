"""The requests of `append`: the same payload to one stream after the other."""

from collections import defaultdict

from holdfast.cli.bench.clients import Client
from holdfast.cli.bench.messages import AppendWork, Job
from holdfast.cli.bench.payload import payload

__all__ = ["AppendRequests"]


class AppendRequests:
    """Appends over all streams in turn. Each process starts at a place of its own."""

    once = False

    def __init__(self, job: Job, work: AppendWork) -> None:
        self.connections = work.connections
        self._body = payload(job.seed, work.content_type, work.payload_bytes)
        tail = f"Content-Type: {work.content_type}\r\nContent-Length: {len(self._body)}\r\n"
        self._heads = [job.target.head("POST", path) + tail.encode() for path in work.paths]
        self._producer = work.producer and f"{work.producer}-{job.share}"
        # By client and stream: a client has one request under way, so its numbers come in order.
        self._sequences: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._next = job.share * len(work.paths) // job.shares

    def next(self, client: Client) -> bytes:
        """An append to the next stream."""
        stream = self._next
        self._next = stream + 1 if stream + 1 < len(self._heads) else 0
        client.subject = stream
        if self._producer is None:
            return b"%b\r\n%b" % (self._heads[stream], self._body)
        return b"%bProducer-Id: %b-%d\r\nProducer-Epoch: 0\r\nProducer-Seq: %d\r\n\r\n%b" % (
            self._heads[stream],
            self._producer.encode(),
            client.number,
            self._sequences[client.number, stream],
            self._body,
        )

    def problem(self, client: Client, status: int, size_bytes: int) -> str | None:
        """Anything but 200 and 204 is one."""
        if status not in {200, 204}:
            return f"http_{status}"
        # Not before: a number that may not have arrived is sent again, and then taken once.
        self._sequences[client.number, client.subject] += 1
        return None

    def size_bytes(self, answer_bytes: int) -> int:
        """What was appended."""
        return len(self._body)
