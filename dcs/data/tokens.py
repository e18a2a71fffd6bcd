"""Tokens as servers write them, as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: The bytes that byte-level tokenizers write as each character: a space is ``Ġ``.
_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
_ALPHABET = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + k): byte for k, byte in enumerate(sorted({*range(256)} - {*_PRINTED}))
}

#: A token that is part of a character: ``<0xE6>``, or ``bytes:\\xe6\\x82`` in OpenAI's API.
_BYTES = re.compile(
    r"<0x(?P<one>[0-9A-F]{2})>|(?:bytes:)?(?P<blank> ?)(?P<more>(\\x[0-9a-f]{2})+)"
)


def texts_of(tokens: Sequence[str], label_words: Sequence[str]) -> list[str]:
    """Return the texts of the tokens at one position of an answer.

    Tokens may be written as in the vocabulary (``▁Yes``, ``ĠYes``, ``<0x59>``).
    """
    texts = [_unescaped(found) if (found := _BYTES.fullmatch(t)) else t for t in tokens]
    # A mark in a label word is a letter of it.
    if not any("▁" in word for word in label_words):
        texts = [text.replace("▁", " ") for text in texts]
    decoded = [_from_pieces(text) for text in texts]
    # Of bytes that spell no letter, such as those of "é", none is printable.
    spelled = [not text.isascii() and text.isprintable() for text in decoded]
    marked = any(
        text[:1] == "Ġ" or (letters and text != piece)
        for text, piece, letters in zip(texts, decoded, spelled, strict=True)
    )
    plain = any(text[:1].isspace() for text in texts) or any("Ġ" in word for word in label_words)
    return decoded if marked and not plain else texts


def _unescaped(match: re.Match[str]) -> str:
    """Return a token of bytes as text."""
    digits = match["one"] or match["more"].replace("\\x", "")
    return (match["blank"] or "") + bytes.fromhex(digits).decode("utf-8", "surrogateescape")


def _from_pieces(text: str) -> str:
    """Return the text of a token of a byte-level vocabulary; other texts are unchanged."""
    try:
        return bytes(_ALPHABET[character] for character in text).decode("utf-8", "surrogateescape")
    except KeyError:
        return text
