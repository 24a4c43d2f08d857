"""The state of a context, as dictionaries and as text."""
