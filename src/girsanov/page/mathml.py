"""LaTeX as MathML, which browsers show without any script."""

from girsanov._core.extras import check_extra
from girsanov.page.parts import Html


def equations(lines: list[str]) -> Html:
    """Return lines of LaTeX as displayed equations."""
    check_extra("latex2mathml", "a report page")
    from latex2mathml.converter import convert

    return Html("".join(f'<div class="equation">{convert(line, display="block")}</div>' for line in lines))
