"""Logs of other programs: chats with log-probabilities, ``/classify``, evaluation harnesses.

lm-evaluation-harness and lighteval log the log-likelihoods of the choices of a question given the
prompt, which a softmax converts to class probabilities. Classes are the texts of the choices if
all questions share them, otherwise their positions; a position that a question does not have
(ARC, MMLU-Pro) has probability 0 there.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dcs.data.columns import PREFIX, Reading, cells_in
from dcs.data.forms.plain import Form, FormRows, natural, parsed, parsed_cells, with_scores
from dcs.data.labels import as_text, in_own_order, plain_of
from dcs.errors import TableError, quoted, show

if TYPE_CHECKING:
    import pandas as pd

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
    changed = [piece for text, piece in zip(texts, decoded, strict=True) if piece != text]
    # Of bytes that spell no letter, such as those of "é", none is printable.
    spelled = any(not piece.isascii() and piece.isprintable() for piece in changed)
    marked = spelled or any(text[:1] == "Ġ" for text in texts)
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


def first_word(response: Any, classes: Sequence[str]) -> dict[str, float]:
    """Return the probabilities of the tokens that were likely as the first word of an answer.

    Those of tokens that are the same text are summed. An answer that failed, or without
    log-probabilities, has none.
    """
    plain = plain_of(classes)
    with suppress(LookupError, TypeError, ValueError, OverflowError, AttributeError):
        for place in _places(response):
            top = place["top_logprobs"]
            texts = texts_of([place["token"], *(each["token"] for each in top)], classes)
            word, *likely = map(plain, texts)
            # Some servers answer with a blank or a quotation mark first.
            if re.search(r"\w", word):
                masses: dict[str, float] = {}
                for text, each in zip(likely, top, strict=True):
                    masses[text] = masses.get(text, 0.0) + math.exp(each["logprob"])
                return masses
    return {}


def _places(response: Any) -> list[Any]:
    """Return the tokens of the first answer in a response, wherever its API has them."""
    inner: list[Any] = response if isinstance(response, list) else []
    if isinstance(response, Mapping):
        inner, top = [*response.values()], response.get("top_logprobs")
        if isinstance(top, list) and isinstance(response.get("tokens"), list):  # completions
            tops = ([{"token": t, "logprob": v} for t, v in (each or {}).items()] for each in top)
            pairs = zip(response["tokens"], tops, strict=True)
            return [{"token": token, "top_logprobs": each} for token, each in pairs]
    elif inner and all(isinstance(each, Mapping) and "top_logprobs" in each for each in inner):
        return inner
    return next(filter(None, map(_places, inner)), [])


def fill_missing(masses: NDArray[np.float64], returned: Collection[float]) -> NDArray[np.float64]:
    """Return class probabilities [N] from those of the returned labels; uniform if there is none.

    Each of the others has an equal share of the probability of all tokens that are not returned,
    at most that of the least probable returned token.

    Parameters
    ----------
    masses : float64 array [N]
        Probability of each label as a token, 0 if it was not returned.
    returned : collection of float
        The probabilities of all returned tokens.
    """
    absent = masses == 0.0
    if absent.all():
        return np.full(masses.size, 1.0 / masses.size)
    if absent.any():
        share = min(*returned, max(0.0, 1.0 - sum(returned)) / absent.sum())
        masses = np.where(absent, share, masses)
    return np.asarray(masses / masses.sum(), dtype=np.float64)


_KEYS: Final = ("response", "body", "choices", "output")


def _logged(frame: pd.DataFrame, given: Reading) -> str | None:
    """Return the column of responses, those with log-probabilities first."""
    starts = {key: str(frame[key][:20].tolist()) for key in _KEYS if key in frame}
    signed = (key for sign in ("logprob", "choices") for key in starts if sign in starts[key])
    return next(signed, None)


def _chat_rows(frame: pd.DataFrame, given: Reading, name: str) -> FormRows:
    classes = given.classes or ()
    first = [first_word(parsed(cell), classes) for cell in cells_in(frame[name])]
    if not any(first):
        raise TableError("no log-probabilities; request logprobs=true and top_logprobs=20")
    tokens, plain = {token for each in first for token in each}, plain_of(classes)
    absent = [name for name in classes if plain(name) not in tokens]
    for name in absent:
        if begun := sorted(t for t in tokens if t and plain(name).startswith(t)):
            fault = f"no token is the class {show(name)}, but {quoted(begun, 3)} may begin it"
            raise TableError(f"{fault}; request labels that are single tokens, such as letters")
    keys = [*map(plain, classes)]
    found = np.array([[masses.get(key, 0.0) for key in keys] for masses in first])
    answered = found.any(axis=1)
    shares = found[answered].sum(axis=1)
    share = np.median(shares) if shares.size else 0.0
    if share < _LEAST_SHARE:
        top = Counter(max(each, key=lambda token: each[token]) for each in first if each)
        likely = ",".join(sorted((text for text, _ in top.most_common(12)), key=natural))
        about = f"the classes have {share:.2%} of the probability; " if share else ""
        raise TableError(f"{about}name those among the likely tokens with --read classes={likely}")
    kept, failed = np.flatnonzero(answered).tolist(), np.flatnonzero(~answered)
    filled = [fill_missing(found[row], first[row].values()).tolist() for row in kept]
    scores = [dict(zip(classes, row, strict=True)) for row in filled]
    rest = frame.drop(columns=[n for n in (*_KEYS, "error") if n in frame])
    rows = with_scores(rest.iloc[kept].reset_index(drop=True), scores, classes)
    told = {"classes": classes, "values": "scores", "columns": None}
    told |= {"id": "custom_id"} if "custom_id" in frame else {}
    remarks = []
    if failed.size:
        remarks.append(f"{failed.size:,} failed rows are left out, the first is {failed[0]}")
    remarks.append(f"the classes have {np.mean(shares):.1%} of the probability")
    if guessed := int((answered & ~found.all(axis=1)).sum()):
        lacking = "likely tokens lack a class, which has a share of the rest"
        remarks.append(f"in {guessed:,} of {len(shares):,} answers the {lacking}")
    if absent:
        remarks.append(f"warning: {quoted(absent)} is among the likely tokens of no answer")
    return FormRows(rows, told, "; ".join(remarks))


#: Share of the probability below which classes are tokens that the model was not about to write.
_LEAST_SHARE: Final = 0.01


CHAT = Form("answers of a chat model", _logged, _chat_rows)


def _classify_rows(frame: pd.DataFrame, given: Reading, _: bool) -> FormRows:
    values = [cell if isinstance(cell, list) else [] for cell in parsed_cells(frame, "probs")]
    size = max(map(len, values))
    if wrong := [k for k, row in enumerate(values) if len(row) != size or None in row]:
        raise TableError(f"row {wrong[0]}: {len(values[wrong[0]])} probs, others have {size}")
    top = np.array(values, dtype=np.float64).argmax(axis=1).tolist()
    pairs = {*zip(top, map(as_text, frame["label"]), strict=True)}
    predicted = dict(sorted(pairs))
    classes = given.classes or tuple(predicted.get(k, "") for k in range(size))
    place = {plain_of(classes)(name): k for k, name in enumerate(classes)}
    others = any(place.get(plain_of(classes)(name), k) != k for k, name in pairs)
    if others or len(pairs) > len({*predicted.values()}):
        fault = f"the most probable class of every row, of probs in the order {quoted(classes)}"
        answer = "name the classes in the order of probs with --read classes=A,B,..."
        advice = f"{answer}, and if it holds labels, add --read label=label"
        raise TableError(f"label is not {fault}; {advice}")
    if "" in classes or len(classes) != size:
        found = f"{quoted([*predicted.values()])} of {size} classes are predicted"
        raise TableError(f"only {found}; name all in their order with --read classes=A,B,...")
    scores = [dict(zip(classes, row, strict=True)) for row in values]
    rest = frame.drop(columns="probs").rename(columns={"label": "predicted"})
    return FormRows(with_scores(rest, scores, classes), {}, "label is the prediction")


def _are_classified(frame: pd.DataFrame, given: Reading) -> bool:
    """Whether rows have the columns of ``/classify``, of which none is given as the labels."""
    named = {"label", "probs", "num_classes"} <= {*frame.columns} and given.label != "label"
    return named and bool(frame["label"].notna().any())


CLASSIFY = Form("rows of /classify of vLLM or SGLang", _are_classified, _classify_rows)


@dataclass(frozen=True, slots=True)
class Question:
    """Choices of a question: their texts, if known, and log-likelihoods; and the right one."""

    id: str
    choices: Sequence[str]
    scores: Sequence[float]
    target: Any

    def place(self, counting: str, classes: Sequence[str]) -> int | None:
        """Return the place of the target under one reading, None if it is no choice."""
        text = as_text(self.target)
        if text in ("", "-1"):
            return -1  # Test splits on the Hugging Face Hub without answers have such targets.
        numbers = {str(k): k for k in range(len(self.scores))}
        if isinstance(self.target, int) or counting == "from-0":
            # An integer, as opposed to a string, is a position under both readings.
            return numbers.get(text)
        known = (self.choices, classes)
        return next((names.index(text) for names in known if names.count(text) == 1), None)


def question_rows(questions: Sequence[Question], given: Reading) -> FormRows:
    """Return rows with a column of logits per class.

    Raises
    ------
    TableError
        If the classes are others than the choices, or targets are unclear.
    """
    import pandas as pd

    size = max(len(each.scores) for each in questions)
    texts = [*questions[0].choices]
    shared = len({*texts}) == size and all([*each.choices] == texts for each in questions)
    own = texts if shared else [f"choice_{k}" for k in range(size)]
    classes = in_own_order(own, given.classes)
    if len(classes) != size:
        raise TableError(f"{size} choices, but the classes are {quoted(classes)}")
    labels = _targets(questions, classes, given.labels)
    rows = pd.DataFrame({"id": [each.id for each in questions], "label": labels})
    for k, name in enumerate(classes):
        rows[PREFIX + name] = [[*each.scores, *[-math.inf] * size][k] for each in questions]
    told = {"label": "label", "labels": "from-0", "id": "id", "values": "logits"}
    return FormRows(rows, told | {"classes": classes, "columns": None})


def _targets(
    questions: Sequence[Question], classes: Sequence[str], labels: str | None
) -> list[int]:
    """Return the place of the target of every question.

    Logs store the index of a choice as a string, so ``"1"`` can be choice 1 or the choice with the
    text "1". Unless it is specified, only one reading must fit every question.
    """
    ways = ("names", "from-0") if labels is None else (labels,)
    places = [[each.place(way, classes) for each in questions] for way in ways]
    fitting = [[k for k in found if k is not None] for found in places if None not in found]
    if not fitting:
        # Report the last failure: the rows before it fit one of the readings.
        wrong = questions[max(found.index(None) for found in places)]
        allowed = f"in 0..{len(wrong.scores) - 1} or all one of {quoted(wrong.choices or classes)}"
        target = f"id {show(wrong.id, 40)}: target is {show(wrong.target, 60)}"
        raise TableError(f"{target}; targets must all be {allowed}")
    if len(fitting) == 2 and fitting[0] != fitting[1]:
        targets = f"targets such as {show(questions[0].target)} can be positions or texts"
        raise TableError(f"{targets}; specify --read labels=from-0 or labels=names")
    return fitting[0]


_MUTUAL = "acc_mutual_info"


def _question(row: dict[Any, Any]) -> Question:
    """Return the question of a line; data sets that combine tasks store numbers as strings."""
    scores = [float(score) for score, _ in row["filtered_resps"]]
    pairs: Any = row.get("arguments")
    if isinstance(pairs, dict):
        pairs = [[*pair.values()] for pair in pairs.values()]
    told = isinstance(pairs, list) and len(pairs) == len(scores)
    texts = [as_text(text) for _, text in pairs] if told else []
    if row.get(_MUTUAL) is not None or _MUTUAL in (row.get("metrics") or ()):
        raise ValueError  # Half of the responses are those without the prompt.
    return Question(as_text(row["doc_id"]), texts, scores, row["target"])


def _questions(
    records: Iterable[Any], rows: Iterable[int], read: Callable[[Any], Question], needs: str
) -> list[Question]:
    """Return the questions of records, given their row numbers."""
    found = []
    for row, record in zip(rows, records, strict=True):
        try:
            found.append(read(record))
        except (LookupError, TypeError, ValueError, AttributeError):
            raise TableError(f"row {row}: {show(record)}; must have {needs}") from None
    return found


def _lm_eval_rows(frame: pd.DataFrame, given: Reading, _: bool) -> FormRows:
    cells = cells_in(frame["filter"]) if "filter" in frame else ["none"] * len(frame)
    filters = [*map(as_text, cells)]
    names = [*dict.fromkeys(filters)]
    name = names[0] if given.filter is None and len(names) == 1 else given.filter
    if name not in names:
        answer = f"choose one of {quoted(names)} with --read filter=NAME"
        raise TableError(f"filter is {show(name)}; {answer}")
    own = frame[[each == name for each in filters]]
    records = own.astype(object).where(own.notna(), None).to_dict("records")
    needs = "filtered_resps of a multiple-choice task, written with --log_samples"
    return question_rows(_questions(records, own.index, _question, needs), given)


def _having(*names: str) -> Callable[[pd.DataFrame, Reading], bool]:
    """Return what recognises a form by the names of its columns."""
    return lambda frame, given: {*names} <= {*frame.columns}


_are_samples: Final = _having("doc_id", "target", "filtered_resps")

LM_EVAL = Form("samples of lm-evaluation-harness", _are_samples, _lm_eval_rows)


def _detail(record: tuple[Any, Any, Any]) -> Question:
    """Return the question of a row of details."""
    row, doc, response = record
    gold, choices = doc["gold_index"], [*map(as_text, doc["choices"])]
    (target,) = gold if isinstance(gold, list) else [gold]
    scores = [*map(float, response["logprobs"])]
    if len(scores) != len(choices):
        raise ValueError
    return Question(as_text(doc.get("id", row)), choices, scores, target)


def _lighteval_rows(frame: pd.DataFrame, given: Reading, _: bool) -> FormRows:
    both = (parsed_cells(frame, name) for name in ("doc", "model_response"))
    records = zip(frame.index, *both, strict=True)
    needs = "a logprob per choice and one gold_index, as in details of a multiple-choice task"
    return question_rows(_questions(records, frame.index, _detail, needs), given)


LIGHTEVAL = Form("details of lighteval", _having("doc", "model_response"), _lighteval_rows)


#: Forms that no other program writes, in the order in which they are tried.
LOGS: Final = (LM_EVAL, LIGHTEVAL, CHAT, CLASSIFY)
