"""`holdfast bench`: drive any Durable Streams server, and measure how it answers.

The process of the command line (`command`, `run`) makes the streams, starts one load process per
`--processes` (`fleet`, `worker`), adds up what they measure (`result`) and deletes the streams.
"""
