"""Text made fit for a terminal: without secrets, control characters as visible escapes."""

from ditlab.secrets import hide

# Line breaks and tabs are layout. Any other control character moves the cursor, erases lines, sets a window's title or
# reverses what is read; lone surrogates (bytes of a file's name that are no UTF-8) cannot be printed at all.
_CONTROLS = (
    *range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0),
    0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000),
)  # fmt: skip
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CONTROLS}


def shown(text: str) -> str:
    """Hide secrets in a text, and make its control characters visible: an escape byte becomes `\\x1b`."""
    return hide(text).translate(_ESCAPES)


def shown_line(text: str) -> str:
    """Text in one line: line breaks and tabs become `\\n` and `\\t`."""
    return shown(text).replace("\n", "\\n").replace("\t", "\\t")
