"""Stages of torch.distributed.pipelining: buffers in the arena, and a check of sends."""
