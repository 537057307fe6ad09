"""Sphinx's settings for the book; `.ci/book.py` collects the pages and calls it."""

project = "cirkit"
html_title = "cirkit: noise-robust composed image retrieval"
author = "cirkit contributors"
extensions = ["myst_nb", "sphinx.ext.mathjax"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
exclude_patterns = ["conf.py"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars and notices of libraries
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
# a title in bold before a table or the second heading of a notebook may skip a level;
# a colon in a code fence is no error
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type", "misc.highlighting_failure"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_use_index = False
html_show_search_summary = False  # a page opened from a folder may not fetch another for its excerpt
# beside the pages and without fonts of its own, so that the book needs no network and opens from a folder
mathjax_path = "mathjax/tex-svg-full.js"
mathjax_options = {"defer": "defer"}
