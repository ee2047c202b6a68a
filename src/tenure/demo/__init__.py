"""The tasks of `tenure demo`, and the README's example program: how the code of a repository evolved."""
