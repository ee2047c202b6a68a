"""The modules that need only the standard library: life-cycle, durations, clock, ids, this host."""
