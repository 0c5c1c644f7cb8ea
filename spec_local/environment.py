"""Environment variables: one rule for what is set."""

from __future__ import annotations

import os
from collections.abc import Mapping


def variable(name: str, environment: Mapping[str, str] | None = None) -> str | None:
    """The value of an environment variable; None where it is not set, or set to nothing.

    `NAME= command` and an empty line in a service's file are how people unset a variable, so an empty value is never
    a value.
    """
    return (os.environ if environment is None else environment).get(name) or None
