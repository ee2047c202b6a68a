"""Doorbells. A store is complete without one; a ring only makes a waiting worker poll sooner."""
