"""What content can never do: become a control token.

A prompt is one text, in which the template wrote control tokens (`<|im_end|>`) and content may spell the same
characters. Before rendering, the one character of content without which no marker can be spelt is exchanged for a
private one, so whatever a template does with content (trim, join, cut, replace), a marker in its output is its own.
Afterwards the characters are put back, and where that spells a marker, the text there is tokenised as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_FIRST_PRIVATE, _LAST_PRIVATE = 0xF0000, 0xFFFFD
_PRIVATE = re.compile(f"[{chr(_FIRST_PRIVATE)}-{chr(_LAST_PRIVATE)}]")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a prompt that is tokenised by itself."""

    text: str
    special: bool = True
    """Control tokens written in it are read as such."""
    joined: bool = False
    """It goes on in the middle of a text: nothing is put in front of it, as some tokenizers do at a beginning."""


class Markers:
    """The texts of a vocabulary's control tokens, and what they are made of.

    Args:
        control: Texts that are tokens only where special parsing is on.
        defined: Texts that are tokens wherever they are written, and that a template gives a meaning.
    """

    def __init__(self, control: Collection[str] = (), defined: Collection[str] = ()) -> None:
        self._defined = frozenset(filter(None, defined))
        self.texts = frozenset(filter(None, control)) | self._defined
        shapes: dict[str, set[tuple[int, int]]] = {}
        words = []
        for text in self.texts:
            at = next((i for i, c in enumerate(text) if not c.isalnum() and not c.isspace()), 0)
            words += [text] if text[at].isalnum() or text[at].isspace() else []
            shapes.setdefault(text[at], set()).add((at, len(text)))
        self._shapes = {char: sorted(shape, key=lambda s: -s[1]) for char, shape in shapes.items()}
        self.words = tuple(sorted(words, key=len, reverse=True))
        """Markers of letters alone, in a few vocabularies: these are covered only where they are spelt out."""
        of_words = {word[0] for word in words}
        self.signs = tuple(sorted(char for char in shapes if char not in of_words))
        """One character of every other marker; a text without them holds none of those."""

    def found(self, text: str, at: int, char: str) -> Iterable[tuple[int, int]]:
        """Spans of the markers whose character `char` stands at `at`, longest first."""
        for offset, length in self._shapes[char]:
            start = at - offset
            if start >= 0 and text[start : start + length] in self.texts:
                yield start, start + length

    def defined(self, text: str) -> bool:
        """Whether this marker is a token even in plain text."""
        return text in self._defined


class Shield:
    """Protects the content of one rendering.

    Args:
        markers: Of the vocabulary.
        content: Everything that goes in: private characters that occur in it are not used.
    """

    def __init__(self, markers: Markers, content: Any) -> None:
        self._markers = markers
        taken = set(_PRIVATE.findall("".join(_texts(content))))
        free = (chr(code) for code in range(_FIRST_PRIVATE, _LAST_PRIVATE) if chr(code) not in taken)
        self.end_mark = next(free)
        """A character that stands for the end of a text that is continued."""
        self._private = {char: next(free) for char in (*markers.signs, *(word[0] for word in markers.words))}
        self._table = str.maketrans({char: self._private[char] for char in markers.signs})
        self._back = str.maketrans({private: char for char, private in self._private.items()})
        self._own = {private: char for char, private in self._private.items()}

    def cover(self, value: Any) -> Any:
        """A copy of a JSON value with the characters of all its texts exchanged."""
        if isinstance(value, str):
            for word in self._markers.words:
                value = value.replace(word, self._private[word[0]] + word[1:])
            return value.translate(self._table)
        if isinstance(value, dict):
            return {self.cover(key): self.cover(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.cover(item) for item in value]
        return value

    def uncover(self, text: str) -> str:
        """The text with its own characters again."""
        return text.translate(self._back)

    def stretches(self, covered: str) -> list[Stretch]:
        """A rendered text in the parts it is tokenised in: one, where no content spells a marker."""
        text = self.uncover(covered)
        forged: list[tuple[int, int]] = []
        private = re.compile("[" + "".join(self._own) + "]") if self._own else None
        for match in private.finditer(covered) if private else ():
            forged += self._markers.found(text, match.start(), self._own[match.group()])
        if not forged:
            return [Stretch(text)]
        # Between two markers of the template lies plain text. What content forged is read as such, up to the next one.
        cuts = self._template_markers(covered, text)
        found: list[Stretch] = []
        done = 0
        for start, end in sorted(forged):
            if start < done:
                continue
            left = max((b for _, b in cuts if b <= start), default=0)
            right = min((a for a, _ in cuts if a >= end), default=len(text))
            if left > done:
                found.append(Stretch(text[done:left]))
            found += self._plain(text[max(left, done) : right], max(left, done), forged)
            done = right
        if done < len(text):
            found.append(Stretch(text[done:]))
        return found

    def _template_markers(self, covered: str, text: str) -> list[tuple[int, int]]:
        """Spans of the markers that the template wrote."""
        found: list[tuple[int, int]] = []
        for match in re.finditer("[" + re.escape("".join(self._private)) + "]", covered):
            for start, end in self._markers.found(text, match.start(), match.group()):
                if covered[start:end] == text[start:end]:
                    found.append((start, end))
                    break
        return found

    def _plain(self, text: str, offset: int, forged: list[tuple[int, int]]) -> list[Stretch]:
        """Plain text; markers that are tokens even there are cut behind their first character."""
        cuts = sorted(
            {
                start + 1 - offset
                for start, end in forged
                if offset <= start and end <= offset + len(text) and end - start > 1
                if self._markers.defined(text[start - offset : end - offset])
            }
        )
        edges = [0, *cuts, len(text)]
        return [Stretch(text[a:b], special=False, joined=a > 0) for a, b in pairwise(edges) if b > a]


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
