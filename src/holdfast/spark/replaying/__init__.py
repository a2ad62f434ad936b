"""Copying streams from server to server, exactly once, without keeping any state.

Theory of operation:

- Offsets count bytes, and messages are stored as they were sent. So where a copy ends tells how far
  it is: the next message is the one at `base` + the copy's tail, in the offsets of its source.
  `base` is 0, or, if the source had forgotten its beginning by then, where the copy was begun.
- Every append names the state that the copy must be in (`If-Match`: which stream, which tail). So
  it happens once, whatever is repeated, and whoever else copies the same at the same time.
- The first append carries a producer: its id names the source stream, its epoch is `base`. So the
  target knows of what a stream is a copy, and tells when it is asked: an append with epoch 0 and a
  condition that cannot hold is a duplicate (`base` is 0), or fenced by `base`, or stores nothing.
- Where the source forgot messages that were not copied yet, the copy goes on behind them with a
  larger `base`, if that is wanted; the source's snapshot is published on the copy there.
"""
