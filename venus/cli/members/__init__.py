"""`venus cluster move|drain|add|remove|dissolve`: who has a business, and who leads it."""
