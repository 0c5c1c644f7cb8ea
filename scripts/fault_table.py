"""Writes docs/faults.md: every fault at every stage, what comes of it, and the test that shows it.

python scripts/fault_table.py            # write the page
python scripts/fault_table.py --check    # fail where the page or a named test is out of date
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "faults.md"


class Row(NamedTuple):
    """One line of the matrix."""

    fault: str
    stage: str
    outcome: str
    test: str
    """File below tests/, two colons, function."""


NATIVE, TOY, KINDS = "faults/test_native_faults.py", "speculation/test_faults.py", "speculation/test_memory_kinds.py"
FILES, SAFE = "faults/test_files_in_use.py", "faults/test_terminal_safety.py"
ROWS = [
    Row("a pass fails (no room, invalid, out of memory, failed)", "target: prefill, verify, every call",
        "the answer ends with a sentence; what was emitted stands; the next answer is right",
        f"{NATIVE}::test_a_target_pass_that_fails_at_every_call"),
    Row("a pass fails", "draft: every call", "that draft is given up with its reason; the text is the same",
        f"{NATIVE}::test_a_draft_pass_that_fails_at_every_call_costs_the_draft_only"),
    Row("a pass fails and loses its caches", "target: every call, any memory", "read again; the text is the same",
        f"{KINDS}::test_a_pass_that_fails_at_every_call_with_a_running_state"),
    Row("a pass breaks off in its last node", "any memory",
        "the state is taken back whole: from what was saved before it, or to nothing, never from a snapshot",
        "llama/test_memory_kinds_of_files.py::test_a_pass_that_broke_off_is_taken_back_whole"),
    Row("a trim is refused", "target, draft",
        "speculation (or that draft) ends with its reason; the text is the same; a running state needs no such trim",
        f"{NATIVE}::test_cuts_that_are_refused"),
    Row("a trim says yes and does nothing", "start", "the probe compares logits: that way of trimming is not used",
        "llama/test_memory_kinds_of_files.py::test_a_memory_that_lies_is_found_out"),
    Row("a trim says yes and does nothing", "target, between rounds", "noticed by the cache's own length; read again",
        f"{TOY}::test_a_target_cache_that_cannot_be_cut_ends_speculation_not_the_text"),
    Row("a cache cannot even be emptied", "target", "the answer ends with an error; nothing wrong is emitted",
        f"{TOY}::test_a_target_cache_that_cannot_even_be_emptied_is_an_error_not_a_wrong_text"),
    Row("a snapshot is older than it claims", "target", "never asked for: only what the last pass wrote is believed",
        "llama/test_memory_kinds_of_files.py::test_a_snapshot_is_not_believed_beyond_what_the_last_pass_wrote"),
    Row("a saved state is not taken back", "target", "speculation ends with its reason; the text is the same",
        f"{NATIVE}::test_saved_states_that_cannot_be_taken_back"),
    Row("NaN or infinite logits", "target", "the answer ends with a sentence before anything is drawn from them",
        f"{NATIVE}::test_numbers_that_are_none"),
    Row("NaN or infinite logits", "draft", "the draft is given up; the text is the same",
        f"{NATIVE}::test_numbers_that_are_none"),
    Row("memory does not suffice", "before loading the draft",
        "exit 3 with the sum and what would fit, or plain decoding with --allow-plain",
        "cases/test_case_files.py::test_an_address_space_that_holds_the_target_only"),
    Row("memory ends", "in a pass",
        "reserved beforehand: with a megabyte free answered, or a sentence; the engine goes on",
        f"{FILES}::test_memory_that_ends_in_a_pass"),
    Row("file cut or damaged", "before loading", "refused with expected and actual size, exit 3",
        "cases/test_case_files.py::test_damaged_files_are_refused_before_anything_is_generated"),
    Row("file cut", "between check and load", "llama.cpp's own check, as a sentence",
        f"{FILES}::test_a_file_that_shrank_since_it_was_looked_at"),
    Row("file vanishes, is replaced or renamed", "while mapped", "goes on: what is mapped stays",
        f"{FILES}::test_a_file_that_goes_away_while_it_is_mapped"),
    Row("file cut in place", "while mapped",
        "the system kills the program (SIGBUS); what was finished is on disk. With --mmap off nothing happens",
        f"{FILES}::test_a_file_that_is_cut_while_it_is_mapped_costs_what_was_not_yet_written"),
    Row("disk full", "an answer's output", "a sentence that names the file",
        f"{FILES}::test_an_answer_on_a_full_disk"),
    Row("disk full", "a batch's output", "a sentence; what is written is whole lines, and resumes",
        "batch/test_batch_output.py::test_a_disk_that_is_full_leaves_whole_lines"),
    Row("disk full", "what is measured and kept", "measured again at the next start",
        f"{FILES}::test_what_is_measured_is_not_needed_on_a_full_disk"),
    Row("disk full", "download", "a sentence; the part is kept and goes on later",
        "models/test_http_pull.py::test_a_disk_that_fills_up_keeps_what_came"),
    Row("the clock jumps", "any", "figures may be odd; decisions and texts are not",
        f"{NATIVE}::test_clocks_that_jump_change_no_text"),
    Row("cancel", "load", "exit 130, in the chat a sentence; nothing stays open",
        f"{NATIVE}::test_a_cancel_while_loading_leaves_nothing_open"),
    Row("cancel", "prefill, draft, verify: before and at the end of every pass",
        "the answer ends as cancelled; its text stays; the caches are right; nothing is given up",
        f"{NATIVE}::test_a_cancel_at_every_pass"),
    Row("cancel", "between making a stream and starting it", "not lost",
        "session/test_engine.py::test_a_cancel_before_the_stream_starts_is_not_lost"),
    Row("interrupt between a pass and its booking", "target, draft", "what is unknown is trimmed or read again",
        f"{TOY}::test_an_interrupt_between_a_pass_and_its_booking"),
    Row("a crash in the first decode", "start", "asked in a child process; a sentence with the work-around",
        "doctor/test_probe.py::test_a_crash_everywhere_is_a_sentence"),
    Row("a template loops or grows without end", "prompt", "a sentence within two seconds of processor time",
        "session/test_template_sandbox.py::test_every_template_ends_in_bounded_time_and_space"),
    Row("control characters", "answer, names, errors, log", "left out, or shown as pictures in the chat",
        f"{SAFE}::test_what_a_model_file_says_of_itself"),
]  # fmt: skip

HEAD = """\
# Faults

