"""Elastic training: ranks come and go, the training goes on from the last commit."""
