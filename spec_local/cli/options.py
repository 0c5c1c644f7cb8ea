"""Every setting is declared here once: its flag, environment variable, configuration key and help.

A value comes from, in this order: the flag, `SPEC_LOCAL_<NAME>`, the configuration file, the default of the model the
setting belongs to (`EngineOptions` or `Sampling`). Set to nothing (`SPEC_LOCAL_N_CTX=`) is not set.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spec_local.environment import variable
from spec_local.errors import UsageError
from spec_local.paths import config_file
from spec_local.text_files import read_text_file
from spec_local.words import unescaped

Group = Literal["models", "fetching", "device", "speculation", "sampling", "reply", "structure", "comparison"]
ENVIRONMENT_PREFIX = "SPEC_LOCAL_"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting."""

    name: str
    """Field name, configuration key and, in capitals, the environment variable's end."""
    group: Group
    parse: Callable[[str], Any]
    help: str
    flags: tuple[str, ...] = ()
    """Empty: `--name` with dashes."""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    many: bool = False
    """May be repeated; values add up."""
    default: str = ""
    """The default in words, for the help; the value itself belongs to the model."""

    @property
    def all_flags(self) -> tuple[str, ...]:
        return self.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it came from."""

    value: Any
    origin: str
    """flag, environment (SPEC_LOCAL_X), or config (path)."""


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    return int(token), float(bias)


def _text(text: str) -> str:
    return text


def _argument(text: str) -> tuple[str, Any]:
    """NAME=JSON; a value that is no JSON is a text."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip().isidentifier():
        raise ValueError(text)
    try:
        return name.strip(), json.loads(value)
    except (ValueError, RecursionError):
        return name.strip(), value


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)


def _length(text: str) -> int | str:
    return "auto" if text == "auto" else int(text)


def _layers(text: str) -> int | str:
    return text if text in ("auto", "all") else int(text)


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")

