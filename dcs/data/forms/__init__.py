"""Forms of rows: logs and answers of other programs, and plain columns."""
