"""Reading buckets.

- `readers`: what Spark calls, for batch and stream reads.
- `planning`, on the driver: the slices that a read is made of. `source` and `selection` hold what
  travels to the executors.
- `slice_reader` (with `packs`) and `http_reader`, on executors: the messages of one slice.
- `arrow`: messages as Arrow columns, and the schemas of a read; `json_fields`: fields of JSON
  messages as columns.
"""
