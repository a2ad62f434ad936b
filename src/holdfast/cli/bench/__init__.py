"""`holdfast bench`: put load on any Durable Streams server and measure its responses.

The command (`command`, `run`) creates the streams, starts one load process per `--processes`
(`worker`), adds up their measurements (`result`) and deletes the streams.
"""
