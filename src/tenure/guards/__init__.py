"""Other people's schedulers, guarded: one run at a time, each tick once."""
