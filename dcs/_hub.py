"""What to do when a model or dataset cannot be had from the hub."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["hub_advice"]

#: Signs in an error or its causes, and what to do; the first that fits is given.
_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("offlinemode", "hf_hub_offline", "offline mode"),
        "HF_HUB_OFFLINE is set and it has not been fetched before: unset it for one run where "
        "there is a network",
    ),
    (
        ("gatedrepo", "gated repo", "401", "403", "awaiting a review"),
        "accept its licence on its page of the hub and set HF_TOKEN",
    ),
    (("revisionnotfound", "invalid rev id"), "check the revision after the @"),
    (
        ("repositorynotfound", "404", "doesn't exist", "datasetnotfound"),
        "check the name; a private one needs HF_TOKEN",
    ),
)


def hub_advice(error: BaseException) -> str:
    """Return what to do about an error of the hub's libraries, on one line."""
    told = " ".join(f"{type(part).__name__} {part}" for part in _chain(error)).lower()
    for signs, advice in _ADVICE:
        if any(sign in told for sign in signs):
            return advice
    return "check the name and the network"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
