"""A parsed GBNF grammar for llguidance, with the same texts.

llguidance reads text in lexemes, and a lexeme takes as many characters as it can: written down naively,
`"a" "bc" | "ab" "d"` would refuse "abc", since "ab" is longer than "a". GBNF knows no lexemes. A lexeme for each
character would be exact and thirty times slower, so parts without recursion are made lexemes where it can be shown that
taking as much as possible is never wrong: wherever one lexeme is complete and another one (or itself) could go on with
a character, nothing that follows the complete one may begin with that character. It is shown over Glushkov's automaton
of all lexemes together and the FOLLOW sets of the grammar. A grammar without recursion is one lexeme as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from spec_local.session.gbnf import Cat, Chars, Node, Or, Ranges, Ref, Repeat, Token, meet, normal

_LARGEST = 2_000
"""Characters of the largest part that is made one lexeme, with its rules written out."""
_COPIES = 8
"""Repetitions written out where lexemes are compared; more are taken as any number, which can only be more careful."""
_MOST_PAIRS = 100_000


def to_lark(rules: dict[str, Node], as_one: bool = True) -> tuple[str, tuple[str, ...]]:
    """The grammar in llguidance's notation, and the tokens it names by their text.

    The n-th of those stands in it as `<[@n]>`; see `with_tokens`.

    Args:
        rules: Made by `gbnf.parse`.
        as_one: Make a grammar without recursion one lexeme.
    """
    return _Writer(rules, as_one).lark()


def with_tokens(lark: str, ids: list[int]) -> str:
    """`lark` with ids in place of named tokens."""
    for number, token in enumerate(ids):
        lark = lark.replace(f"[@{number}]", f"[{token}]").replace(f"[^@{number}]", f"[^{token}]")
    return lark


@dataclass(slots=True, eq=False)
class _Automaton:
    """Glushkov's: a state for each character of all lexemes, which it has just read."""

    ranges: list[Ranges] = field(default_factory=list)
    owner: list[Node] = field(default_factory=list)
    follow: list[set[int]] = field(default_factory=list)
    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)


