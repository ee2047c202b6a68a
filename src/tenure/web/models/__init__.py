"""What the API takes and gives, one file a noun: OpenAPI is made of it."""
