"""JSON schemas and GBNF through the real grammar engine, on a vocabulary of bytes and a few words."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from toy_vocabulary import ToyVocabulary

from spec_local.sampling.constraint import Walk
from spec_local.session.structured import GrammarError, LlgConstraint, Structure, Structures, gbnf, json_schema

VOCABULARY = ToyVocabulary()
STRUCTURES = Structures(VOCABULARY)

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3},
    {"enum": ["yes", "no", None, 12]},
    {"type": "string", "pattern": "^[a-c]{2,4}$"},
    {"anyOf": [{"type": "boolean"}, {"type": "number", "minimum": -1, "maximum": 1}]},
    {
        "type": "object",
        "properties": {"x": PERSON, "y": {"const": "ä"}},
        "required": ["x"],
        "additionalProperties": False,
    },
    {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}, "$ref": "#/$defs/t"},
]
GRAMMARS = {
    'root ::= "yes" | "no"\n': r"yes|no",
    'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"\n': r"(- [^\r\n]+\n)+",
    'root ::= [a-c]{2,4} ws [0-9]*\n# a comment\nws ::= | " "\n': r"[a-c]{2,4} ?[0-9]*",
    'root ::= "(" root ")" | "ä"\n': r"\(*ä\)*",
}


def write(structure: Structure, chance: random.Random, most: int = 400) -> bytes | None:
    """A random walk through a structure, choosing among admitted tokens as an untrained model would; its text."""
    state = STRUCTURES.start(structure)
    data = b""
    for _ in range(most):
        allowed = [int(token) for token in np.flatnonzero(state.allowed())]
        assert allowed, "there is always a way to go on, or the end"
        ends = [token for token in allowed if token in VOCABULARY.end_ids]
        # Close what is open where that is possible: a random writer seldom ends by itself.
        closing = [t for t in allowed if VOCABULARY.piece(t)[-1:] in (b'"', b"}", b"]", b")", b"\n")]
        token = chance.choice(ends or (closing if closing and chance.random() < 0.5 else allowed))
        if token in VOCABULARY.end_ids:
            return data
        data += VOCABULARY.piece(token)
        assert state.advance(token)
    return None


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_everything_written_under_a_schema_is_valid(schema: dict[str, Any]) -> None:
    chance = random.Random(1)
    texts = [write(json_schema(schema), chance) for _ in range(15)]
    done = [text for text in texts if text is not None]
    assert len(done) >= 10
    for text in done:
        jsonschema.validate(json.loads(text.decode("utf-8")), schema)


@pytest.mark.parametrize(("grammar", "pattern"), GRAMMARS.items(), ids=range(len(GRAMMARS)))
def test_everything_written_under_a_grammar_belongs_to_it(grammar: str, pattern: str) -> None:
    import re

    chance = random.Random(2)
    texts = [write(gbnf(grammar), chance) for _ in range(15)]
    done = [text.decode("utf-8") for text in texts if text is not None]
    assert len(done) >= 8
    for text in done:
        assert re.fullmatch(pattern, text), text


def test_whitespace_between_tokens_is_bounded() -> None:
    state = STRUCTURES.start(json_schema(PERSON))
    space, newline = VOCABULARY.tokenize(" ")[0], VOCABULARY.tokenize("\n")[0]
    opening = VOCABULARY.tokenize("{")
    assert state.legal([*opening, newline, *[space] * 50]) == 22
    pretty = '{\n    "name": "x",\n    "age": 7\n}'
    assert state.legal(VOCABULARY.tokenize(pretty)) == len(VOCABULARY.tokenize(pretty))


def test_end_tokens_all_end_and_nothing_follows() -> None:
    state = STRUCTURES.start(gbnf('root ::= "yes"\n'))
    assert set(np.flatnonzero(state.allowed())) >= set(VOCABULARY.tokenize("yes"))
    assert not state.allowed()[list(VOCABULARY.end_ids)].any()
    for token in VOCABULARY.tokenize("yes"):
        assert state.advance(token)
    assert set(np.flatnonzero(state.allowed())) == {0, 1}, "end tokens, all of them, and nothing else"
    assert state.legal([1, 5]) <= 1
    assert state.forced(5) in ([], [0])
    assert not state.fork().advance(VOCABULARY.tokenize("y")[0])


def test_control_tokens_are_no_text() -> None:
    state = STRUCTURES.start(gbnf("root ::= [^x]+\n"))
    assert not state.allowed()[2]
    assert state.allowed()[3 + ord("<")]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_a_state_depends_on_its_tokens_only(schema: dict[str, Any]) -> None:
    """Masks along one path, asked in every order, with forks, forced tokens and dead ends in between, are the same."""
    chance = random.Random(3)
    straight = STRUCTURES.start(json_schema(schema))
    nosy = STRUCTURES.start(json_schema(schema))
    for _ in range(40):
        mask = straight.allowed()
        if chance.random() < 0.5:
            spelt = nosy.forced(8)
            assert nosy.legal(spelt) == len(spelt)
        walk = Walk(nosy)
        walk.allowed([int(t) for t in chance.sample(range(VOCABULARY.size), 3)])
        assert (nosy.allowed() == mask).all()
        assert (nosy.fork().allowed() == mask).all()
        first = walk.allowed([])
        assert first is not None
        assert (first == mask).all()
        token = int(chance.choice(np.flatnonzero(mask)))
        if token in VOCABULARY.end_ids:
            break
        ahead = walk.allowed([token])
        assert straight.advance(token)
        assert nosy.advance(token)
        assert ahead is not None
        assert (ahead == straight.allowed()).all()


def test_forced_tokens_are_admitted_and_often_there() -> None:
    state = STRUCTURES.start(json_schema({**PERSON, "properties": {"name": {"const": "yesno"}, "age": {"const": 12}}}))
    found = 0
    for _ in range(30):
        spelt = state.forced(4)
        assert len(spelt) <= 4
        assert state.legal(spelt) == len(spelt)
        found += len(spelt)
        token = spelt[0] if spelt else int(np.flatnonzero(state.allowed())[0])
        if token in VOCABULARY.end_ids:
            break
        assert state.advance(token)
    assert found >= 3


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "no JSON"),
        ("[]", "neither an object"),
        ("7", "neither an object"),
        ("false", "nothing satisfies"),
        ({"type": "strin"}, "strin"),
        ({"$ref": "#/nope"}, "nope"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength"),
        ({"enum": []}, "empty"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_an_error_before_anything(schema: Any, says: str) -> None:
    with pytest.raises(GrammarError) as caught:
        json_schema(schema, "person.json")
    assert "person.json" in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "grammar", ["", "hello", 'root ::= ("yes"', "root ::= missing", 'start ::= "a"', "root ::= [", "\x00"]
)
def test_a_grammar_that_cannot_be_followed_is_an_error_before_anything(grammar: str) -> None:
    with pytest.raises(GrammarError, match=r"x\.gbnf cannot be compiled"):
        gbnf(grammar, "x.gbnf")


def test_any_json() -> None:
    chance = random.Random(4)
    done = [text for _ in range(10) if (text := write(json_schema(True), chance)) is not None]
    assert done
    for text in done:
        json.loads(text)


def test_compiled_once_and_started_afresh() -> None:
    structure = json_schema(PERSON)
    first = STRUCTURES.start(structure)
    assert isinstance(first, LlgConstraint)
    for token in VOCABULARY.tokenize('{"name'):
        assert first.advance(token)
    assert STRUCTURES.start(structure).legal(VOCABULARY.tokenize("{")) == 1
