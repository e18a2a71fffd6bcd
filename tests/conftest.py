"""What holds for all tests: one way for Ray to know its own, and the same examples every time."""

from __future__ import annotations

import os
import secrets

from hypothesis import settings

# Set before anything imports Ray, which reads it only once.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)

# A run that fails can be repeated. HYPOTHESIS_PROFILE=search looks for new examples.
settings.register_profile("repeatable", derandomize=True, database=None)
settings.register_profile("search", derandomize=False, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
