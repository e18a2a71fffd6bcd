"""One way for Ray to know its own: set before anything imports it, since it is read only once."""

from __future__ import annotations

import os
import secrets

os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
