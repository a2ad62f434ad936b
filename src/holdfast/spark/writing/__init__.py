"""Writing to streams from Spark, exactly once.

Rules:

- A request has a number that its stream recognises: the producer's id, the batch as its epoch, and
  the request's place among those of its stream and batch. So whatever is sent again (by a retry
  of the client or of a task, a speculative task, a batch that is done again) is stored once.
- That holds if the same number always means the same rows. So requests are cut by the rows of
  their stream alone, in their order (`requests`), and a stream's rows are all in one task.
- `write_to_streams` sees to both, and every task checks before it sends anything of a stream that
  the stream is its own (`placement`). Two tasks cannot both find that.
- `df.write` and `writeStream` take the rows as they are laid out. Every task tells which streams it
  wrote, and the batch is not committed if two name the same one.
"""
