"""How text files are read, whoever reads them: UTF-8, a byte-order mark dropped, trouble as one sentence."""

from __future__ import annotations

from pathlib import Path

from spec_local.errors import UsageError

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def read_text_file(path: str | Path, name: str | None = None) -> str:
    """The text of a file.

    Args:
        path: Where; `~` is the home folder.
        name: What to call it in messages; None: the path.

    Raises:
        UsageError: It cannot be read, or is not UTF-8 (the message says at which byte).
    """
    try:
        data = Path(path).expanduser().read_bytes()
    except (OSError, RuntimeError) as error:  # RuntimeError: ~somebody who is not a user here
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(f"{name or path} cannot be read: {reason}.") from error
    return decode_text(data, name or str(path))


def decode_text(data: bytes, where: str) -> str:
    """UTF-8 text, a byte-order mark dropped; raises `UsageError` naming the first bad byte."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith(_UTF_16):
            raise UsageError(f"{where} is UTF-16.", "Save it as UTF-8.") from None
        raise UsageError(
            f"{where} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}.", "Convert it to UTF-8."
        ) from None