class _Writer:
    def __init__(self, rules: dict[str, Node], as_one: bool) -> None:
        self.rules = _reachable(rules)
        self.as_one = as_one
        self.names = {name: "start" if name == "root" else f"r{i}" for i, name in enumerate(self.rules)}
        self.tokens: list[str] = []
        self.recursive = _recursive(self.rules)
        self.sizes: dict[str, int] = {}
        self.nullable = self._nullable()
        self.lexemes: dict[int, Node] = {}
        """Parts that are lexemes, by identity."""

    def lark(self) -> tuple[str, tuple[str, ...]]:
        root = self.rules["root"]
        if self.as_one and self.size(root) <= _LARGEST:
            return f"%llguidance {{}}\n\nstart: /{self.regex(root)}/\n", ()
        for node in self.rules.values():
            self._choose(node)
        while (wrong := self._ambiguous()) is not None:
            del self.lexemes[id(wrong)]
            self._choose_below(wrong)
        lines = [f"{self.names[name]}: {self.write(node)}" for name, node in self.rules.items()]
        return "\n".join(["%llguidance {}", "", *lines, ""]), tuple(self.tokens)

    # -- which parts are lexemes -----------------------------------------------------------------------------------

    def _choose(self, node: Node) -> None:
        """Make the largest parts of a rule lexemes that can be."""
        if isinstance(node, Chars) or (self.size(node) <= _LARGEST and not self.is_nullable(node)):
            self.lexemes[id(node)] = node
        else:
            self._choose_below(node)

    def _choose_below(self, node: Node) -> None:
        if isinstance(node, Cat | Or):
            for part in node.parts:
                self._choose(part)
        elif isinstance(node, Repeat):
            self._choose(node.part)

    def _ambiguous(self) -> Node | None:
        """A lexeme that may not be one: some text is wrong to take as much of as it can; None where all is well."""
        follow = self._follow()
        machine = _Automaton()
        alike: dict[Ranges, Node] = {}  # single characters do not disturb one another: one state for equal ones
        for node in self.lexemes.values():
            if isinstance(node, Chars) and (one := alike.setdefault(node.ranges, node)) is not node:
                follow[id(one)] = normal((*follow[id(one)], *follow[id(node)]))
                continue
            _, first, last = self._build(machine, node, node)
            machine.first |= first
            machine.last |= last
        seen: set[tuple[int, int]] = set()
        todo = [(i, j) for i in machine.first for j in machine.first if meet(machine.ranges[i], machine.ranges[j])]
        while todo:
            pair = todo.pop()
            if pair in seen:
                continue
            seen.add(pair)
            i, j = pair
            if len(seen) > _MOST_PAIRS:
                return max(self.lexemes.values(), key=self.size)
            if i in machine.last:
                behind = follow[id(machine.owner[i])]
                for on in machine.follow[j]:
                    if meet(machine.ranges[on], behind):
                        owners = machine.owner[i], machine.owner[j]
                        return max(owners, key=lambda owner: (not isinstance(owner, Chars), self.size(owner)))
            for a in machine.follow[i]:
                todo += [(a, b) for b in machine.follow[j] if meet(machine.ranges[a], machine.ranges[b])]
        return None

    def _build(self, machine: _Automaton, node: Node, owner: Node) -> tuple[bool, set[int], set[int]]:
        """Add a part to the automaton; returns whether it may be empty, its first states and its last ones."""
        if isinstance(node, Chars):
            machine.ranges.append(node.ranges)
            machine.owner.append(owner)
            machine.follow.append(set())
            states = {len(machine.ranges) - 1}
            return False, states, set(states)
        if isinstance(node, Ref):
            return self._build(machine, self.rules[node.name], owner)
        if isinstance(node, Or):
            built = [self._build(machine, part, owner) for part in node.parts]
            return any(b[0] for b in built), set().union(*(b[1] for b in built)), set().union(*(b[2] for b in built))
        if isinstance(node, Cat):
            return self._chain(machine, [self._build(machine, part, owner) for part in node.parts])
        assert isinstance(node, Repeat), "a lexeme has no token in it"
        if node.most == 0:
            return True, set(), set()
        if node.most is not None and node.most <= _COPIES:
            copies = [self._build(machine, node.part, owner) for _ in range(node.most)]
            optional = [(empty or n >= node.least, first, last) for n, (empty, first, last) in enumerate(copies)]
            return self._chain(machine, optional)
        empty, first, last = self._build(machine, node.part, owner)
        for state in last:
            machine.follow[state] |= first
        return empty or node.least == 0, first, last

    @staticmethod
    def _chain(machine: _Automaton, parts: list[tuple[bool, set[int], set[int]]]) -> tuple[bool, set[int], set[int]]:
        empty, firsts, lasts = True, set[int](), set[int]()
        for may_be_empty, first, last in parts:
            for state in lasts:
                machine.follow[state] |= first
            firsts |= first if empty else set()
            lasts = last | (lasts if may_be_empty else set())
            empty = empty and may_be_empty
        return empty, firsts, lasts

    # -- what may follow -------------------------------------------------------------------------------------------

    def _follow(self) -> dict[int, Ranges]:
        """By lexeme: code points that the text behind it may begin with, wherever it stands."""
        first = self._rule_sets(lambda node, sets: self._first(node, sets))
        follow: dict[int, Ranges] = dict.fromkeys(self.lexemes, ())
        rules: dict[str, Ranges] = dict.fromkeys(self.rules, ())

        def visit(node: Node, behind: Ranges) -> None:
            if id(node) in self.lexemes:
                follow[id(node)] = normal((*follow[id(node)], *behind))
            elif isinstance(node, Ref):
                rules[node.name] = normal((*rules[node.name], *behind))
            elif isinstance(node, Or):
                for part in node.parts:
                    visit(part, behind)
            elif isinstance(node, Cat):
                for part in reversed(node.parts):
                    visit(part, behind)
                    mine = self._first(part, first)
                    behind = normal((*mine, *behind)) if self.is_nullable(part) else mine
            elif isinstance(node, Repeat):
                visit(node.part, normal((*self._first(node.part, first), *behind)))

        before = None
        while before != (follow, rules):
            before = (dict(follow), dict(rules))
            for name, node in self.rules.items():
                visit(node, rules[name])
        return follow

    def _first(self, node: Node, rules: dict[str, Ranges]) -> Ranges:
        """Code points that a part may begin with."""
        if isinstance(node, Chars):
            return node.ranges
        if isinstance(node, Ref):
            return rules[node.name]
        if isinstance(node, Repeat):
            return self._first(node.part, rules)
        if isinstance(node, Token):
            return ()  # no characters
        found: list[tuple[int, int]] = []
        for part in node.parts:
            found += self._first(part, rules)
            if isinstance(node, Cat) and not self.is_nullable(part):
                break
        return normal(found)

    def _rule_sets(self, of: Callable[[Node, dict[str, Ranges]], Ranges]) -> dict[str, Ranges]:
        sets: dict[str, Ranges] = dict.fromkeys(self.rules, ())
        before = None
        while before != sets:
            before = dict(sets)
            for name, node in self.rules.items():
                sets[name] = of(node, sets)
        return sets

    # -- facts about parts -----------------------------------------------------------------------------------------

    def _nullable(self) -> set[str]:
        """Rules that may be empty."""
        self.nullable = set()
        while True:
            found = {name for name, node in self.rules.items() if self.is_nullable(node)}
            if found == self.nullable:
                return found
            self.nullable = found

    def is_nullable(self, node: Node) -> bool:
        """Whether a part may be empty."""
        if isinstance(node, Ref):
            return node.name in self.nullable
        if isinstance(node, Cat):
            return all(map(self.is_nullable, node.parts))
        if isinstance(node, Or):
            return any(map(self.is_nullable, node.parts))
        return isinstance(node, Repeat) and (node.least == 0 or self.is_nullable(node.part))

    def size(self, node: Node) -> int:
        """Characters of a part with its rules written out; more than `_LARGEST` where it is no regular expression."""
        if isinstance(node, Chars):
            return 1
        if isinstance(node, Token):
            return _LARGEST + 1
        if isinstance(node, Ref):
            if node.name in self.recursive:
                return _LARGEST + 1
            if node.name not in self.sizes:
                self.sizes[node.name] = self.size(self.rules[node.name])
            return self.sizes[node.name]
        if isinstance(node, Repeat):
            return min(_LARGEST + 1, self.size(node.part) * (min(node.most or node.least or 1, _COPIES) or 1))
        total = 0
        for part in node.parts:
            total += self.size(part)
            if total > _LARGEST:
                break
        return total

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(self, node: Node) -> str:
        """A part in llguidance's notation."""
        if id(node) in self.lexemes:
            return f"/{self.regex(node)}/"
        if isinstance(node, Ref):
            return self.names[node.name]
        if isinstance(node, Cat):
            return f"({' '.join(map(self.write, node.parts))})" if node.parts else '""'
        if isinstance(node, Or):
            return f"({' | '.join(map(self.write, node.parts))})"
        if isinstance(node, Repeat):
            return '""' if node.most == 0 else f"({self.write(node.part)}){_times(node)}"
        assert isinstance(node, Token)
        sign = "^" if node.negated else ""
        if isinstance(node.token, int):
            return f"<[{sign}{node.token}]>"
        if node.token not in self.tokens:
            self.tokens.append(node.token)
        return f"<[{sign}@{self.tokens.index(node.token)}]>"

    def regex(self, node: Node) -> str:
        """A part as a regular expression."""
        if isinstance(node, Chars):
            return _class(node.ranges)
        if isinstance(node, Ref):
            return self.regex(self.rules[node.name])
        if isinstance(node, Cat):
            return "".join(map(self.regex, node.parts))
        if isinstance(node, Or):
            return f"(?:{'|'.join(map(self.regex, node.parts))})"
        assert isinstance(node, Repeat)
        return "" if node.most == 0 else f"(?:{self.regex(node.part)}){_times(node)}"


