"""`tenure offload …`: what the bucket of large values holds, and a walk of the sweep at once."""
