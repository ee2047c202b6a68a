"""What users declare and hold: tasks, their arguments, jobs, handles."""
