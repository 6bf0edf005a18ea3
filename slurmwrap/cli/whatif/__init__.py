"""`slurmwrap whatif`: a site's own month, replayed; its page, its text and its plots' words."""
