"""What needs nothing but the standard library: the life-cycle, durations, clock, ids."""
