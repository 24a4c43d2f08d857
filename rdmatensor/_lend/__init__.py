"""Memory that one process lends to others, and what ranks decide about it together."""
