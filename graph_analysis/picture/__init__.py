"""A plan as a page for people: one HTML file that contains its drawings, no script, no network."""

from graph_analysis.picture.page import render_html

__all__ = ["render_html"]
