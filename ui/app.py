"""The chat application: the screen around a `Dialogue`, and the keys that reach it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events as textual_events
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.message import Message
from textual.screen import Screen

from spec_local.cli.first_frame import LOW
from spec_local.errors import SpecLocalError
from spec_local.session.store_records import StoredMessage
from spec_local.ui import actions_model
from spec_local.ui.clipboard import put_on_clipboard
from spec_local.ui.commands import BY_NAME, COMMANDS, Command, parse
from spec_local.ui.composer import Composer
from spec_local.ui.dialogue import Dialogue
from spec_local.ui.engine_thread import EngineThread, Loader, Puller, load_engine, pull_model
from spec_local.ui.events import EngineEvent
from spec_local.ui.figures import TurnFigures
from spec_local.ui.gauges import Gauges
from spec_local.ui.input_box import InputBox
from spec_local.ui.keys import MESSAGE_KEYS, ON_MESSAGE, bindings
from spec_local.ui.leaving import Leaving
from spec_local.ui.panes import Column, Row
from spec_local.ui.preferences import load_theme, save_theme
from spec_local.ui.speculation_panel import SpeculationPanel
from spec_local.ui.status import Situation, StatusLine, TitleLine
from spec_local.ui.transcript import ChoiceButton, EmptyState, Legend, Offer, Transcript
from spec_local.ui.turn_view import TurnView

if TYPE_CHECKING:
    from spec_local.sampling.params import Sampling
    from spec_local.session.options import EngineOptions
    from spec_local.session.reply_options import ReplyOptions
    from spec_local.session.store import Store

Prepare = Callable[[], "tuple[EngineOptions, Sampling, ReplyOptions]"]


class FromEngine(Message):
    """An event of the engine's thread."""

    def __init__(self, event: EngineEvent) -> None:
        super().__init__()
        self.event = event


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
    BINDINGS: ClassVar[list[BindingType]] = bindings()
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
        self.gauges = Gauges(self.panel, self.status_line)
        self.options: EngineOptions | None = None
        """What was asked to be loaded last; None until that is known."""
        self.failure: SpecLocalError | None = None
        """Why it ended by itself."""
        self._prepare = prepare
        self._resume = resume
        self._warning = warning
        self.engine_thread = EngineThread(lambda event: self.post_message(FromEngine(event)), loader, puller)
        self.dialogue = Dialogue(self, store, self.engine_thread, system)
        self.leaving = Leaving(self, self.engine_thread, self.refresh_state)

    def compose(self) -> ComposeResult:
        yield self.title_line
        with Row(id="body"):
            with Column(id="main"):
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
        self.leaving.on_signals()
        self.refresh_state()
        # The models come after the first paint: a person sees the screen at once.
        self.call_after_refresh(self._begin)

    async def _begin(self) -> None:
        try:
            self.options, self.dialogue.base, self.dialogue.base_reply = await asyncio.to_thread(self._prepare)
        except SpecLocalError as error:
            self.failure = error
            self.exit()
            return
        self.engine_thread.start()
        if self._warning is not None:
            self.transcript.complain(self._warning)
        if self._resume is not None:
            resume = self._resume
            await self.do(lambda: self.dialogue.open(resume))
        if self.options is not None:
            self.dialogue.load(self.options)

    @property
    def chosen(self) -> StoredMessage | None:
        """The message chosen with the keys."""
        view = self.transcript.chosen
        return view.message if view is not None else None

    # -- what the dialogue asks for ----------------------------------------------------------------------------------

    def refresh_state(self) -> None:
        dialogue, offer = self.dialogue, self.transcript.open_offer
        self.title_line.show(dialogue.conversation.title, dialogue.facts, dialogue.models.doing)
        self.status_line.show(
            Situation(
                next_on=dialogue.next_on,
                busy=dialogue.current is not None,
                doing=dialogue.models.doing,
                queued=dialogue.queued is not None,
                editing=self.input.editing is not None,
                chosen=self.chosen.role if self.chosen is not None else "",
                choosing=isinstance(self.focused, ChoiceButton),
                offered=offer is not None,
                below=self.transcript.is_behind,
                leaving=self.leaving.begun,
            )
        )
        self.input.show_waiting(dialogue.queued)
        for empty in self.transcript.query(EmptyState):
            empty.loaded = dialogue.facts.title if dialogue.facts else dialogue.models.doing
        kernels = dialogue.facts.model.get("kernels") if dialogue.facts else None
        if (self.panel.next_on, self.panel.kernels) != (dialogue.next_on, kernels):
            self.panel.next_on, self.panel.kernels = dialogue.next_on, kernels
            self.panel.changed()

    def show_figures(self, figures: TurnFigures | None) -> None:
        self.gauges.show(figures)

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

    def begin_edit(self, message: StoredMessage) -> None:
        """Put a message into the input to write another version of it."""
        self.input.edit(message)
        self.refresh_state()

    def toggle_provenance(self) -> None:
        """Colour tokens by their origin, or not."""
        shown = not self.transcript.show_provenance
        self.transcript.show_provenance = shown
        self.legend.display = shown

    def write(self, command: Command) -> None:
        """Put a command into the input, for its argument; what stands there already is taken as that."""
        self.composer.focus()
        self.composer.load_whole(f"/{command.name} {self.composer.whole_text}")

    def _perform_soon(self, command: Command) -> None:
        self.run_worker(self.perform(command))

    async def do(self, act: Callable[[], Any]) -> bool:
        """Do something, and await it if that is to be awaited. An error becomes a message in the transcript, and the
        result False."""
        try:
            result = act()
            if isawaitable(result):
                await result
        except SpecLocalError as error:
            self.transcript.complain(error)
            return False
        return True

    async def perform(self, command: Command, argument: str = "") -> bool:
        """Do a command; False for an error, which is in the transcript then."""
        return await self.do(lambda: command.action(self, argument))

    # -- keys ----------------------------------------------------------------------------------------------------------

    async def action_run_command(self, name: str) -> None:
        """A key of the registry."""
        await self.perform(BY_NAME[name])

    async def action_run_on_message(self, name: str) -> None:
        """A key of the registry for a chosen message."""
        await self.perform(BY_NAME[name])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys without a modifier act on a chosen message only; dialogs have their own keys."""
        if len(self.screen_stack) > 1 and action in ("run_command", "step_back", *ON_MESSAGE):
            return False
        if action in ON_MESSAGE:
            return isinstance(self.focused, TurnView) or (action == "step" and isinstance(self.focused, ChoiceButton))
        return True

    def on_key(self, event: textual_events.Key) -> None:
        """Whoever writes means the input, wherever the keys are."""
        elsewhere = isinstance(self.focused, ChoiceButton) or (
            isinstance(self.focused, TurnView) and event.key not in MESSAGE_KEYS
        )
        if elsewhere and event.is_printable and event.character and len(self.screen_stack) == 1:
            event.prevent_default()
            self.composer.focus()
            self.composer.insert(event.character)

    def on_paste(self, event: textual_events.Paste) -> None:
        """The same for what is pasted."""
        if len(self.screen_stack) == 1 and not self.composer.has_focus:
            self.composer.focus()
            self.composer.post_message(textual_events.Paste(event.text))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette: every command. One that takes an argument goes into the input for it."""
        for command in COMMANDS:
            act = self.write if command.needs_argument else self._perform_soon
            yield SystemCommand(f"/{command.name}", command.summary, partial(act, command))

    def action_step(self, step: int) -> None:
        """Previous or next message, or choice; below the last one is the input."""
        if isinstance(self.focused, ChoiceButton):
            (self.screen.focus_previous if step < 0 else self.screen.focus_next)(ChoiceButton)
        elif not self.transcript.step(step):
            self.composer.focus()
            self.transcript.follow()

    async def action_version(self, step: int) -> None:
        """Another version of the chosen message."""
        from spec_local.ui.actions_chat import switch

        try:
            await switch(self, step)
        except SpecLocalError as error:
            self.flash(error.message)

    def action_unfold(self) -> None:
        """Show all of a long message, and what was thought before an answer; or fold it again."""
        if isinstance(self.focused, TurnView):
            self.focused.unfolded = not self.focused.unfolded
            self.focused.changed()

    def action_step_back(self) -> None:
        """Esc, one thing at a time: back to the input, else take back what waits, else stop what runs, else leave an
        edit."""
        if not self.composer.has_focus:
            self.composer.focus()
        elif not (self.dialogue.take_back() or self.dialogue.stop()):
            self.input.leave_edit()

    async def action_interrupt(self) -> None:
        """Ctrl+C: copy a selection, else stop what runs, else leave at the second time."""
        selected = self.screen.get_selected_text() or (self.composer.selected_text if self.composer.has_focus else "")
        if selected:
            put_on_clipboard(self, selected, "What was selected")
            self.screen.clear_selection()
            return
        if self.dialogue.stop():
            return
        if self.leaving.is_meant():
            self.leaving.leave()
        else:
            self.flash("Ctrl+C again leaves.")

    async def action_quit(self) -> None:
        """Ctrl+Q."""
        self.leaving.leave()

    # -- the input -----------------------------------------------------------------------------------------------------

    async def on_composer_submitted(self, event: Composer.Submitted) -> None:
        text = event.text
        if not text.strip():
            return
        try:
            command = parse(text)
            if command is not None:
                self.input.sent()
                if not await self.perform(*command) and not self.composer.text:
                    self.composer.load_whole(text)
                return
            editing = self.input.editing
            if editing is not None and self.dialogue.conversation.has(editing):
                await self.dialogue.edit(editing, text)
                self.input.sent()
            elif await self.dialogue.send(text):
                self.input.sent()
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
        elif event.key == "tab" and (offer := self.transcript.open_offer) is not None:
            offer.choices[0].focus()

    def on_descendant_focus(self, event: textual_events.DescendantFocus) -> None:
        """The panel shows the figures of the chosen answer; else those of the answer under way, or of the last one."""
        if isinstance(event.widget, TurnView) and event.widget.message.role == "assistant":
            self.show_figures(event.widget.figures)
        elif event.widget is self.composer:
            self.dialogue.scene.show_last_figures()
        self.refresh_state()

    # -- life ----------------------------------------------------------------------------------------------------------

    async def on_offer_chosen(self, message: Offer.Chosen) -> None:
        self.composer.focus()
        await self.do(message.act)

    async def on_from_engine(self, message: FromEngine) -> None:
        if self.is_running:
            try:
                await self.dialogue.handle(message.event)
            except SpecLocalError as error:  # the store, most likely: the chat goes on without it
                self.transcript.complain(error)

    def on_transcript_scrolled(self) -> None:
        self.refresh_state()

    def on_resize(self, event: textual_events.Resize) -> None:
        self._arrange(event.size.width, event.size.height)

    def toggle_panel(self) -> None:
        """Show or hide the panel."""
        self.gauges.toggle(self.size.width)

    def _arrange(self, width: int, height: int) -> None:
        """What fits at this size."""
        self.gauges.arrange(width)
        base = self.screen_stack[0]
        base.set_class(height < LOW, "-low")
        base.set_class(height < 6, "-lowest")
        base.set_class(width < 40, "-narrow")
        base.set_class(width < 80, "-slim")
        self.refresh_state()

    def _measure_memory(self) -> None:
        self.gauges.measure_memory(idle=self.dialogue.current is None)

    async def on_unmount(self) -> None:
        """Stop and join the engine's thread; what it has of an answer is stored."""
        self.leaving.close()
        self.dialogue.store.close()
