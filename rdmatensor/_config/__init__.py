"""What the settings are: their variables, and the checks of their values."""
