"""The identity of a worker, and until when it may act."""
