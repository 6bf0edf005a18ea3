#!/bin/sh
# slurmwrap: runs slurmwrap's hook, which only records, and then execs the program that the site had set in slurm.conf.
# That program has the same process id, environment, output and exit code as without slurmwrap. slurmwrap's hook exits 1
# only when the Prolog gate (off by default) refuses the node. After any other error, even when the file of the hook is
# missing, the site's program runs.
@HOOK@
[ "$?" -ne 1 ] || exit 1
unset PWD OLDPWD SHLVL # the shell sets these; Slurm does not
exec @SITE@
