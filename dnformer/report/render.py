"""A page as one HTML file that needs nothing else: style, script, plotly.js and numbers inside.

All text is escaped by Jinja. A content security policy lets only the page's own scripts run, told
by their hashes, and lets nothing be loaded from anywhere.
"""

import base64
import hashlib
import json
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dnformer.report.page import Page

_PACKAGE = "dnformer.report"


def render(page: Page, *, own: str | None = None) -> str:
    """The page's HTML.

    Args:
        page: what it shows.
        own: a package with further kinds of blocks: its `templates/` has their HTML, and `own.css`
            and `own.js` for them; None: only those of reports.
    """
    packages = [_PACKAGE] if own is None else [_PACKAGE, own]
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawings = page.drawings()
    scripts = []
    if drawings:
        # imported here: it takes a third of a second
        from plotly.offline import get_plotlyjs

        scripts = [get_plotlyjs(), _file(_PACKAGE, "page.js")]
    style = _file(_PACKAGE, "page.css")
    if own is not None:
        scripts.append(_file(own, "own.js"))
        style += _file(own, "own.css")
    return environment.get_template("page.html").render(
        page=page,
        sections=[section for section in page.sections if section.blocks],
        style=Markup(style),
        scripts=[Markup(_inline(script)) for script in scripts],
        hashes=[_hash(_inline(script)) for script in scripts],
        numbers=Markup(_json(page.numbers())),
        figures=Markup(_json(drawings)),
        version=version("dnformer"),
    )


def _file(package: str, name: str) -> str:
    return files(package).joinpath("templates", name).read_text(encoding="utf-8")


def _inline(script: str) -> str:
    """A script that no browser takes for its own end."""
    safe = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return f"\n{safe}\n"


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(values: dict[str, Any]) -> str:
    """JSON that can stand in a script element: `<` is written by its number."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
