"""`holdfast pipeline`: jobs on Spark, alone or by a file that names several."""
