"""Converts matplotlib figures to inline SVG with the page's colours and fonts, and with tooltips.

Figures are drawn with placeholder colours, which become CSS variables, so that one figure fits light and dark mode. A
group whose id begins with `tip:` gets the rest of its id as a tooltip, which browsers show without a script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
VARIABLES = ("ink", "muted", "grid", "bronze", "silver", "silver_tables", "gold", "value", "average", "other", "band")
_STAND_INS = {variable: f"#0102{place:02x}" for place, variable in enumerate(VARIABLES, 1)}
_OF_STAND_IN = {color: f"var(--{variable.replace('_', '-')})" for variable, color in _STAND_INS.items()}
_FONT = re.compile(r"(?:font[\w-]*|font): [^;]*;?\s*")
_USED = re.compile(r"url\(#([^)]+)\)")
_DROPPED = {f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"}
_TIP = "tip:"
# XML's attributes have no line ends.
_LINE = " \u00a6 "


def create_tooltip_id(*lines: str) -> str:
    """Returns an id for an element of a figure. On the page, the element with this id shows the lines as tooltip."""
    return _TIP + _LINE.join(lines)


def get_placeholder_of_css_color(variable: str) -> str:
    """Returns a colour to draw with. On the page it is replaced by the CSS variable with this name."""
    return _STAND_INS.get(variable, _STAND_INS["other"])


def convert_to_svg(figure: Figure, label: str, name: str) -> Markup:
    """Returns a matplotlib figure as an SVG element for the page.

    Args:
        figure: The figure.
        label: Description for readers who cannot see the figure.
        name: A name that is unique on the page, used as a prefix of ids.
    """
    import matplotlib as mpl

    written = BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(written.getvalue())  # noqa: S314 - matplotlib has written it
    _prepare_svg_for_page(root, name)
    root.attrib = {"viewBox": root.get("viewBox", ""), "role": "img", "aria-label": label}
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    text = ET.tostring(root, encoding="unicode")
    for stand_in, variable in _OF_STAND_IN.items():
        text = text.replace(stand_in, variable)
    return Markup(text)  # noqa: S704 - ElementTree has escaped its texts


def _prepare_svg_for_page(root: ET.Element, name: str) -> None:
    """Changes an SVG in place: removes fonts and unused ids, prefixes the other ids with `name`, and adds tooltips."""
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in _DROPPED]:
            parent.remove(child)
    used = set(_find_referenced_ids(root))
    for element in root.iter():
        known = element.attrib.pop("id", "")
        if known in used:
            element.set("id", f"{name}-{known}")
        elif known.startswith(_TIP):
            title = ET.Element(f"{{{_SVG}}}title")
            title.text = known.removeprefix(_TIP).replace(_LINE, "\n")
            element.insert(0, title)
            element.set("class", "tip")
        for key, value in list(element.attrib.items()):
            if key == "style":
                element.set(key, _FONT.sub("", _USED.sub(rf"url(#{name}-\1)", value)).strip())
            elif key == _LINK:
                element.set(key, f"#{name}-{value.removeprefix('#')}")
            elif key == "clip-path":
                element.set(key, _USED.sub(rf"url(#{name}-\1)", value))


def _find_referenced_ids(root: ET.Element) -> Iterator[str]:
    for element in root.iter():
        for key, value in element.attrib.items():
            yield from _USED.findall(value)
            if key == _LINK:
                yield value.removeprefix("#")
