"""Adapters to the local machine: processes, MUNGE, journald, mail, files of users, and the hooks' files."""
