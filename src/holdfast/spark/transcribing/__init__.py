"""The job `transcripts`: from the proxy's streams to a table of responses.

Rows are only ever added. A response gets its row when it has ended; until then the table's state
says where it begins, and the run that finds its end reads it once more from there. So a row is
never changed, whatever the format, and a stream that is deleted later leaves its rows.
"""
