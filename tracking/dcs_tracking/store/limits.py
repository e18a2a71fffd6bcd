"""Limits of time and size on the answers of an MLflow server.

MLflow limits the time between two parts of an answer only. Its plug-ins for authentication may
handle a request, and a response before it is read, by the hooks of `requests`.
"""

from __future__ import annotations

import time
from io import BytesIO
from typing import Any, Final

from mlflow.tracking.request_auth.abstract_request_auth_provider import RequestAuthProvider
from requests import PreparedRequest, Response
from requests.auth import AuthBase
from requests.exceptions import ContentDecodingError
from requests.utils import get_netrc_auth

from dcs_tracking.store.client import timeout

#: Largest answer: a page of 1,000 runs with 1,000 metrics each takes 100 MB.
_MOST_BYTES: Final = 2**28
_PART: Final = 2**16

#: Times the timeout between two parts that a whole answer may take.
_PARTS_OF_TIME: Final = 6


class AnswerLimits(RequestAuthProvider, AuthBase):  # type: ignore[misc]
    """The plug-in of MLflow: adds no authentication, but limits the answer to each request.

    Files that are read in parts have no limit of size.
    """

    def get_name(self) -> str:
        """Return the name by which MLflow selects it: the value of ``MLFLOW_TRACKING_AUTH``."""
        return "dcs-limits"

    def get_auth(self) -> AuthBase:
        """Return what `requests` calls for each request."""
        return self

    def __call__(self, r: PreparedRequest) -> PreparedRequest:
        """Let an answer be limited, and log in as `requests` does."""
        if "Authorization" not in r.headers and (login := get_netrc_auth(r.url)):
            # Which `requests` does itself where there is no object like this one.
            r.prepare_auth(login)
        r.headers["Accept-Encoding"] = "identity"
        r.register_hook("response", _limit)
        return r


def _limit(response: Response, *, stream: bool = False, **options: Any) -> None:
    """Read the body of an answer within the limits, in parts, each as soon as it comes."""
    if stream:
        return
    body, end = BytesIO(), time.monotonic() + _PARTS_OF_TIME * timeout()
    while part := response.raw.read1(_PART, decode_content=True):
        body.write(part)
        if body.tell() > _MOST_BYTES or time.monotonic() > end:
            response.close()
            raise ContentDecodingError(
                f"an answer of the server is larger than {_MOST_BYTES >> 20} MiB or takes longer "
                f"than {_PARTS_OF_TIME * timeout():.0f} s; check that it is an MLflow server"
            )
    body.seek(0)
    response.raw = body
