"""Looks at a wheel: by id, walks, counts; what a handle remembers of them."""
