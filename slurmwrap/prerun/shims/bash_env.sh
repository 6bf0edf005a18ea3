# Read by every bash of a trial through BASH_ENV: keeps the shims first on PATH and the step counter first on PYTHONPATH
# whatever `module load`, `source venv/bin/activate` or `export PYTHONPATH=...` do to them.
# The site's own BASH_ENV (Lmod's `module` function) comes first.
if [[ -n "${SLURMWRAP_BASH_ENV-}" && -r "${SLURMWRAP_BASH_ENV-}" ]]; then
    # shellcheck source=/dev/null
    source "$SLURMWRAP_BASH_ENV"
fi

__slurmwrap_keep() {
    if [[ -n "${SLURMWRAP_SHIMS-}" && "${PATH-}:" != "$SLURMWRAP_SHIMS:"* ]]; then
        PATH="$SLURMWRAP_SHIMS:${PATH-}"
    fi
    if [[ -n "${SLURMWRAP_INJECT-}" && "${PYTHONPATH-}:" != "$SLURMWRAP_INJECT:"* ]]; then
        export PYTHONPATH="$SLURMWRAP_INJECT${PYTHONPATH:+:$PYTHONPATH}"
    fi
}

# Before each command, in functions and subshells too.
set -o functrace
# Its argument is for `mkdir x && cd $_`: bash leaves the last argument of the handler in $_.
trap '__slurmwrap_keep "$_"' DEBUG
