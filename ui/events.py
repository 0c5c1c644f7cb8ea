"""What the engine's thread tells the screen. Plain data: nothing here knows Textual."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_local.errors import SpecLocalError
    from spec_local.sampling.params import Sampling
    from spec_local.session.options import EngineOptions
    from spec_local.session.provenance import TokenText
    from spec_local.session.result import Result
    from spec_local.session.store_records import StoredMessage
    from spec_local.speculation.round import Round


@dataclass(frozen=True, slots=True)
class Loading:
    """A model is being loaded."""

    what: str
    fraction: float
    """0 to 1."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What does not change while an engine lives."""

    model: dict[str, Any]
    """`Engine.describe`."""
    n_ctx: int
    notices: tuple[str, ...]
    sampling: Sampling
    """What an answer gets where nothing is set."""
    sampling_origins: dict[str, str]
    """Where those values come from, by name; a name that is missing has the program's default."""

    @property
    def title(self) -> str:
        """Target and draft in few words; the target alone where nothing drafts."""
        draft = self.model["draft"] or ("text" if "text" in self.model["drafters"] else "")
        return f"{self.model['target']} + {draft}" if draft else str(self.model["target"])


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine is ready."""

    options: EngineOptions
    facts: EngineFacts


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """There is no engine now."""

    options: EngineOptions
    error: SpecLocalError


@dataclass(frozen=True, slots=True)
class Pulling:
    """A model is being fetched."""

    name: str
    what: str
    done: int
    """Bytes."""
    total: int
    """Bytes; 0 while unknown."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model has been fetched (error None), or not."""

    name: str
    error: SpecLocalError | None


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt of an answer is made."""

    answer: int
    prompt_tokens: int
    first: int
    """Index of the first turn that went into it."""
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prefilling:
    """The prompt is being read."""

    answer: int
    done: int
    """Tokens read of those that were not cached."""
    total: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What an answer got since the last batch."""

    answer: int
    text: str
    tokens: tuple[TokenText, ...]
    """Of the answer; those of thinking are counted, in `thinking_tokens`."""
    rounds: tuple[Round, ...]
    thinking: str = ""
    thinking_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer has ended."""

    answer: int
    message: StoredMessage | None
    """As stored; None where nothing stores it."""
    result: Result | None
    error: SpecLocalError | None = None
    refused: bool = False
    """The prompt was not accepted; nothing was computed."""
    notes: tuple[str, ...] = field(default=())


EngineEvent = Loading | Loaded | LoadFailed | Pulling | Pulled | Started | Prefilling | Batch | Finished
