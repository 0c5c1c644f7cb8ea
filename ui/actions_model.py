"""What the commands about models, sampling and speculation do."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spec_local.errors import UsageError
from spec_local.session.conversation import REPLY_SETTINGS
from spec_local.words import unescaped

if TYPE_CHECKING:
    from spec_local.ui.app import ChatApp


async def compare(app: ChatApp, _: str) -> None:
    """Run the last answer the other way."""
    await app.dialogue.compare()


def sampling_names(_: ChatApp) -> Sequence[str]:
    """Names that /set knows."""
    from spec_local.sampling.params import Sampling

    return (*Sampling.model_fields, *REPLY_SETTINGS)


def set_sampling(app: ChatApp, text: str) -> None:
    """Set one value, or list all with where each comes from."""
    conversation = app.dialogue.conversation
    if not text:
        app.transcript.note(_table(app))
        return
    # "name value", "name=value", "name = value"; a stop string may begin with "="
    name, *rest = re.split(r"=\s*|\s+=\s+|\s+", text, maxsplit=1)
    name, value = name.replace("-", "_"), "".join(rest)
    if not value:
        raise UsageError(f"/set {name} takes a value.", "/set alone shows all values.")
    conversation.set_sampling(name, _value(name, value))
    app.transcript.note(f"{name} = {conversation.settings[name]} from the next answer on")


def unset_sampling(app: ChatApp, name: str) -> None:
    """Put one value back."""
    app.dialogue.conversation.set_sampling(name.replace("-", "_"), None)
    app.transcript.note(f"{name} is back to its default.")


def _value(name: str, text: str) -> Any:
    """A value as JSON where it is JSON; text for stop strings, a list for several."""
    if name == "stop" and not text.startswith("["):
        return [unescaped(text)]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _table(app: ChatApp) -> str:
    from spec_local.sampling.params import Sampling

    dialogue = app.dialogue
    base = dialogue.base or Sampling()
    sampling = dialogue.conversation.sampling(base)
    facts = dialogue.facts
    rows = []
    for name in Sampling.model_fields:
        value, origin = getattr(sampling, name), "default"
        if name in dialogue.conversation.settings:
            origin = "set here"
        elif name in base.model_fields_set:
            origin = "set at start"
        elif facts is not None and name in facts.sampling_origins:
            value, origin = getattr(facts.sampling, name), facts.sampling_origins[name]
        shown = (
            "drawn for each answer" if name == "seed" and value is None else "–" if value in (None, (), {}) else value
        )
        rows.append(f"{name:<18} {shown!s:<22} {origin}")
    reply, base_reply = dialogue.conversation.reply(dialogue.base_reply), dialogue.base_reply
    for name in REPLY_SETTINGS:
        origin = "set here" if name in dialogue.conversation.settings else "default"
        if origin == "default" and base_reply is not None and name in base_reply.model_fields_set:
            origin = "set at start"
        value = getattr(reply, name)
        rows.append(f"{name:<18} {'–' if value in (None, {}) else value!s:<22} {origin}")
    return "\n".join(rows)


def pick(app: ChatApp, name: str) -> None:
    """Choose target and draft, or load a target by name with the draft that goes with it."""
    from spec_local.session.options import EngineOptions
    from spec_local.ui.model_picker import Choice, ModelPicker

    def chosen(choice: Choice | None) -> None:
        if choice is not None:
            update = {"target": choice.target, "draft": choice.draft, "pair": choice.pair}
            app.options = (app.dialogue.models.options or app.options or EngineOptions()).model_copy(update=update)
            app.dialogue.load(app.options)

    if name:
        chosen(Choice(name, "auto"))
    else:
        facts, pair = app.dialogue.facts, app.options.pair if app.options else None
        names = (facts.model["target"], pair) if facts is not None else ()
        app.push_screen(ModelPicker(loaded=frozenset(filter(None, names))), chosen)


def runnable(_: ChatApp) -> Sequence[str]:
    """Names that /model knows: what is here first."""
    from spec_local.models_manifest import list_models

    return [model.name for model in sorted(list_models(), key=lambda model: model.path is None)]


def pull(app: ChatApp, name: str) -> None:
    """Fetch a model."""
    app.dialogue.pull(name)


def pullable(_: ChatApp) -> Sequence[str]:
    """Names that /pull knows."""
    from spec_local.models_manifest import load_catalogue

    catalogue = load_catalogue()
    return [*(pair.name for pair in catalogue.pairs), *(model.name for model in catalogue.models)]


def speculation(app: ChatApp, state: str) -> None:
    """Switch speculation for the next answer."""
    if state not in ("", "on", "off"):
        raise UsageError("/speculation takes on or off.")
    app.dialogue.next_on = not app.dialogue.next_on if not state else state == "on"
    app.refresh_state()
