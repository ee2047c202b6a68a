"""What the command line, the pages and the API read and do."""
