"""What keeps a store honest: rescue, promotion, ticks, pruning."""
