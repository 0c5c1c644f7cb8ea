"""From an item to what the engine is asked, and to a fingerprint that tells whether an old answer still stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any

from spec_local.batch.failures import Failure, ItemError
from spec_local.batch.records import Item
from spec_local.sampling.params import Sampling
from spec_local.session.generation import Request
from spec_local.session.reply_options import ReplyOptions
from spec_local.session.structured import GrammarError, Structure, gbnf, json_schema


@dataclass(frozen=True, slots=True)
class Recipe:
    """What all lines of a run share; a line's own fields come first."""

    sampling: Sampling = field(default_factory=Sampling)
    system: str | None = None
    raw: bool = False
    structure: Structure | None = None
    """A schema or grammar all answers follow, unless a line brings its own."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """What the text depends on besides prompt and sampling: the target, and under rules that let the draft shape the
    text, the draft. Plain JSON values."""
    reply: ReplyOptions = field(default_factory=ReplyOptions)
    """Thinking, tools, and what the template is told."""

    def request(self, item: Item) -> Request:
        """What the engine is asked for `item`.

        Raises:
            ItemError: The line's own schema or grammar cannot be compiled.
        """
        prompt = item.prompt if isinstance(item.prompt, str) else list(item.prompt)
        structure = self.structure
        try:
            if item.json_schema is not None:
                structure = _json_schema(json.dumps(item.json_schema))
            elif item.grammar is not None:
                structure = _gbnf(item.grammar)
        except GrammarError as error:
            raise ItemError(Failure.INVALID_GRAMMAR, error.message, error.hint) from None
        return Request(
            prompt, self._sampling(item), self._system(item), self.raw, structure=structure, reply=self._reply(item)
        )

    def fingerprint(self, item: Item) -> str:
        """Prompt, sampling and model of an item as three hashes, "prompt-sampling-model"."""
        sampling = self._sampling(item)
        how: list[Any] = [sampling.model_dump(mode="json", include=sampling.model_fields_set)]
        how += [item.json_schema, item.grammar, self.structure.text if self.structure else None]
        reply = self._reply(item).model_dump(mode="json", exclude_defaults=True)
        how += [reply] if reply else []
        return "-".join(_digest(part) for part in ([item.prompt, self._system(item), self.raw], how, self.model))

    def _sampling(self, item: Item) -> Sampling:
        fields = {name: getattr(self.sampling, name) for name in self.sampling.model_fields_set}
        return Sampling.model_validate({**fields, **item.sampling})

    def _reply(self, item: Item) -> ReplyOptions:
        if not item.reply:
            return self.reply
        shared = {name: getattr(self.reply, name) for name in self.reply.model_fields_set}
        arguments = {**shared.get("template_args", {}), **item.reply.get("template_args", {})}
        return ReplyOptions.model_validate({**shared, **item.reply, "template_args": arguments})

    def _system(self, item: Item) -> str | None:
        return item.system if item.system is not None else self.system


def changed_parts(old: str, new: str) -> str:
    """Which parts of a fingerprint differ, in words."""
    names = ("prompt", "sampling", "model")
    olds, news = old.split("-"), new.split("-")
    changed = [name for name, a, b in zip(names, olds, news, strict=False) if a != b]
    return " and ".join(changed) if changed and len(olds) == len(news) else "request"


@lru_cache(maxsize=256)
def _json_schema(text: str) -> Structure:
    return json_schema(text, "The line's json_schema")


@lru_cache(maxsize=256)
def _gbnf(text: str) -> Structure:
    return gbnf(text, "The line's grammar")


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:12]
