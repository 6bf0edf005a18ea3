"""What a job needs: resource profiles, their keys and how measurements merge. Pure."""
