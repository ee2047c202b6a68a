"""The tasks of `tenure demo`, and the program of its README: how the code of a repository evolved."""
