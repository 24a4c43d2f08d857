"""What ranks decide together about memory."""
