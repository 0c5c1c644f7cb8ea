"""`import spec_local` and `spec-local --help` are cheap: they load neither llama.cpp nor Textual."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import measure_startup
import pytest

from spec_local.cli.main import COMMANDS

LIMIT_S = 1.0
"""The product's limit is 0.3 s on a quiet machine (scripts/measure_startup.py); a test machine may be busy."""


def test_import_loads_nothing_heavy():
    assert measure_startup.loaded("import spec_local") == []


def test_the_probe_sees_what_is_loaded():
    assert measure_startup.loaded("import spec_local, numpy") == ["numpy"]


def test_help_loads_neither_llama_nor_textual():
    assert {"llama_cpp", "textual"} & set(measure_startup.loaded(measure_startup.HELP)) == set()


def test_help_of_each_command_loads_neither_llama_nor_textual():
    for command in COMMANDS:
        code = measure_startup.HELP.replace("['--help']", f"[{command!r}, '--help']")
        assert {"llama_cpp", "textual"} & set(measure_startup.loaded(code)) == set(), command


def test_a_command_imports_no_other_command():
    for command in COMMANDS:
        code = (
            "import json, sys\nfrom spec_local.cli.main import build_parser\n"
            f"build_parser([{command!r}])\n"
            "print(json.dumps([m for m in sys.modules if m.startswith('spec_local.cli.')]), file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        loaded = {name.removeprefix("spec_local.cli.").split(".")[0] for name in json.loads(done.stderr)}
        assert loaded & set(COMMANDS) == {command}


def test_help_is_quick():
    program = Path(sys.executable).with_name("spec-local")
    seconds = measure_startup.best_of(3, [str(program), "--help"])
    assert seconds < LIMIT_S, f"spec-local --help took {seconds:.3f} s at best"


@pytest.mark.parametrize(
    ("figures", "sentences"),
    [
        ({}, []),
        ({"help_s": 0.4}, ["`spec-local --help` takes 0.4 s."]),
        ({"help_s": 0.4, "python_s": 0.15}, []),  # a slow machine
        ({"help_loads": ["numpy", "rich"]}, ["`spec-local --help` loads numpy, rich."]),
        ({"import_loads": ["pydantic"]}, ["`import spec_local` loads pydantic."]),
    ],
)
def test_a_slow_or_heavy_start_ends_the_measurement_with_1(figures, sentences, monkeypatch, capsys):
    found = {"help_s": 0.1, "python_s": 0.02, "import_loads": [], "help_loads": []} | figures
    monkeypatch.setattr(measure_startup, "measure", lambda _runs: found)
    monkeypatch.setattr(sys, "argv", ["measure_startup"])
    assert measure_startup.main() == bool(sentences)
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1]) == found
    assert err.splitlines() == sentences


def test_help_goes_to_standard_output_and_names_the_commands():
    program = Path(sys.executable).with_name("spec-local")
    done = subprocess.run([str(program), "--help"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "generate" in done.stdout
