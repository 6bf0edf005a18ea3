"""The night report: from stored records to text. Pure."""
