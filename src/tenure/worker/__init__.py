"""What claims and runs jobs, in a process of its own or inside another program."""
