"""What a group changes in torch: places in the arena for what torch allocates."""
