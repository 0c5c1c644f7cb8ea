"""Whether a draft can draft for a target, decided from both headers before anything is loaded.

A draft proposes tokens that the target has too. The vocabularies are compared entry by entry. Where every id that both
use means the same text, ids pass as they are; what changes neither the meaning of an id nor how text becomes ids is
allowed to differ then, and noted: padding at the end, unused entries, BOS and EOS ids that are never added. Else the
tokens that both have are found by their bytes, and the pair fits if they are a useful share (`shared_vocabulary`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spec_local.errors import PairError
from spec_local.models_manifest.gguf_header import Header
from spec_local.models_manifest.shared_vocabulary import (
    USEFUL,
    SharedVocabulary,
    comparable,
    share_ids,
    share_text,
)
from spec_local.models_manifest.tokenizer import BYTE, CONTROL, USER_DEFINED, Tokenizer, is_unused

_SAMPLE = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """The first id that means different things."""

    id: int
    target_text: str
    """What the target means by it."""
    draft_text: str


@dataclass(frozen=True, slots=True)
class PairReport:
    """The outcome of a pair check."""

    ok: bool
    """Whether the draft may draft for the target."""
    target: Path
    draft: Path
    target_vocab: int
    """Entries of the target's vocabulary."""
    draft_vocab: int
    common: int
    """Ids below this one exist in both."""
    shared: SharedVocabulary | None
    """What they have in common; None where that cannot be said: a file has no vocabulary, or one of another type."""
    first_difference: Difference | None
    reason: str
    """Why not, as one sentence; empty where `ok`."""
    hint: str
    """What to do about it; empty where `ok`."""
    notes: tuple[str, ...]
    """What differs without harm, a sentence each."""

    @property
    def other_vocabulary(self) -> str:
        """A sentence for a pair that fits although its ids mean different text; else empty."""
        if not self.ok or self.shared is None or self.shared.same_ids:
            return ""
        return f"The draft has another vocabulary: it shares {self.shared.figures}, and proposes only those."

    @property
    def message(self) -> str:
        """The whole outcome as text: both files, both sizes, the reason and the first difference, or the notes."""
        sizes = f"{self.draft.name} ({self.draft_vocab} tokens)", f"{self.target.name} ({self.target_vocab} tokens)"
        if self.ok:
            fits = f"{sizes[0]} can draft for {sizes[1]}."
            return " ".join(filter(None, (fits, self.other_vocabulary, *self.notes)))
        text = f"{sizes[0]} cannot draft for {sizes[1]}: {self.reason}"
        if self.first_difference:
            at = self.first_difference
            text += f" First differing id: {at.id}, {at.target_text} in the target and {at.draft_text} in the draft."
        return text


def check_pair(target: Header, draft: Header) -> PairReport:
    """Compare two vocabularies.

    Returns:
        Whether the draft may draft for the target, and all a person needs to know about it. Never raises for a
        mismatch; see `require_pair`.
    """
    ours, theirs = target.tokenizer, draft.tokenizer
    comparison = _compare(ours, theirs)
    shared = _shared(ours, theirs, comparison)
    reason, hint = _refusal(ours, theirs, comparison, shared)
    same_ids = shared is not None and shared.same_ids
    return PairReport(
        ok=not reason,
        target=target.path,
        draft=draft.path,
        target_vocab=ours.n_vocab,
        draft_vocab=theirs.n_vocab,
        common=min(ours.n_vocab, theirs.n_vocab),
        shared=shared,
        first_difference=comparison.difference if reason else None,
        reason=reason,
        hint=hint,
        notes=() if reason else (*(comparison.notes if same_ids else ()), *_harmless(target, draft, same_ids)),
    )


def require_pair(target: Header, draft: Header) -> PairReport:
    """The report of `check_pair` for a pair that fits.

    Raises:
        PairError: It does not; names both files, both sizes, the first differing id with both texts, and a way out.
    """
    report = check_pair(target, draft)
    if not report.ok:
        raise PairError(report.message, report.hint)
    return report


