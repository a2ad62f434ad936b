"""The job `transcripts`: from the proxy's streams to a table of responses."""
