"""How much each job gets: production's allocate(), the authors' mechanisms with their quirks, the optimum."""