@dataclass(slots=True)
class _Comparison:
    """What comparing the entries brought to light."""

    difference: Difference | None
    different: int
    """How many ids mean different things."""
    notes: list[str]
    """On what differs where no id means different things."""


def _compare(ours: Tokenizer, theirs: Tokenizer) -> _Comparison:
    found = _Comparison(None, 0, [])
    common = min(ours.n_vocab, theirs.n_vocab)
    if ours.texts is None or theirs.texts is None:
        return found
    same_texts = ours.texts.raw == theirs.texts.raw
    same_kinds = (ours.kinds_array and ours.kinds_array.raw) == (theirs.kinds_array and theirs.kinds_array.raw)
    if same_texts and same_kinds:  # the ordinary case, decided without looking at single tokens
        return found
    a, b = ours.tokens(), theirs.tokens()
    kinds_a, kinds_b = ours.kinds(), theirs.kinds()
    unused, marked = [], []
    for id in range(common):
        if a[id] == b[id]:
            if kinds_a[id] != kinds_b[id]:
                if BYTE in (kinds_a[id], kinds_b[id]):  # the byte itself against the text that spells it
                    found.difference = found.difference or _difference(id, ours, theirs, kinds_a[id], kinds_b[id])
                    found.different += 1
                else:
                    marked.append(id)
        elif is_unused(a[id], kinds_a[id]) or is_unused(b[id], kinds_b[id]):
            unused.append(id)
        else:
            found.difference = found.difference or _difference(id, ours, theirs)
            found.different += 1
    if unused:
        stand = "stands" if len(unused) == 1 else "stand"
        found.notes.append(
            f"{_ids(unused).capitalize()} {stand} for a token in one model only and for an unused place in the other."
        )
    if marked:
        have = "has" if len(marked) == 1 else "have"
        found.notes.append(
            f"{_ids(marked).capitalize()} {have} the same text but another kind; that changes nothing here."
        )
    _compare_tails(ours, theirs, common, found)
    return found


def _compare_tails(ours: Tokenizer, theirs: Tokenizer, common: int, found: _Comparison) -> None:
    """Entries only the larger vocabulary has."""
    longer, who = (ours, "target") if ours.n_vocab > theirs.n_vocab else (theirs, "draft")
    if longer.n_vocab == common:
        return
    kinds, tokens = longer.kinds(), longer.tokens()
    real = [id for id in range(common, longer.n_vocab) if not is_unused(tokens[id], kinds[id])]
    count = longer.n_vocab - common
    if not real:
        found.notes.append(f"The {who} has {count} unused entries more at the end (padding).")
    elif who == "draft":
        found.notes.append(f"The draft has {count} entries more, {_ids(real)} real; it is never asked for those.")
    else:
        what = "special tokens" if all(kinds[id] in (CONTROL, USER_DEFINED) for id in real) else "tokens"
        found.notes.append(
            f"The target has {what} the draft lacks: {_ids(real)}, such as {ours.show(real[0])}; those are not drafted."
        )


def _shared(ours: Tokenizer, theirs: Tokenizer, comparison: _Comparison) -> SharedVocabulary | None:
    if not (ours.n_vocab and theirs.n_vocab):
        return None
    if ours.model == theirs.model and not comparison.different:
        return share_ids(ours, theirs)
    return share_text(ours, theirs) if comparable(ours) and comparable(theirs) else None