OPTIONS: tuple[Option, ...] = (
    Option("target", "models", str, "target model", ("-m", "--target"), "NAME|PATH", default="the pair's target"),
    Option(
        "draft", "models", str, "draft: a model, auto, text or none", ("-d", "--draft"), "NAME|PATH", default="auto"
    ),
    Option("pair", "models", str, "catalogue pair of target and draft", metavar="NAME"),
    Option("allow_plain", "models", _flag, "go on without a draft model that cannot be used", default="off"),
    Option("chat_template", "models", str, "Jinja file used instead of the model's template", metavar="PATH"),
    Option("pull", "fetching", str, "fetch missing models", choices=("ask", "always", "never"), default="ask"),
    Option("n_ctx", "device", _length, "tokens of prompt and answer together: auto or N", metavar="N", default="4096"),
    Option("draft_n_ctx", "device", int, "the same for the draft", metavar="N", default="as the target"),
    Option("gpu_layers", "device", _layers, "layers to offload: N, auto or all", metavar="N", default="all"),
    Option("draft_gpu_layers", "device", _layers, "the same for the draft", metavar="N", default="all"),
    Option("device", "device", _names, "offload devices, comma-separated; none for the CPU", metavar="NAMES"),
    Option(
        "draft_device",
        "device",
        _names,
        "the same for the draft",
        metavar="NAMES",
        default="every GPU here, never a worker",
    ),
    Option("rpc", "device", str, "a `spec-local worker` that lends its devices", metavar="HOST:PORT", many=True),
    Option("main_gpu", "device", int, "device that holds all with --split-mode none", metavar="N", default="0"),
    Option("split_mode", "device", str, "how devices share a model", choices=("none", "layer", "row"), default="layer"),
    Option("tensor_split", "device", _shares, "share of the model per device, as 3,1", metavar="SHARES"),
    Option("threads", "device", int, "CPU threads", metavar="N", default="0, physical cores"),
    Option("batch_size", "device", int, "tokens per prefill pass", metavar="N", default="512"),
    Option("kernels", "device", str, "own kernels on the processor", choices=("auto", "off"), default="off"),
    Option("flash_attn", "device", str, "flash attention", choices=("auto", "on", "off"), default="auto"),
    Option("mmap", "device", str, "map model files or read them", choices=("auto", "on", "off"), default="auto"),
    Option("cache_type_k", "device", str, "key cache type", choices=_CACHE_TYPES, default="f16"),
    Option("cache_type_v", "device", str, "value cache type", choices=_CACHE_TYPES, default="f16"),
    Option("draft_cache_type_k", "device", str, "the draft's key cache type", choices=_CACHE_TYPES, default="f16"),
    Option("draft_cache_type_v", "device", str, "the draft's value cache type", choices=_CACHE_TYPES, default="f16"),
    Option(
        "acceptance",
        "speculation",
        str,
        "acceptance rule; coupled gives the same text with any draft",
        choices=("coupled", "rejection", "block"),
        default="coupled",
    ),
    Option("draft_length", "speculation", _length, "tokens per draft: auto or N", metavar="N", default="auto"),
    Option("draft_max", "speculation", int, "longest draft", metavar="N", default="16"),
    Option(
        "pad_width", "comparison", int, "all target passes over N tokens, one sequence", metavar="N", default="0, off"
    ),
    Option("temperature", "sampling", float, "0 takes the likeliest token", metavar="T", default="0.7"),
    Option("top_k", "sampling", int, "keep the k likeliest tokens; 0 all", metavar="K", default="40"),
    Option("top_p", "sampling", float, "keep the likeliest tokens up to this probability", metavar="P", default="0.95"),
    Option("min_p", "sampling", float, "keep tokens this likely relative to the best", metavar="P", default="0.05"),
    Option("typical_p", "sampling", float, "locally typical sampling; 1 is off", metavar="P", default="1.0"),
    Option("repeat_penalty", "sampling", float, "1 is off", metavar="X", default="1.0"),
    Option("presence_penalty", "sampling", float, "0 is off", metavar="X", default="0.0"),
    Option("frequency_penalty", "sampling", float, "0 is off", metavar="X", default="0.0"),
    Option("penalty_last_n", "sampling", int, "tokens the penalties look back; -1 all", metavar="N", default="64"),
    Option("logit_bias", "sampling", _bias, "add to a token's logit; -100 bans it", metavar="TOKEN=BIAS", many=True),
    Option("seed", "sampling", int, "same seed and prompt, same text", metavar="N", default="drawn and reported"),
    Option("max_tokens", "sampling", int, "longest answer", metavar="N", default="what the context holds"),
    Option("min_tokens", "sampling", int, "no end before this many tokens", metavar="N", default="0"),
    Option("logprobs", "sampling", int, "log-probabilities of each token and its N likeliest rivals", metavar="N"),
    Option("stop", "sampling", _text, r"text that ends the answer; \n \t \\ \u2028 as such", metavar="TEXT", many=True),
    Option("thinking", "reply", str, "think before the answer", choices=("auto", "on", "off"), default="auto"),
    Option("thinking_budget", "reply", int, "most tokens of thinking", metavar="N", default="no limit"),
    Option(
        "template_args",
        "reply",
        _argument,
        "a variable of the chat template, as reasoning_effort=high",
        ("--template-arg",),
        "NAME=JSON",
        many=True,
    ),
    Option("json_schema", "structure", str, "the answer is JSON that follows this schema", metavar="FILE"),
    Option("grammar", "structure", str, "the answer follows this GBNF grammar", metavar="FILE"),
)

_TITLES: dict[Group, str] = {
    "models": "models",
    "fetching": "fetching",
    "device": "context and devices",
    "speculation": "speculation",
    "sampling": "sampling (default: what the model recommends, else as shown)",
    "reply": "thinking and templates",
    "structure": "structured answers",
    "comparison": "comparison",
}


