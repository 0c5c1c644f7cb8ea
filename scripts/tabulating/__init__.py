"""Parts of `acceptance_table.py`: what every acceptance rule would accept, in closed form."""
