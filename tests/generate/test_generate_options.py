"""Settings: one declaration, four places a value may come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_local.cli.loading import engine_options, sampling
from spec_local.cli.main import build_parser, main
from spec_local.cli.options import OPTIONS, resolve
from spec_local.environment import variable
from spec_local.errors import UsageError
from spec_local.sampling import Sampling
from spec_local.session.options import EngineOptions
from spec_local.session.reply_options import ReplyOptions

FIELDS = {**EngineOptions.model_fields, **Sampling.model_fields}


def test_flag_wins_over_environment_over_config_over_default(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("temperature = 0.1\ntop_k = 7\nmin_p = 0.2\n")
    environment = {"SPEC_LOCAL_TEMPERATURE": "0.3", "SPEC_LOCAL_TOP_K": "9"}
    found = resolve({"temperature": "0.5"}, environment, config)
    assert (found["temperature"].value, found["temperature"].origin) == (0.5, "flag")
    assert (found["top_k"].value, found["top_k"].origin) == (9, "environment (SPEC_LOCAL_TOP_K)")
    assert (found["min_p"].value, found["min_p"].origin) == (0.2, f"config ({config})")
    assert "top_p" not in found


def test_repeated_and_listed_values(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('stop = ["a", "b"]\ntensor_split = [3, 1]\nlogit_bias = ["5=-100"]\n')
    found = resolve({}, {}, config)
    assert found["stop"].value == ("a", "b")
    assert found["tensor_split"].value == (3.0, 1.0)
    assert found["logit_bias"].value == {5: -100.0}
    assert resolve({"stop": ["x"]}, {}, config)["stop"].value == ("x",)


def test_set_to_nothing_is_not_set_for_every_setting(tmp_path: Path) -> None:
    """`SPEC_LOCAL_N_CTX=` and `n_ctx = ""` leave the value to what comes next."""
    config = tmp_path / "config.toml"
    config.write_text("".join(f'{option.name} = ""\n' for option in OPTIONS))
    assert resolve({}, {option.variable: "" for option in OPTIONS}, config) == {}
    config.write_text("n_ctx = 77\n")
    assert resolve({}, {"SPEC_LOCAL_N_CTX": ""}, config)["n_ctx"].value == 77


def test_other_variables_set_to_nothing_are_not_set_either(monkeypatch: pytest.MonkeyPatch) -> None:
    from spec_local import paths
    from spec_local.models_manifest import found

    names = ("SPEC_LOCAL_HOME", "SPEC_LOCAL_MODELS", "HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    places, files = (paths.models_folder(), paths.config_file()), found.find_files()
    for name in names:
        monkeypatch.setenv(name, "")
    assert ((paths.models_folder(), paths.config_file()), found.find_files()) == (places, files)
    monkeypatch.setenv("SPEC_LOCAL_PULL_UNASKED", "")
    assert variable("SPEC_LOCAL_PULL_UNASKED") is None


def test_stop_texts_may_be_written_with_escapes(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("stop = ['\\n', \"\\n\"]\n")
    typed = [r"\n", r"\tEND", r"a\\nb", r"\u2028", r"\x41", r"\d\q", "\\"]
    assert resolve({"stop": typed}, {}, config)["stop"].value == ("\n", "\tEND", r"a\nb", "\u2028", "A", r"\d\q", "\\")
    assert resolve({}, {}, config)["stop"].value == (r"\n", "\n"), "TOML has escapes of its own"
    for text, wanted in ((r"\n", ("\n",)), ("\n", ("\n",)), ("\nUser:", ("\nUser:",)), ("A\nB", ("A", "B"))):
        assert resolve({}, {"SPEC_LOCAL_STOP": text}, config)["stop"].value == wanted


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_configuration_saved_with_a_mark_is_read(tmp_path: Path, mark: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"{mark}top_k = 7\n", encoding="utf-8")
    assert resolve({}, {}, config)["top_k"].value == 7


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("temprature = 1\n", "'temprature', which is no setting. Did you mean temperature"),
        ("temperature = [\n", "cannot be read"),
        ('top_k = "many"\n', "cannot be 'many': it takes a whole number"),
        ('acceptance = "hope"\n', "cannot be 'hope'. Choose one of coupled"),
    ],
)
def test_a_bad_configuration_is_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, config)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.name in FIELDS and o.default], ids=lambda o: o.name)
def test_defaults_in_words_are_the_models_defaults(option) -> None:
    default = FIELDS[option.name].default
    word = option.default.split(",")[0].split()[0]
    if default is None or default == () or default == {}:
        assert not word.replace(".", "").isdigit(), "the help names a number where there is none"
    elif isinstance(default, bool):
        assert word == ("on" if default else "off")
    elif isinstance(default, (int, float)):
        assert float(word) == float(default)
    else:
        assert word == default


def test_every_option_ends_in_a_model_or_is_known_to_a_command() -> None:
    known = {"pull", "json_schema", "grammar", *ReplyOptions.model_fields}
    assert {option.name for option in OPTIONS} - set(FIELDS) <= known


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["genrate"], "there is no command 'genrate'; did you mean generate?"),
        (["xyzzy"], "there is no command 'xyzzy'\n"),
        (["models", "lst"], "there is no command 'lst'; did you mean list?"),
        (["config", "pth"], "there is no command 'pth'; did you mean path?"),
        (["generate", "--input-format", "xml"], "argument --input-format: invalid choice: 'xml' (choose from "),
        (["generate", "--temprature", "1"], "there is no option '--temprature' here; did you mean --temperature?"),
        (["chat", "--nope"], "there is no option '--nope' here\n  `spec-local chat --help` lists what there is."),
        (["generate", "-p", "a", "b"], "'b' is one word too many: texts with spaces need quotes\n"),
    ],
)
def test_a_word_that_is_not_understood_is_named_for_what_it_is(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f"spec-local: {sentence}" in capsys.readouterr().err


def test_a_value_out_of_range_is_refused_with_where_it_comes_from(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("top_p = 3\nn_ctx = 1\n")
    found = resolve({"temperature": "-1"}, {}, config)
    with pytest.raises(UsageError, match="n_ctx cannot be 1") as error:
        engine_options(found)
    assert f"It comes from the config ({config})" in error.value.hint
    with pytest.raises(UsageError, match="temperature") as error:
        sampling(found)
    assert "It comes from" not in error.value.hint  # the command line is before the person's eyes
    with pytest.raises(UsageError, match="top_p") as error:
        sampling(resolve({}, {}, config))
    assert f"It comes from the config ({config})" in error.value.hint


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    from spec_local.cli.main import COMMANDS

    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            build_parser().parse_args([command, "--help"])
        assert ended.value.code == 0
        assert "examples:" in capsys.readouterr().out, command
