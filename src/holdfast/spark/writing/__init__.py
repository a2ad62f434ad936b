"""Writing to streams from Spark, exactly once.

Rules:

- `df.write` and `writeStream` take the rows as they are laid out. Tasks stage them on the server,
  and one request of the driver publishes the batch (`staging`): all of it, and once.
- `write_to_streams` appends directly. Each request carries a number that its stream recognises: the
  producer's id, the batch as its epoch, and the request's place among those of its stream and
  batch. So whatever is sent again (by a retry of the client or of a task, a speculative task, a
  repeated batch) is stored once.
- That holds if the same number always stands for the same rows. So requests depend only on the rows
  of their stream and the order of those (`requests`), and all rows of a stream are in one task.
  Before a task sends anything of a stream, it checks that the stream is its own, which is true for
  only one task.
"""
