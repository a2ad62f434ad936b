"""Programs for working on Holdfast; none of them is installed."""
