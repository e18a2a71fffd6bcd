"""The typed configuration of a sweep."""