def _times(node: Repeat) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return known.get((node.least, node.most)) or f"{{{node.least},{'' if node.most is None else node.most}}}"


def _class(ranges: Ranges) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _spelt(ranges[0][0])
    return "[" + "".join(_spelt(a) if a == b else f"{_spelt(a)}-{_spelt(b)}" for a, b in ranges) + "]"


def _spelt(point: int) -> str:
    sign = chr(point)
    return sign if sign.isascii() and sign.isalnum() else f"\\x{{{point:x}}}"


def _reachable(rules: dict[str, Node]) -> dict[str, Node]:
    found, todo = {"root"}, ["root"]
    while todo:
        for name in _references(rules[todo.pop()]):
            if name not in found:
                found.add(name)
                todo.append(name)
    return {name: node for name, node in rules.items() if name in found}


def _recursive(rules: dict[str, Node]) -> set[str]:
    """Rules from which one comes back to them, or to another such rule: they are no regular expressions."""
    reached = {name: set(_references(node)) for name, node in rules.items()}
    while True:
        wider = {name: names.union(*(reached[n] for n in names)) for name, names in reached.items()}
        if wider == reached:
            break
        reached = wider
    loops = {name for name, names in reached.items() if name in names}
    return {name for name, names in reached.items() if name in loops or names & loops}


def _references(node: Node) -> Iterator[str]:
    if isinstance(node, Ref):
        yield node.name
    elif isinstance(node, Repeat):
        yield from _references(node.part)
    elif isinstance(node, Cat | Or):
        for part in node.parts:
            yield from _references(part)
