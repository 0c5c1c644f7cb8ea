"""llama.cpp's grammar notation (GBNF), read as its grammar guide and its parser do.

The parser makes a tree of code-point sets, sequences, alternatives and repetitions; `gbnf_lexemes` writes it for the
grammar engine. Every mistake is one sentence with line and column.
"""

from __future__ import annotations

from dataclasses import dataclass

Ranges = tuple[tuple[int, int], ...]
"""Code points as disjoint ranges, first and last included, ascending."""

LAST = 0x10FFFF
_DEEPEST = 100
_MOST_REPEATS = 100_000
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "/": "/"}
_HEX = {"x": 2, "u": 4, "U": 8}


class GbnfError(ValueError):
    """A grammar that cannot be read; says where."""


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character out of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Cat:
    """One after the other; the empty text where there is none."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Or:
    """One of several."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """Between `least` and `most` times."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """Another rule."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """One token of the vocabulary, by id or by its text; with `negated` any other one."""

    token: int | str
    negated: bool


Node = Chars | Cat | Or | Repeat | Ref | Token


def parse(text: str) -> dict[str, Node]:
    """The rules of a grammar by name, in order; of a rule that is given twice the last one counts, as in llama.cpp.

    Raises:
        GbnfError: It cannot be read, names a rule that is not there, or has no root.
    """
    return _Parser(text).rules()


class _Parser:
    """Recursive descent over the text; `at` is the place of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.named: dict[str, int] = {}
        """Rules that are referred to, with the first place."""

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self.space(lines=True)
        while self.at < len(self.text):
            name = self.name("the name of a rule")
            self.space()
            if not self.text.startswith("::=", self.at):
                raise self.wrong("::= was expected")
            self.at += 3
            self.space(lines=True)
            found[name] = self.alternatives(nested=False)
            if self.at < len(self.text) and self.peek() not in "\r\n":
                raise self.wrong("the end of the line was expected")
            self.space(lines=True)
        for name, place in self.named.items():
            if name not in found:
                raise self.wrong(f"there is no rule {name!r}", place)
        if "root" not in found:
            raise GbnfError("There is no rule 'root'.")
        return found

    # -- parts -----------------------------------------------------------------------------------------------------

    def alternatives(self, nested: bool) -> Node:
        parts = [self.sequence(nested)]
        while self.peek() == "|":
            self.at += 1
            self.space(lines=True)
            parts.append(self.sequence(nested))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def sequence(self, nested: bool) -> Node:
        parts: list[Node] = []
        while (part := self.item()) is not None:
            self.space(lines=nested)
            while (limits := self.repetition(nested)) is not None:
                part = Repeat(part, *limits)
            parts.append(part)
        return parts[0] if len(parts) == 1 else Cat(tuple(parts))

    def item(self) -> Node | None:
        sign = self.peek()
        if sign == '"':
            return self.literal()
        if sign == "[":
            return self.char_class()
        if sign == ".":
            self.at += 1
            return Chars(((0, LAST),))
        if sign == "(":
            return self.group()
        if sign and sign in "<!":
            return self.token()
        if sign and sign in "*+?{":
            raise self.wrong(f"{sign} repeats nothing")
        if _is_word(sign):
            place, name = self.at, self.name("a name")
            self.named.setdefault(name, place)
            return Ref(name)
        return None

    def group(self) -> Node:
        self.at += 1
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.wrong(f"more than {_DEEPEST} parentheses are open")
        self.space(lines=True)
        inner = self.alternatives(nested=True)
        if self.peek() != ")":
            raise self.wrong(") was expected")
        self.at += 1
        self.depth -= 1
        return inner

    def literal(self) -> Node:
        opened = self.at
        self.at += 1
        parts: list[Node] = []
        while self.peek() != '"':
            if not self.peek():
                raise self.wrong("the text that begins here has no end", opened)
            point = self.char()
            parts.append(Chars(((point, point),)))
        self.at += 1
        return parts[0] if len(parts) == 1 else Cat(tuple(parts))

    def char_class(self) -> Node:
        opened = self.at
        self.at += 1
        negated = self.peek() == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while self.peek() != "]":
            if not self.peek():
                raise self.wrong("the class that begins here has no end", opened)
            place, low = self.at, self.char()
            high = low
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.char()
            if high < low:
                raise self.wrong("the range is upside down", place)
            ranges.append((low, high))
        self.at += 1
        found = normal(ranges)
        if negated:
            found = without(found)
        if not found or not ranges:
            raise self.wrong("the class has no character", opened)
        return Chars(found)

    def token(self) -> Node:
        opened = self.at
        negated = self.peek() == "!"
        self.at += negated
        end = self.text.find(">", self.at)
        if self.peek() != "<" or end < 0 or "\n" in self.text[self.at : end]:
            raise self.wrong("a token is <text> or <[id]>", opened)
        word = self.text[self.at + 1 : end]
        self.at = end + 1
        if word.startswith("["):
            if not (word.endswith("]") and word[1:-1].isdecimal() and word.isascii() and len(word) < 12):
                raise self.wrong("a token's id is a number, as in <[1000]>", opened)
            return Token(int(word[1:-1]), negated)
        return Token(f"<{word}>", negated)

    def repetition(self, nested: bool) -> tuple[int, int | None] | None:
        sign, place = self.peek(), self.at
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if sign in simple:
            self.at += 1
            self.space(lines=nested)
            return simple[sign]
        if sign != "{":
            return None
        self.at += 1
        self.space(lines=nested)
        least = self.integer()
        self.space(lines=nested)
        most: int | None = least
        if self.peek() == ",":
            self.at += 1
            self.space(lines=nested)
            most = self.integer() if self.peek().isdecimal() else None
            self.space(lines=nested)
        if self.peek() != "}":
            raise self.wrong("} was expected")
        self.at += 1
        if most is not None and most < least:
            raise self.wrong(f"at least {least} and at most {most} times cannot be", place)
        if max(least, most or 0) > _MOST_REPEATS:
            raise self.wrong(f"more than {_MOST_REPEATS} repetitions", place)
        self.space(lines=nested)
        return least, most

    # -- characters ------------------------------------------------------------------------------------------------

    def char(self) -> int:
        """One character of a text or class as a code point."""
        place, sign = self.at, self.peek()
        if sign != "\\":
            self.at += 1
            return ord(sign)
        kind = self.text[place + 1 : place + 2]
        if kind in _HEX:
            digits = self.text[place + 2 : place + 2 + _HEX[kind]]
            if len(digits) < _HEX[kind] or not all(d in "0123456789abcdefABCDEF" for d in digits):
                raise self.wrong(f"\\{kind} needs {_HEX[kind]} hexadecimal digits")
            self.at += 2 + _HEX[kind]
            point = int(digits, 16)
            if point > LAST or 0xD800 <= point <= 0xDFFF:
                raise self.wrong(f"{point:#x} is no character", place)
            return point
        if kind and kind in _ESCAPES:
            self.at += 2
            return ord(_ESCAPES[kind])
        raise self.wrong(f"the escape \\{kind} is unknown" if kind else "the escape is unfinished")

    def name(self, what: str) -> str:
        start = self.at
        while _is_word(self.peek()):
            self.at += 1
        if self.at == start:
            raise self.wrong(f"{what} was expected")
        return self.text[start : self.at]

    def integer(self) -> int:
        start = self.at
        while self.peek().isascii() and self.peek().isdecimal():
            self.at += 1
        if not 0 < self.at - start < 12:
            raise self.wrong("a whole number was expected", start)
        return int(self.text[start : self.at])

    def space(self, lines: bool = False) -> None:
        while (sign := self.peek()) and (sign in " \t#" or (lines and sign in "\r\n")):
            self.at += 1
            while sign == "#" and self.peek() not in ("", "\r", "\n"):
                self.at += 1

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def wrong(self, what: str, place: int | None = None) -> GbnfError:
        place = self.at if place is None else place
        line = self.text.count("\n", 0, place) + 1
        column = place - self.text.rfind("\n", 0, place)
        return GbnfError(f"Line {line}, column {column}: {what}.")


def _is_word(sign: str) -> bool:
    return bool(sign) and sign.isascii() and (sign.isalnum() or sign in "-_")


# -- sets of code points ---------------------------------------------------------------------------------------------


def normal(ranges: list[tuple[int, int]] | Ranges) -> Ranges:
    """The same code points as disjoint ranges, ascending; surrogates, which are no characters, left out."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def without(ranges: Ranges) -> Ranges:
    """All other code points."""
    found, start = [], 0
    for low, high in ranges:
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    return (*found, (start, LAST)) if start <= LAST else tuple(found)


def meet(one: Ranges, other: Ranges) -> bool:
    """Whether two sets have a code point in common."""
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i][1] < other[j][0]:
            i += 1
        elif other[j][1] < one[i][0]:
            j += 1
        else:
            return True
    return False
