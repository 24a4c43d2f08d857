"""The C++ extension, and this backend's part of torch's groups; needs no group to be imported."""

BACKEND_NAME = "rdmatensor"