def add_options(parser: argparse.ArgumentParser, groups: Iterable[Group]) -> None:
    """Add the options of `groups` to a parser. Values stay text here; `resolve` reads them all in one way."""
    for group in groups:
        section = parser.add_argument_group(_TITLES[group])
        for option in OPTIONS:
            if option.group != group:
                continue
            text = option.help + (" (repeatable)" if option.many else "")
            text += f" (default: {option.default})" if option.default else ""
            if option.parse is _flag:
                section.add_argument(*option.all_flags, dest=option.name, action="store_const", const="on", help=text)
                continue
            section.add_argument(
                *option.all_flags,
                dest=option.name,
                action="append" if option.many else "store",
                metavar=option.metavar or (f"{{{','.join(option.choices)}}}" if option.choices else None),
                help=text.replace("%", "%%"),
            )


def resolve(
    given: Mapping[str, Any], environment: Mapping[str, str] | None = None, config: Path | None = None
) -> dict[str, Setting]:
    """Every setting that was set anywhere, with its origin; what is missing has its model's default.

    Args:
        given: Parsed flags by option name (None: not given).
        environment: Environment variables.
        config: Configuration file.

    Raises:
        UsageError: A value cannot be read, or the configuration names an unknown setting.
    """
    environment = os.environ if environment is None else environment
    config = config_file() if config is None else config
    saved = read_config(config)
    found: dict[str, Setting] = {}
    for option in OPTIONS:
        raw: Any = given.get(option.name)
        origin, label = "flag", option.all_flags[-1]
        if raw is None and (raw := variable(option.variable, environment)) is not None:
            origin, label = f"environment ({option.variable})", option.variable
            raw = _lines(raw) if option.many else raw
        if raw is not None and option.parse is _text:  # TOML has escapes of its own
            raw = [unescaped(text) for text in raw]
        if raw is None and saved.get(option.name, "") != "":
            raw, origin, label = saved[option.name], f"config ({config})", f"{option.name} in {config}"
        if raw is not None:
            found[option.name] = Setting(_read(option, raw, label), origin)
    return found


def _lines(text: str) -> list[str]:
    """Several values in one environment variable: one a line. With an empty line in it, it is one value as it stands:
    a text that begins, ends or consists of line ends."""
    lines = text.split("\n")
    return lines if all(lines) else [text]


def read_config(path: Path) -> dict[str, Any]:
    """The configuration file as a flat table; empty where there is none.

    Raises:
        UsageError: It is not valid TOML, or names an unknown setting.
    """
    try:
        table = tomllib.loads(read_text_file(path, f"The configuration {path}")) if path.exists() else {}
    except (OSError, ValueError, RecursionError) as error:  # numbers of too many digits are a bare ValueError
        raise UsageError(f"The configuration {path} cannot be read: {error}.", "Mend or remove the file.") from error
    known = [option.name for option in OPTIONS]
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {near[0]}?" if near else "`spec-local config show` lists all settings."
            raise UsageError(f"{path} sets {name!r}, which is no setting.", hint)
    return table


def _read(option: Option, raw: Any, label: str) -> Any:
    """One raw value (text, or a TOML value) as the option's type."""
    if option.many:
        items = raw if isinstance(raw, list) else [raw]
        values = [_read_one(option, item, label) for item in items]
        return dict(values) if option.parse in (_bias, _argument) else tuple(values)
    return _read_one(option, raw, label)


def _read_one(option: Option, raw: Any, label: str) -> Any:
    if isinstance(raw, list):
        raw = ",".join(str(part) for part in raw)
    try:
        value = option.parse(str(raw))
    except ValueError:
        wanted = {int: "a whole number", float: "a number", _bias: "TOKEN=BIAS, two numbers", _flag: "on or off"}
        wanted |= {_argument: "NAME=JSON", _length: "auto or a whole number", _layers: "auto, all or a whole number"}
        raise UsageError(
            f"{label} cannot be {str(raw)!r}: it takes {wanted.get(option.parse, option.metavar)}."
        ) from None
    if option.choices and value not in option.choices:
        raise UsageError(f"{label} cannot be {value!r}.", f"Choose one of {', '.join(option.choices)}.")
    return value


def values_of(settings: Mapping[str, Setting], fields: Iterable[str]) -> dict[str, Any]:
    """The set values whose names are among `fields`."""
    names = set(fields)
    return {name: setting.value for name, setting in settings.items() if name in names}
