"""Packaged and user-defined tasks, and the text of their prompts."""
