"""Complete workloads that are shipped with Tenure: `tenure demo` runs them, and they are there to be read."""
