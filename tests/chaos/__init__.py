"""Real processes, real servers, random faults, and a checker that relies only on what clients and handlers recorded."""
