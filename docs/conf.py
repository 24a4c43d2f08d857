"""Settings of Sphinx for this site; `bash ci/docs.sh` builds it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS / "_ext"), str(ROOT)]

import rdmatensor  # noqa: E402 - the package that the build installed

project = "rdmatensor"
author = "the rdmatensor authors"
project_copyright = f"2026, {author}. Apache-2.0"
version = release = rdmatensor.__version__

# No intersphinx: it fetches inventories, and the build needs no network.
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_copybutton",
    "docsite",
]
exclude_patterns = ["_ext", "_static", "_build"]
nitpicky = True
default_role = "literal"

myst_enable_extensions = ["colon_fence", "deflist", "attrs_block"]
myst_heading_anchors = 4

autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # else the type bytes leads to attributes of that name
napoleon_custom_sections = ["Errors", "Ownership", "Shapes", "Threads", "Units", "Use"]

# Types of other projects, whose inventories are not fetched, and private ones of annotations.
nitpick_ignore_regex = [
    ("py:.*", r"(?:datetime\.)?timedelta|DistBackendError"),
    ("py:.*", r"(torch|numpy|np|dist|c10d|collections|typing|types|pathlib|weakref|os)\b.*"),
    ("py:(class|obj)", r".*\b(_\w+)(\.\w+)*"),
    ("py:(class|obj)", r"[A-Z]\w*"),
    ("py:class", r"rdmatensor\.(horovod\.torch\.functions\.T|ps\.driving\.functions\.Function)"),
    ("py:class", r"optuna\..*|rdmatensor\.trials\.launchers\.(Fleet|Launcher)"),
    ("c:identifier", r"(u?int\d+|size|uintptr|ssize)_t"),
]

html_theme = "furo"
html_title = f"rdmatensor {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = re.escape("$ ")
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
