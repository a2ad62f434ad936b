"""Copying streams from server to server, exactly once, without keeping any state.

Theory of operation:

- Offsets count bytes, and messages are stored as they were sent. So the tail of a copy tells how
  far it is: the next message is the one at offset `base` + tail of its source. `base` is 0, or
  where the copy began if the source had dropped earlier messages by then.
- Every append is conditional on the state of the copy (`If-Match`: which stream, which tail). So it
  happens once, whatever is repeated, even if two replays run at the same time.
- The first append carries a producer: its id names the source stream, its epoch is `base`. So the
  target knows what a stream is a copy of. To find out, we send an append with epoch 0 and a
  condition that cannot hold. It stores nothing: the response says duplicate (`base` is 0), fenced
  by epoch `base`, or that the condition failed (no copy).
- If the source has dropped messages that were not copied yet, the copy goes on after them with a
  larger `base`, unless the job forbids it; the source's snapshot is published on the copy there.
"""
