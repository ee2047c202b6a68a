"""The duties that keep a store in order: rescue, promotion, ticks, pruning."""
