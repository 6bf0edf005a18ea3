"""The Python code that Slurm's hooks run on nodes: one zipapp, standard library only, Python 3.6 and newer.

It imports no other part of slurmwrap. host/hook_archive.py builds and installs the zipapp. The hooks only record: they
run no Slurm command, open no database and always exit 0.
"""
