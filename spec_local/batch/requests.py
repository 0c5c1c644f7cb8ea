"""From an item to what the engine is asked, and to a fingerprint that tells whether an old answer still stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from spec_local.batch.records import Item
from spec_local.sampling.params import Sampling
from spec_local.session.generation import Request


@dataclass(frozen=True, slots=True)
class Recipe:
    """What all lines of a run share; a line's own fields come first."""

    sampling: Sampling = field(default_factory=Sampling)
    system: str | None = None
    raw: bool = False
    model: Mapping[str, Any] = field(default_factory=dict)
    """What the text depends on besides prompt and sampling: the target, and under rules that let the draft shape the
    text, the draft. Plain JSON values."""

    def request(self, item: Item) -> Request:
        """What the engine is asked for `item`."""
        fields = {name: getattr(self.sampling, name) for name in self.sampling.model_fields_set}
        sampling = Sampling.model_validate({**fields, **item.sampling})
        system = item.system if item.system is not None else self.system
        prompt = item.prompt if isinstance(item.prompt, str) else list(item.prompt)
        return Request(prompt, sampling, system, self.raw)

    def fingerprint(self, item: Item) -> str:
        """Prompt, sampling and model of an item as three hashes, "prompt-sampling-model"."""
        request = self.request(item)
        set_fields = request.sampling.model_dump(mode="json", include=request.sampling.model_fields_set)
        parts = (
            [request.prompt, request.system, request.raw],
            [set_fields, item.json_schema, item.grammar],
            self.model,
        )
        return "-".join(_digest(part) for part in parts)


def changed_parts(old: str, new: str) -> str:
    """Which parts of a fingerprint differ, in words."""
    names = ("prompt", "sampling", "model")
    olds, news = old.split("-"), new.split("-")
    changed = [name for name, a, b in zip(names, olds, news, strict=False) if a != b]
    return " and ".join(changed) if changed and len(olds) == len(news) else "request"


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:12]
