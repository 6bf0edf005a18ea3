"""What Slurm's hooks execute on nodes: one zipapp, standard library only, Python 3.6 and newer, nothing of the rest.

Put together and installed by host/hook_files.py. Record only: no Slurm command, no database, always exit 0.
"""
