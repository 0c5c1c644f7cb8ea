"""What the chat's logic asks of the application around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spec_local.ui.figures import TurnFigures
    from spec_local.ui.transcript import Transcript


class Stage(Protocol):
    """The application, as the dialogue sees it."""

    transcript: Transcript

    def refresh_state(self) -> None:
        """Title, status line and panel may be out of date."""

    def show_figures(self, figures: TurnFigures | None) -> None:
        """Show these figures in the panel, now or a little later."""

    def give_back(self, text: str) -> None:
        """Put a text into the input, unless something stands there."""

    def pick_model(self) -> None:
        """Let the person choose a model."""
