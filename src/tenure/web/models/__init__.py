"""Request and response models of the API, one file per noun; OpenAPI is generated from them."""
