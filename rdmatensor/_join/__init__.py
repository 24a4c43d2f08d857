"""What the ranks of a job exchange through a store."""
