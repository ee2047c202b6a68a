"""Guards for runs that another scheduler starts: one run at a time, each tick at most once."""
