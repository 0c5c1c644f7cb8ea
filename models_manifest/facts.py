"""Typed look-ups in the metadata of a model file, which nobody vouches for."""

from __future__ import annotations

from spec_local.errors import ModelError
from spec_local.models_manifest.gguf_format import Array, Container

MAX_LAYERS = 4096


class Facts:
    """One file's metadata: a value that cannot be is a `ModelError`; one not there is None, empty or a default."""

    def __init__(self, container: Container) -> None:
        self.path, self.metadata = container.path, container.metadata

    def wrong(self, key: str, value: object) -> ModelError:
        """The error for a value that cannot be."""
        shown = f"{value!r:.60}" if not isinstance(value, Array) else f"an array of {value.count}"
        return ModelError(f"{self.path} gives {key} the impossible value {shown}; it is not a usable model file.")

    def text(self, key: str) -> str:
        """A string; empty where it is not there."""
        value = self.metadata.get(key, "")
        if not isinstance(value, str):
            raise self.wrong(key, value)
        return value

    def number(self, key: str, most: int = 1 << 40) -> int | None:
        """A count; the largest one where the file gives one for each layer."""
        value = self.metadata.get(key)
        if isinstance(value, Array) and not value.is_text and 0 < value.count <= MAX_LAYERS:
            value = max(value.numbers())
        if value is None:
            return None
        if type(value) is not int or not 0 <= value <= most:
            raise self.wrong(key, value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value)
        return value

    def token(self, key: str, n_vocab: int) -> int | None:
        """A token id; None where it is not stated or, as llama.cpp has it, lies outside the vocabulary."""
        value = self.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if value is not None and type(value) is not int:
            raise self.wrong(f"tokenizer.ggml.{key}_token_id", value)
        return value if value is not None and 0 <= value < n_vocab else None

    def per_layer(self, key: str, n_layer: int) -> tuple[int, ...]:
        """A count for each layer, whether the file gives one or one each: [n_layer]; empty where it is silent."""
        value = self.metadata.get(key)
        if isinstance(value, Array):
            if value.is_text or value.count < n_layer or value.count > MAX_LAYERS:
                raise self.wrong(key, value)
            counts = value.numbers()[:n_layer]
            if not all(isinstance(count, int) and 0 <= count < 1 << 32 for count in counts):
                raise self.wrong(key, value)
            return tuple(int(count) for count in counts)
        if value is None:
            return ()
        if type(value) is not int or not 0 <= value < 1 << 32:
            raise self.wrong(key, value)
        return (value,) * n_layer

    def array(self, key: str, text: bool) -> Array | None:
        """An array of strings, or of numbers."""
        value = self.metadata.get(key)
        if value is not None and (not isinstance(value, Array) or value.is_text != text):
            raise self.wrong(key, value)
        return value
