"""The policy: which source drafts this round, and how far. Begin with `chooser`."""

from __future__ import annotations

from spec_local.speculation.policy.chooser import AdaptiveController

__all__ = ["AdaptiveController"]
