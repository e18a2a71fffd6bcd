"""One extension of each sort, explained in docs/extending.md."""
