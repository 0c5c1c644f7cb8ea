"""`ReplyOptions`: how a reply is thought out, which tools it may call, and what its template is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from spec_local.errors import UsageError

Effort = Literal["auto", "on", "off"]


class ReplyOptions(BaseModel):
    """What a request says about the parts of its reply. Frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    thinking: Effort = "auto"
    """Whether the model thinks before it answers; auto is what its template does by itself."""
    thinking_budget: int | None = Field(default=None, ge=0)
    """Most tokens of thinking; then the block is closed and the answer begins."""
    template_args: dict[str, Any] = Field(default_factory=dict)
    """Variables of the chat template, such as `reasoning_effort`."""
    tools: tuple[dict[str, Any], ...] = ()
    """Functions the model may call, in OpenAI's form."""
    tool_choice: str | dict[str, Any] = "auto"
    """auto, none, required, or the function that must be called: its name, or OpenAI's object that names it."""

    @field_validator("template_args")
    @classmethod
    def _names_are_free(cls, given: dict[str, Any]) -> dict[str, Any]:
        for name in given:
            if not name.isidentifier():
                raise ValueError(f"{name!r} is no name of a variable")
            if name in ("messages", "tools", "add_generation_prompt"):
                raise ValueError(f"{name} is given by the conversation")
        return given

    @field_validator("tools", mode="before")
    @classmethod
    def _tools_are_functions(cls, tools: Any) -> Any:
        if tools is None:
            return ()
        if not isinstance(tools, list | tuple):
            raise ValueError("it must be a list of functions")
        return tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools))

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _choice_names_one(cls, choice: Any) -> Any:
        if isinstance(choice, Mapping):
            function = choice.get("function", choice)
            name = function.get("name") if isinstance(function, Mapping) else None
            if not isinstance(name, str):
                raise ValueError("it names no function")
            return name
        return "auto" if choice is None else choice

    @property
    def offered(self) -> tuple[dict[str, Any], ...]:
        """The tools that this reply may call."""
        return () if self.tool_choice == "none" else self.tools

    @property
    def demanded(self) -> tuple[dict[str, Any], ...]:
        """The tools of which one must be called; empty where none must.

        Raises:
            UsageError: `tool_choice` names one that is not there.
        """
        if self.tool_choice in ("auto", "none"):
            return ()
        if not self.tools:
            raise UsageError(f"tool_choice is {self.tool_choice!r}, and there are no tools.")
        if self.tool_choice == "required":
            return self.tools
        chosen = tuple(tool for tool in self.tools if tool["function"]["name"] == self.tool_choice)
        if not chosen:
            names = ", ".join(tool["function"]["name"] for tool in self.tools)
            raise UsageError(f"tool_choice names {self.tool_choice!r}, which is no tool.", f"The tools are {names}.")
        return chosen

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> ReplyOptions:
        """Build from outside data.

        Raises:
            UsageError: A value does not fit; the message names the first one.
        """
        try:
            return cls.model_validate(dict(fields))
        except ValidationError as error:
            first = error.errors()[0]
            said = first["msg"].removeprefix("Value error, ")
            raise UsageError(f"{first['loc'][0]} cannot be used: {said[:1].lower()}{said[1:]}.") from None


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise ValueError(f"{where} is no object")
    if (form := tool.get("type", "function")) != "function":
        raise ValueError(f"{where} is of the type {form!r}; only functions can be called here")
    function = tool.get("function", {name: value for name, value in tool.items() if name != "type"})
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError(f"{where} names no function")
    if not isinstance(function.get("parameters", {}) or {}, Mapping):
        raise ValueError(f"the parameters of {where} are no schema")
    return {"type": "function", "function": dict(function)}
