"""What a group has sent, and the step that repeats in it."""
