#!/bin/sh
# slurmwrap: runs its own hook, which only records, and then becomes the program that the site named in slurm.conf before.
# That one keeps its process id, environment, output and exit code. Only the Prolog's gate (off by default) says 1, to
# refuse the node; whatever else goes wrong with our hook, even that its file is gone, the site's runs.
@HOOK@
[ "$?" -ne 1 ] || exit 1
unset PWD OLDPWD SHLVL # shells add them; Slurm gives none
exec @SITE@
