"""An answer under way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spec_local.session.store_records import StoredMessage
from spec_local.ui import events

if TYPE_CHECKING:
    from spec_local.session.conversation import Conversation
    from spec_local.ui.comparison import Comparison
    from spec_local.ui.engine_thread import Answer
    from spec_local.ui.figures import TurnFigures
    from spec_local.ui.transcript import Notice
    from spec_local.ui.turn_view import TurnView


@dataclass(slots=True)
class Live:
    """An answer under way."""

    job: Answer
    question: int
    figures: TurnFigures
    view: TurnView | None
    """None for a comparison."""
    conversation: Conversation
    started: float
    comparison: Comparison | None = None
    notice: Notice | None = None
    """Where a comparison reports."""

    def last_state(self, event: events.Finished | None) -> StoredMessage:
        """The answer as it ended: as stored, or put together from what is shown."""
        assert self.view is not None
        if event is not None and event.message is not None:
            return event.message
        error = str(event.error) if event is not None and event.error else ""
        return replace(self.view.message, text=self.view.text, state="failed" if error else "stopped", error=error)
