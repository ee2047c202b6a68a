"""The process that starts workers, renews their leases and settles what they leave."""
