"""The process that starts workers, renews their leases and settles the jobs of those that end."""
