"""What keeps a trial's writes out of the user's files, and what it may reach."""
