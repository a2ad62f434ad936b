"""A server's side of producers: as the protocol has it, with faults on command."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.client.scripted.server import Answer, Request, answer, at

Fault = Callable[[Request], Answer | None]


@dataclass
class ProducerServer:
    """Keeps one stream and the epoch and sequence of one producer.

    `before` may answer instead, and `after` once the append was carried out: then what it answers
    is all that the client learns.
    """

    epoch: int = 0
    seq: int = -1
    before: Fault = field(default=lambda _request: None)
    after: Fault = field(default=lambda _request: None)
    stored: list[bytes] = field(default_factory=list)
    closed: bool = False

    def __call__(self, request: Request) -> Answer:
        """Answer an append."""
        return self.before(request) or self._judge(request)

    def _judge(self, request: Request) -> Answer:
        epoch, seq = request.stamp
        if epoch < self.epoch:
            return answer(403, producer_epoch=self.epoch)
        if epoch > self.epoch:
            if seq != 0:
                return answer(400)
            self.epoch, self.seq = epoch, -1
        if seq <= self.seq:
            return answer(204, producer_epoch=epoch, producer_seq=self.seq)
        if seq > self.seq + 1:
            return answer(409, producer_expected_seq=self.seq + 1, producer_received_seq=seq)
        if self.closed:
            return answer(409, stream_closed="true")
        self.seq = seq
        self.closed = request.headers.get("stream-closed") == "true"
        if request.body:
            self.stored.append(request.body)
        return self.after(request) or self._stored(epoch)

    def _stored(self, epoch: int) -> Answer:
        return answer(
            200,
            stream_next_offset=at(sum(map(len, self.stored))),
            stream_closed="true" if self.closed else None,
            producer_epoch=epoch,
            producer_seq=self.seq,
        )


def once(*answers: Answer | None) -> Fault:
    """These answers, one for each request, and then none any more."""
    left = list(answers)
    return lambda _request: left.pop(0) if left else None