What can go wrong, where, what comes of it, and which test shows it. After every one of them the caches are consistent:
what they hold is the beginning of the text, and the next row is the one an empty cache would give for the same tokens.
`scripts/soak.py` injects the native ones at random, with the design's invariants checked after every step. This page is
written by `scripts/fault_table.py`.

| fault | stage | outcome | test |
| --- | --- | --- | --- |
"""

TAIL = """
## A model file that is cut while it is mapped

llama.cpp maps a model file wherever that takes less memory than reading it. A mapped file that somebody else shortens
in place has pages without anything behind them, and the system ends whoever reads one (SIGBUS on Linux and macOS);
native code cannot be brought back from that, and no handler in Python would run. What is done instead:

* spec-local itself never changes a model file in place: what is downloaded or made gets its name when it is whole.
* Sizes are compared with what the header asks for before anything is loaded, and by llama.cpp once more as it loads.
* Deleting, renaming and replacing (as downloads do) leave the mapped file as it is: nothing happens.
* Whoever keeps models on a share that others write to can read them instead: `--mmap off` (also in the configuration).
* Finished batch records and flushed parts of a chat's answer are on disk: `--resume` and the chat's history go on.

## Rules that hold at every entry point

* **A line of a batch does nothing to its neighbours.** Chance is drawn from the seed and the line's own prompt, so an
  answer is the same alone, in any order and beside anybody. What a line asks for and cannot have (`no_token`,
  `invalid_grammar`, `context_full`, ...) fails that line; only what llama.cpp itself fails at counts towards giving
  the backend up. A grammar that has come to its end ends the answer, whatever `min_tokens` says.
* **Nothing is dropped without a word.** A field that would change the answer elsewhere and is not used here is named
  once in a run (`batch/foreign.py`). A table without the column that is wanted is refused before a model is loaded.
  An answer that ended inside its schema or grammar says so (`"structure": "cut"`, the summary, a line on standard
  error). A model's own system message that cannot be left out is named.
* **Standard input** is the prompt where neither `-p` nor `-f` is given. Beside them a pipe, a socket or a file is
  read to its end and added behind the prompt, which a line says. A terminal, `/dev/null`, and a file of which another
  program has read a part are left alone; `--no-stdin` leaves everything alone, as in a loop that reads its list from
  a pipe. What is waited for longer than a second is named.
* **Text files** are UTF-8, with or without a byte-order mark; anything else is a sentence with the offset
  (`text_files.py`).
* **Set to nothing is not set**, for every variable and setting (`environment.py`).
* **A grammar means what llama.cpp makes of it**, or is refused with line and column (`session/gbnf.py`).
* **A server that says when to come back is asked then**, and an address that runs out is looked up afresh once at a
  place.
"""


def page() -> str:
    """The whole page."""
    rows = (f"| {r.fault} | {r.stage} | {r.outcome} | `{r.test}` |" for r in ROWS)
    return HEAD + "\n".join(rows) + "\n" + TAIL


def missing() -> list[str]:
    """Tests that the table names and that do not exist."""
    absent = []
    for row in ROWS:
        file, _, name = row.test.partition("::")
        path = ROOT / "tests" / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.parse("")
        if name not in {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }:
            absent.append(row.test)
    return sorted(set(absent))


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if absent := missing():
        print("No such test: " + ", ".join(absent), file=sys.stderr)
        return 1
    if not arguments.check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    return 0 if PAGE.read_text(encoding="utf-8") == page() else 1


if __name__ == "__main__":
    raise SystemExit(main())
