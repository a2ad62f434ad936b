"""Reading buckets.

- `readers` and `stream_reader`: what Spark calls; `filters`: what queries filter by.
- `planning`, on the driver: the slices that a read is made of. `source`, `selection` and
  `buckets` hold what is read and travels to the executors.
- `slice_reader` (with `packs`) and `http_reader`, on executors: the messages of one slice.
- `arrow`: messages as Arrow columns, and the schemas of a read; `json_fields` and
  `typed_json`: fields of JSON messages as columns.
"""
