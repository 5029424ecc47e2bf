"""Settings of Sphinx for the site. `build.py` stages the pages and calls it; nothing here needs the network."""

import re

import girsanov

project = "Girsanov"
author = "The Girsanov Authors"
copyright = "The Girsanov Authors"
version = release = girsanov.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "myst_nb"]
exclude_patterns = ["results/**"]
html_theme = "furo"
html_title = "Girsanov"
html_static_path = []
html_show_sphinx = False
pygments_style = "friendly"

# Pages in Markdown: links to headings as GitHub has them. Notebooks come executed.
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_merge_streams = True
suppress_warnings = ["mystnb.unknown_mime_type"]

# Docstrings: Google's sections, and `names` between single backticks, as in Markdown.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "mixed"
autodoc_inherit_docstrings = True
viewcode_line_numbers = False

_BULLET = re.compile(r"\s*- ")
_CODE = re.compile(r"(`[^`]*`)")


def _as_restructured_text(app, what, name, obj, options, lines):
    """Put the empty line before a list that Markdown does not need, and keep |x| from being a substitution."""
    for i in range(len(lines) - 1, -1, -1):
        parts = _CODE.split(lines[i])
        lines[i] = "".join(part if part.startswith("`") else part.replace("|", "\\|") for part in parts)
        indented = len(lines[i]) - len(lines[i].lstrip())
        before = lines[i - 1] if i else ""
        level = len(before) - len(before.lstrip()) == indented
        if _BULLET.match(lines[i]) and before.strip() and not _BULLET.match(before) and level:
            lines.insert(i, "")


def setup(app):
    """Connect what is done to docstrings before napoleon, whose priority is 500, reads their sections."""
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=400)