def _refusal(
    ours: Tokenizer, theirs: Tokenizer, comparison: _Comparison, shared: SharedVocabulary | None
) -> tuple[str, str]:
    """Why the pair does not fit and what to do; two empty strings where it fits."""
    family = "Choose a draft of the target's own family, or draft from the text alone with `-d text`."
    for tokenizer, who in ((ours, "target"), (theirs, "draft")):
        if not tokenizer.n_vocab:
            return f"the {who} file has no vocabulary.", "Choose a file that holds a whole language model."
    if shared is None:
        if ours.model != theirs.model:
            return f"their tokenizers are of different types, {ours.model!r} and {theirs.model!r}.", family
        return f"{comparison.different} of {min(ours.n_vocab, theirs.n_vocab)} ids mean different text.", family
    if not shared.useful:
        return f"they share only {shared.figures}; under {100 * USEFUL:.0f} % of either, drafts cannot pay.", family
    if not shared.same_ids:
        return "", ""
    again = "Use files converted from the same release, or draft from the text alone with `-d text`."
    for what, adds, ids in (
        ("BOS", (ours.add_bos, theirs.add_bos), (ours.bos, theirs.bos)),
        ("EOS", (ours.add_eos, theirs.add_eos), (ours.eos, theirs.eos)),
    ):
        if adds[0] != adds[1]:
            who, other = ("target", "draft") if adds[0] else ("draft", "target")
            return f"the {who} adds {what} to every text and the {other} does not.", again
        if adds[0] and ids[0] != ids[1]:
            return f"both add {what}, but not the same one: {_named(ours, ids[0])} and {_named(theirs, ids[1])}.", again
    return "", ""


def _harmless(target: Header, draft: Header, same_ids: bool) -> list[str]:
    """What differs, or is odd about the pair, without making the draft wrong."""
    notes = _harmless_ids(target.tokenizer, draft.tokenizer) if same_ids else []
    if draft.context_length and target.context_length and draft.context_length < target.context_length:
        notes.append(
            f"The draft was trained for {draft.context_length} tokens of context, the target for "
            f"{target.context_length}: past the former its guesses get worse."
        )
    if target.path.exists() and draft.path.exists() and target.path.samefile(draft.path):
        notes.append("Target and draft are the same file, which cannot make anything faster.")
    elif draft.tensor_bytes >= target.tensor_bytes:
        notes.append("The draft is as large as the target, which cannot make anything faster.")
    return notes


def _harmless_ids(ours: Tokenizer, theirs: Tokenizer) -> list[str]:
    """What differs between vocabularies of the same ids, beside their entries."""
    notes = []
    if not ours.add_bos and ours.bos != theirs.bos:
        notes.append(f"BOS differs ({_named(ours, ours.bos)} and {_named(theirs, theirs.bos)}), but neither adds it.")
    if not ours.add_eos and ours.eos != theirs.eos:
        both = f"{_named(ours, ours.eos)} and {_named(theirs, theirs.eos)}"
        notes.append(f"EOS differs ({both}); the target decides where a text ends.")
    elif (ours.eot, ours.eom) != (theirs.eot, theirs.eom):
        ends = sorted(ours.end_ids()), sorted(theirs.end_ids())
        if ends[0] != ends[1]:
            notes.append(f"The end tokens differ ({ends[0]} and {ends[1]}); the target's count.")
    if ours.pre != theirs.pre:
        notes.append(f"The pre-tokenizers differ ({ours.pre!r} and {theirs.pre!r}); only the target's is used.")
    return notes


def _difference(id: int, ours: Tokenizer, theirs: Tokenizer, *kinds: int) -> Difference:
    if kinds:
        shown = [
            f"the byte {t.show(id)}" if kind == BYTE else f"the text {t.show(id)}"
            for t, kind in zip((ours, theirs), kinds, strict=True)
        ]
        return Difference(id, shown[0], shown[1])
    return Difference(id, ours.show(id), theirs.show(id))


def _named(tokenizer: Tokenizer, id: int | None) -> str:
    return "none" if id is None else f"{id} {tokenizer.show(id)}"


def _ids(ids: list[int]) -> str:
    """`id 5`, or `ids 5, 7, 9 and 12 more`."""
    rest = len(ids) - _SAMPLE
    shown = ", ".join(str(id) for id in ids[:_SAMPLE])
    return f"{'ids' if len(ids) > 1 else 'id'} {shown}{f' and {rest} more' if rest > 0 else ''}"
