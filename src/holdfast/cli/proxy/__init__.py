"""The commands of `holdfast proxy`."""
