"""Claims and runs jobs, in a process of its own or embedded in another program."""
