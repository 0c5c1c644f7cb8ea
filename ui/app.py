"""The chat application: the screen around a `Dialogue`, and the keys that reach it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events as textual_events
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer

from spec_local.errors import SpecLocalError
from spec_local.session.store_records import StoredMessage
from spec_local.ui import actions_model
from spec_local.ui.commands import BY_NAME, COMMANDS, Command, parse
from spec_local.ui.composer import Composer
from spec_local.ui.dialogue import Dialogue
from spec_local.ui.events import WorkerEvent
from spec_local.ui.figures import TurnFigures
from spec_local.ui.input_box import InputBox
from spec_local.ui.preferences import load_theme, save_theme
from spec_local.ui.speculation_panel import SpeculationPanel
from spec_local.ui.status import Situation, StatusLine, TitleLine
from spec_local.ui.transcript import EmptyState, Legend, Offer, Transcript
from spec_local.ui.turn_view import TurnView
from spec_local.ui.worker import EngineWorker, Loader, Puller, load_engine, pull_model

if TYPE_CHECKING:
    from spec_local.sampling.params import Sampling
    from spec_local.session.options import EngineOptions
    from spec_local.session.store import Store

Prepare = Callable[[], "tuple[EngineOptions, Sampling]"]

PANEL_WIDTH_FROM = 100
"""Columns from which the panel is shown unless a person hides it."""
_PANEL_S = 0.2
_PANEL_SHARE = 25
"""Working out the panel's figures is followed by a pause of this many times what it took."""
_TWICE_S = 2.0
_ON_MESSAGE = ("run_on_message", "step", "version", "unfold")
"""Actions of keys that act on a chosen message, and are letters or something else's keys otherwise."""


class FromWorker(Message):
    """An event of the engine's thread."""

    def __init__(self, event: WorkerEvent) -> None:
        super().__init__()
        self.event = event


def _bindings() -> list[BindingType]:
    """Keys from the registry."""
    made: list[BindingType] = [
        Binding(key, f"run_command('{command.name}')", command.summary, show=False, priority=key != "escape")
        for command in COMMANDS
        for key in command.keys
    ]
    for key, action in (("up", "step(-1)"), ("down", "step(1)"), ("left", "version(-1)"), ("right", "version(1)")):
        made.append(Binding(key, action, show=False))
    made += [
        Binding(key, f"run_on_message('{command.name}')", show=False)
        for command in COMMANDS
        for key in command.message_keys
    ]
    made.append(Binding("enter", "unfold", show=False))
    made.append(Binding("ctrl+c", "interrupt", show=False, priority=False))
    return made


