"""Scripts that ask what a design is worth; none of it is shipped."""
