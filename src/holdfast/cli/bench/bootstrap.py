"""The requests of `bootstrap`: each client asks for its stream's snapshot and messages."""

from holdfast.cli.bench.clients import Client
from holdfast.cli.bench.messages import BootstrapWork, Job

__all__ = ["BootstrapRequests"]


class BootstrapRequests:
    """The clients of one process, out of those of all."""

    def __init__(self, job: Job, work: BootstrapWork) -> None:
        numbers = range(job.share, work.clients, job.shares)
        self.connections = len(numbers)
        self.once = work.once
        self._answer_bytes_min = work.answer_bytes_min
        heads = [job.target.head("GET", f"{path}/bootstrap") + b"\r\n" for path in work.paths]
        self._requests = [heads[number % len(heads)] for number in numbers]

    def next(self, client: Client) -> bytes:
        """The same as before."""
        return self._requests[client.number]

    def problem(self, client: Client, status: int, size_bytes: int) -> str | None:
        """Anything but 200 with everything in it is one."""
        if status != 200:
            return f"http_{status}"
        return None if size_bytes >= self._answer_bytes_min else "short_answer"

    def size_bytes(self, answer_bytes: int) -> int:
        """What came back."""
        return answer_bytes
