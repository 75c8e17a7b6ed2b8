"""Formulas as MathML, made while the site is built: browsers draw it without a script or a font
from elsewhere.
"""

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\s*\\[(\[](?P<tex>.*?)\\[)\]]\s*</(?P=tag)>',
    re.DOTALL,
)


def render_formulas(page: str) -> str:
    """Replace what `pymdownx.arithmatex` marks in a page."""
    return _FORMULA.sub(_mathml, page)


def _mathml(found: re.Match[str]) -> str:
    tex = html.unescape(found["tex"]).strip()
    mathml = convert(tex, display="inline" if found["tag"] == "span" else "block")
    if "\\" in re.sub(r"<[^>]*>", "", mathml):
        raise ValueError(
            f"a command in {tex!r} is unknown to latex2mathml; write the formula in another way."
        )
    label = html.escape(tex, quote=True)
    mathml = mathml.replace("<math ", f'<math aria-label="{label}" ', 1)
    return mathml if found["tag"] == "span" else f'<div class="formula">{mathml}</div>'
