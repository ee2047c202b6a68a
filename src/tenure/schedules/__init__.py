"""When a schedule ticks, and what becomes of each tick."""
