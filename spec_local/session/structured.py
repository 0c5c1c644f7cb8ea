"""Answers that follow a JSON schema or a grammar, through llguidance.

A `Structure` says what is wanted and has been checked without a model, so a mistake is found before one is loaded.
`Structures` compiles it for a vocabulary. The masks are those of llguidance: every token that can lead to a valid text,
and where the next bytes are certain, the model's own spelling of them.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from spec_local.errors import NoTokenError, UsageError
from spec_local.llama.vocabulary import Vocabulary
from spec_local.sampling.constraint import Constraint, Mask

WHITESPACE = r"( |\n[ \t]{0,20})?"
"""Whitespace between JSON tokens: enough for any layout, and no room to go on with nothing but spaces for ever."""
_MOST_COMPILED = 64


class GrammarError(UsageError):
    """A schema or grammar that cannot be compiled."""


class ConstraintError(NoTokenError):
    """The grammar engine gave up while text was being written; the message says why."""


@dataclass(frozen=True, slots=True)
class Structure:
    """A checked schema or grammar. Made by `json_schema`, `gbnf` and `lark`."""

    kind: Literal["json_schema", "gbnf", "lark"]
    text: str
    """As it was given."""
    compiled: str
    """The same for llguidance; of a grammar in its notation for them."""
    tokens: tuple[str, ...] = ()
    """Texts of tokens that a grammar names, for which only a vocabulary has ids."""


def json_schema(schema: str | Mapping[str, Any] | bool, origin: str = "The JSON schema") -> Structure:
    """A structure from a JSON schema, as JSON text or as the value itself.

    Args:
        schema: Keywords that llguidance does not implement are refused, not ignored.
        origin: What to call it in messages.

    Raises:
        GrammarError: It is no JSON, no schema, or nothing can satisfy it.
    """
    from llguidance import LLMatcher

    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{origin} is no JSON: {error}.") from None
    if not isinstance(value, dict | bool):
        raise GrammarError(f"{origin} is neither an object nor true.")
    if value is False:
        raise GrammarError(f"{origin} is false, which nothing satisfies.")
    text = json.dumps(value, ensure_ascii=False)
    try:
        compiled = LLMatcher.grammar_from_json_schema(
            text if value is not True else "{}", overrides={"whitespace_pattern": WHITESPACE}
        )
    except ValueError as error:
        raise GrammarError(f"{origin} cannot be compiled: {_sentence(error)}") from None
    _check(compiled, origin)
    return Structure("json_schema", text, compiled)


def gbnf(grammar: str, origin: str = "The grammar") -> Structure:
    """A structure from a grammar in llama.cpp's notation.

    Args:
        grammar: GBNF with a rule named root.
        origin: What to call it in messages.

    Raises:
        GrammarError: It cannot be parsed or compiled.
    """
    from llguidance import LLMatcher

    from spec_local.session.gbnf import GbnfError, parse
    from spec_local.session.gbnf_lexemes import to_lark, with_tokens

    try:
        rules = parse(grammar)
        for as_one in (True, False):
            lark, tokens = to_lark(rules, as_one)
            checked = LLMatcher.grammar_from_lark(with_tokens(lark, [0] * len(tokens)))
            if not LLMatcher.validate_grammar_with_warnings(checked, None)[0]:
                break  # else it may be too large for one lexeme
    except (GbnfError, RecursionError) as error:
        raise GrammarError(f"{origin} cannot be compiled: {_sentence(error)}") from None
    _check(checked, origin)
    return Structure("gbnf", grammar, lark, tokens)


def lark(grammar: str, origin: str = "The grammar") -> Structure:
    """A structure from a grammar in llguidance's own notation, in which special tokens can be named.

    Raises:
        GrammarError: It cannot be compiled.
    """
    from llguidance import LLMatcher

    try:
        return Structure("lark", grammar, LLMatcher.grammar_from_lark(grammar))
    except ValueError as error:
        raise GrammarError(f"{origin} cannot be compiled: {_sentence(error)}") from None


class Structures:
    """Compiles structures for one vocabulary, and remembers them.

    Args:
        vocabulary: Of the target.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def start(self, structure: Structure) -> LlgConstraint:
        """A constraint before the first token of an answer.

        Raises:
            GrammarError: It cannot be compiled for this vocabulary.
        """
        from llguidance import LLMatcher

        if self._tokenizer is None:
            self._tokenizer = _tokenizer(self._vocabulary)  # about a second for 150 000 tokens
        matcher = self._compiled.pop(structure.compiled, None)
        if matcher is None:
            matcher = LLMatcher(self._tokenizer, self._for_vocabulary(structure), log_level=0)
            if matcher.is_error():
                raise GrammarError(f"The {structure.kind} cannot be compiled: {_sentence(matcher.get_error())}")
        self._compiled[structure.compiled] = matcher
        while len(self._compiled) > _MOST_COMPILED:
            self._compiled.popitem(last=False)
        return LlgConstraint(matcher.deep_copy(), self._vocabulary.size)

    def _for_vocabulary(self, structure: Structure) -> str:
        """What llguidance compiles, named tokens replaced by their ids."""
        if structure.kind != "gbnf":
            return structure.compiled
        from llguidance import LLMatcher

        from spec_local.session.gbnf_lexemes import with_tokens

        ids = []
        for text in structure.tokens:
            found = self._vocabulary.tokenize(text, add_special=False, parse_special=True)
            if len(found) != 1:
                raise GrammarError(f"The gbnf cannot be compiled: {text} is no token of this model.")
            ids += found
        return str(LLMatcher.grammar_from_lark(with_tokens(structure.compiled, ids)))


