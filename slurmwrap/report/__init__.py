"""The night report, the report of a user and that on one job: from stored records to text, HTML, CSV, JSON. Pure."""
