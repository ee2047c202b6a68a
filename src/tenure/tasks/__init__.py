"""The objects users work with: tasks, their arguments, jobs, handles."""