class ChatApp(App[int]):
    """See the module.

    Args:
        prepare: Checks what was asked for and says what to load. Called after the first paint, in a thread of its own;
            an error ends the application and is then `failure`.
        store: Where conversations are kept.
        system: System message of new conversations.
        resume: Id of the conversation to go on with.
        warning: What to say at the start, such as that nothing will be saved.
        loader: Makes engines.
        puller: Fetches models.
    """

    CSS_PATH = "app.tcss"
    TITLE = "spec-local"
    BINDINGS: ClassVar[list[BindingType]] = _bindings()
    PAUSE_GC_ON_SCROLL = True
    COMMAND_PALETTE_BINDING = "ctrl+p"

    def __init__(
        self,
        prepare: Prepare,
        store: Store,
        *,
        system: str = "",
        resume: int | None = None,
        warning: SpecLocalError | None = None,
        loader: Loader = load_engine,
        puller: Puller = pull_model,
    ) -> None:
        super().__init__()
        self.title_line = TitleLine(id="title")
        self.legend = Legend(id="legend")
        self.transcript = Transcript(id="transcript")
        self.input = InputBox(id="input")
        self.composer = self.input.composer
        self.panel = SpeculationPanel(id="panel")
        self.status_line = StatusLine(id="status")
        self.options: EngineOptions | None = None
        """What was asked to be loaded last; None until that is known."""
        self.failure: SpecLocalError | None = None
        """Why it ended by itself."""
        self._prepare = prepare
        self._resume = resume
        self._warning = warning
        self.worker = EngineWorker(lambda event: self.post_message(FromWorker(event)), loader, puller)
        self.dialogue = Dialogue(self, store, self.worker, system)
        self._panel_wanted: bool | None = None
        """What the person chose; None: as the width suggests."""
        self._interrupted = -_TWICE_S
        self._panel_timer: Timer | None = None
        self._panel_due = 0.0
        self._figures: TurnFigures | None = None

    def compose(self) -> ComposeResult:
        yield self.title_line
        with Horizontal(id="body"):
            with Vertical(id="main"):
                yield self.legend
                yield self.transcript
                yield self.input
            yield self.panel
        yield self.status_line

    def on_mount(self) -> None:
        if (theme := load_theme()) in self.available_themes:
            self.theme = theme
        self.theme_changed_signal.subscribe(self, lambda theme: save_theme(theme.name))
        self.composer.focus()
        self.composer.set_history(self.dialogue.store.prompts())
        self._arrange(self.size.width, self.size.height)
        self.set_interval(2.0, self._measure_memory)
        self._on_signals()
        self.refresh_state()
        # The models come after the first paint: a person sees the screen at once.
        self.call_after_refresh(self._begin)

    async def _begin(self) -> None:
        try:
            self.options, self.dialogue.base = await asyncio.to_thread(self._prepare)
        except SpecLocalError as error:
            self.failure = error
            self.exit()
            return
        self.worker.start()
        if self._warning is not None:
            self.transcript.complain(self._warning)
        if self._resume is not None:
            await self.dialogue.open(self._resume)
        if self.options is not None:
            self.dialogue.load(self.options)

    # -- parts -----------------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> StoredMessage | None:
        """The message chosen with the keys."""
        return self.focused.message if isinstance(self.focused, TurnView) else None

    # -- what the dialogue asks for ----------------------------------------------------------------------------------

    def refresh_state(self) -> None:
        dialogue = self.dialogue
        self.title_line.show(dialogue.conversation.title, dialogue.facts, dialogue.models.doing)
        self.status_line.show(
            Situation(
                next_on=dialogue.next_on,
                busy=dialogue.current is not None,
                doing=dialogue.models.doing,
                queued=dialogue.queued is not None,
                editing=self.input.editing is not None,
            )
        )
        for empty in self.transcript.query(EmptyState):
            empty.loaded = dialogue.facts.title if dialogue.facts else dialogue.models.doing
        if self.panel.next_on != dialogue.next_on:
            self.panel.next_on = dialogue.next_on
            self.panel.changed()

    def show_figures(self, figures: TurnFigures | None) -> None:
        self._figures = figures
        if self._panel_timer is None:
            wait = max(0.0, self._panel_due - time.monotonic())
            if wait and figures is not None and figures.rounds:
                self._panel_timer = self.set_timer(wait, self._draw_panel)
            else:
                self._draw_panel()

    def _draw_panel(self) -> None:
        self._panel_timer = None
        begin = time.monotonic()
        if self.panel.display:
            self.panel.show(self._figures)
        self.status_line.show_figures(None if self.panel.display else self._figures)
        took = time.monotonic() - begin
        self._panel_due = time.monotonic() + max(_PANEL_S, _PANEL_SHARE * took)

    def give_back(self, text: str) -> None:
        if self.composer.text.strip():
            self.transcript.note(f"This was not sent:\n{text}", kind="warning")
        else:
            self.composer.load_whole(text)

    def pick_model(self) -> None:
        actions_model.pick(self, "")

    # -- what commands ask for -----------------------------------------------------------------------------------------

    def flash(self, text: str) -> None:
        """Say something small and passing in the status line."""
        self.status_line.flash(text)

    def put_on_clipboard(self, text: str) -> None:
        """Through the terminal (OSC 52) and, where it is installed and works, the system's own clipboard."""
        self.copy_to_clipboard(text)
        with contextlib.suppress(Exception):  # no clipboard here: the terminal has it, or nothing does
            import pyperclip

            pyperclip.copy(text)

    def begin_edit(self, message: StoredMessage) -> None:
        """Put a message into the input to write another version of it."""
        self.input.edit(message)
        self.refresh_state()

    def toggle_panel(self) -> None:
        """Show or hide the panel."""
        self._panel_wanted = not self.panel.display
        self._arrange(self.size.width, self.size.height)

    def toggle_provenance(self) -> None:
        """Colour tokens by their origin, or not."""
        shown = not self.transcript.show_provenance
        self.transcript.show_provenance = shown
        self.legend.display = shown

    async def done(self, result: Any) -> None:
        """Await what a command or a choice in a dialog gave back, if that is to be awaited; errors go to the
        transcript."""
        try:
            if isawaitable(result):
                await result
        except SpecLocalError as error:
            self.transcript.complain(error)

    def choose_message(self, index: int) -> None:
        """Move the keys to a message."""
        turns = self.transcript.turns
        if turns:
            turns[index].focus()

    def choose_at(self, index: int | None) -> None:
        """The same, where there is an index."""
        if index is not None and index < len(self.transcript.turns):
            self.call_after_refresh(self.choose_message, index)

    def on_descendant_focus(self, event: textual_events.DescendantFocus) -> None:
        """The panel shows the figures of the chosen answer; else those of the answer under way, or of the last one."""
        if isinstance(event.widget, TurnView) and event.widget.message.role == "assistant":
            self.show_figures(event.widget.figures)
        elif event.widget is self.composer:
            self.dialogue.show_last_figures()

    # -- commands and keys -------------------------------------------------------------------------------------------

    async def perform(self, command: Command, argument: str = "") -> bool:
        """Do a command; an error becomes a message in the transcript. False for an error."""
        try:
            result = command.action(self, argument)
            if isawaitable(result):
                await result
        except SpecLocalError as error:
            self.transcript.complain(error)
            return False
        return True

    async def action_run_command(self, name: str) -> None:
        """A key of the registry."""
        await self.perform(BY_NAME[name])

    async def action_run_on_message(self, name: str) -> None:
        """A key of the registry for a chosen message."""
        await self.perform(BY_NAME[name])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys without a modifier act on a chosen message only; dialogs have their own keys."""
        if len(self.screen_stack) > 1 and action in ("run_command", *_ON_MESSAGE):
            return False
        if action in _ON_MESSAGE:
            return isinstance(self.focused, TurnView)
        return True

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette: every command that makes sense without an argument."""
        for command in COMMANDS:
            if not command.needs_argument:
                title = f"/{command.name}"
                yield SystemCommand(
                    title, command.summary, lambda command=command: self.run_worker(self.perform(command))
                )

    def action_step(self, step: int) -> None:
        """Previous or next message; below the last one is the input."""
        turns = self.transcript.turns
        at = turns.index(self.focused) + step if self.focused in turns else len(turns)
        if at >= len(turns):
            self.composer.focus()
            self.transcript.follow()
        elif at >= 0:
            turns[at].focus()

    async def action_version(self, step: int) -> None:
        """Another version of the chosen message."""
        from spec_local.ui.actions_chat import switch

        try:
            await switch(self, step)
        except SpecLocalError as error:
            self.flash(error.message)

    def action_unfold(self) -> None:
        """Show all of a long message."""
        if isinstance(self.focused, TurnView):
            self.focused.unfolded = not self.focused.unfolded
            self.focused.changed()

    async def action_interrupt(self) -> None:
        """Ctrl+C: copy a selection, else stop what runs, else leave at the second time."""
        selected = self.screen.get_selected_text() or (self.composer.selected_text if self.composer.has_focus else "")
        if selected:
            self.put_on_clipboard(selected)
            self.screen.clear_selection()
            return
        if self.dialogue.stop():
            return
        if time.monotonic() - self._interrupted < _TWICE_S:
            await self.action_quit()
            return
        self._interrupted = time.monotonic()
        self.flash("Ctrl+C again leaves.")

    # -- the input -----------------------------------------------------------------------------------------------------

    async def on_composer_submitted(self, event: Composer.Submitted) -> None:
        text = event.text
        if not text.strip():
            return
        try:
            command = parse(text)
            if command is not None:
                self.composer.clear_all()
                self.input.editing = None
                if not await self.perform(*command) and not self.composer.text:
                    self.composer.load_whole(text)
                return
            editing = self.input.editing
            if editing is not None and self.dialogue.conversation.has(editing):
                await self.dialogue.edit(editing, text)
                self.composer.clear_all()
                self.input.editing = None
            elif await self.dialogue.send(text):
                self.composer.clear_all()
            else:
                self.flash("One message waits already; this one stays here.")
        except SpecLocalError as error:
            self.transcript.complain(error)
        self.composer.set_history(self.dialogue.store.prompts())
        self.transcript.follow()
        self.refresh_state()

    def on_input_box_changed(self) -> None:
        self.refresh_state()

    def on_composer_steered(self, event: Composer.Steered) -> None:
        if event.key == "pageup":
            self.transcript.release_anchor()
            self.transcript.scroll_page_up(animate=False)
        elif event.key == "pagedown":
            self.transcript.scroll_page_down(animate=False)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def on_offer_chosen(self, message: Offer.Chosen) -> None:
        await self.done(message.act())
        self.composer.focus()

    async def on_from_worker(self, message: FromWorker) -> None:
        if self.is_running:
            try:
                await self.dialogue.handle(message.event)
            except SpecLocalError as error:  # the store, most likely: the chat goes on without it
                self.transcript.complain(error)

    def on_resize(self, event: textual_events.Resize) -> None:
        self._arrange(event.size.width, event.size.height)

    def _arrange(self, width: int, height: int) -> None:
        """What fits at this size."""
        wanted = width >= PANEL_WIDTH_FROM if self._panel_wanted is None else self._panel_wanted
        self.panel.display = wanted and width >= 60
        self._draw_panel()
        base = self.screen_stack[0]
        base.set_class(height < 12, "-low")
        base.set_class(height < 6, "-lowest")
        base.set_class(width < 40, "-narrow")
        self.refresh_state()

    def _measure_memory(self) -> None:
        if self.panel.display:
            import psutil

            before, self.panel.memory = self.panel.memory, psutil.Process().memory_info().rss
            if self.dialogue.current is None and abs(self.panel.memory - (before or 0)) > 5e6:
                self.panel.changed()

    def _on_signals(self) -> None:
        """Leave in order when asked to from outside, so that the terminal is as it was."""
        loop = asyncio.get_running_loop()
        for name in ("SIGTERM", "SIGHUP", "SIGINT"):
            number = getattr(signal, name, None)
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; not the main thread
                if number is not None:
                    loop.add_signal_handler(number, self.exit, 128 + int(number))

    async def on_unmount(self) -> None:
        """Stop and join the engine's thread; what it has of an answer is stored."""
        self.worker.close()
        self.dialogue.store.close()
