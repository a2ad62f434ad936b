"""Where packs are kept: a directory or a cloud's bucket, and packs read and written there."""
