"""Who is next: the queue policies of the papers."""
