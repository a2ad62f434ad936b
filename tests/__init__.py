"""The tests of Holdfast; what each directory is for stands in CONTRIBUTING.md."""
