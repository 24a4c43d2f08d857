"""The C library: its handles, its statuses as exceptions, and checks of arguments."""
