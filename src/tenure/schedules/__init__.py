"""When a schedule ticks, and the decision on each tick."""
