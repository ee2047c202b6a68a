"""Who this process is, and until when it may act."""
