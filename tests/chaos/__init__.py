"""Real processes, real servers, random faults, and a judge who believes only what clients and handlers wrote down."""