class LlgConstraint:
    """`Constraint` over an llguidance matcher."""

    def __init__(self, matcher: Any, n_vocab: int) -> None:
        self._matcher = matcher
        self._n_vocab = n_vocab

    def allowed(self) -> Mask:
        bits = np.zeros((self._n_vocab + 31) // 32, np.uint32)  # one bit per token, lowest first
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self._matcher.is_error():
            raise ConstraintError(f"The grammar cannot be followed any further: {_sentence(self._matcher.get_error())}")
        mask = np.unpackbits(bits.view(np.uint8), count=self._n_vocab, bitorder="little").view(np.bool_)
        mask.flags.writeable = False
        return mask

    def advance(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def fork(self) -> LlgConstraint:
        return LlgConstraint(self._matcher.deep_copy(), self._n_vocab)

    def legal(self, tokens: Sequence[int]) -> int:
        return int(self._matcher.validate_tokens(list(tokens)))

    def forced(self, limit: int) -> list[int]:
        return list(self._matcher.compute_ff_tokens()[:limit])


def outcome(
    constraint: Constraint | None, emitted: Sequence[int], end_ids: Collection[int]
) -> Literal["complete", "cut"] | None:
    """Whether an answer came to the end of its structure; None where it had none."""
    if constraint is None:
        return None
    if emitted and emitted[-1] in end_ids:
        return "complete"
    try:
        return "complete" if constraint.allowed()[list(end_ids)].any() else "cut"
    except NoTokenError:
        return "cut"


def _tokenizer(vocabulary: Vocabulary) -> Any:
    """llguidance's view of a vocabulary: bytes of every token, which of them are control tokens, how text is spelt."""
    from llguidance import LLTokenizer, TokenizerWrapper

    class Spelling:
        eos_token_id = vocabulary.eos
        bos_token_id = None
        tokens: list[bytes]
        special_token_ids: list[int]

        def __call__(self, text: str) -> list[int]:
            return vocabulary.tokenize(text, add_special=False)

    spelling = Spelling()
    spelling.tokens = [vocabulary.piece(token) for token in range(vocabulary.size)]
    # Tokens that the model's makers defined, such as <tool_call>, say something to it even in the middle of a text.
    defined = {token for text, token in vocabulary.marked[1].items() if text.strip()}
    spelling.special_token_ids = [token for token, piece in enumerate(spelling.tokens) if not piece or token in defined]
    for token in spelling.special_token_ids:
        spelling.tokens[token] = vocabulary.piece(token, special=True)
    ends = sorted(vocabulary.end_ids)
    return LLTokenizer(TokenizerWrapper(spelling), n_vocab=vocabulary.size, eos_token=ends)


def _check(compiled: str, origin: str) -> None:
    from llguidance import LLMatcher

    wrong, messages = LLMatcher.validate_grammar_with_warnings(compiled, None)
    if wrong:
        raise GrammarError(f"{origin} cannot be compiled: {_sentence(messages[0])}")


def _sentence(error: object) -> str:
    """A message of the grammar engine as one line with an end."""
    text = " ".join(str(error).split())
    return text if text.endswith((".", "!", "?")) else f"{text}."
