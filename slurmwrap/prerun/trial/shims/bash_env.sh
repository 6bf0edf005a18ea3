# Every bash of a trial reads this file through BASH_ENV. It keeps the shims first on PATH and the step counter first on
# PYTHONPATH, whatever `module load`, `source venv/bin/activate` or `export PYTHONPATH=...` do to them. It also defines
# a function for a launcher or Slurm command that is called by its path (`$MPI_HOME/bin/mpirun`, /usr/bin/sbatch), and
# for a Python that is called by its path with a PYTHONPATH of its own (`PYTHONPATH=src /venv/bin/python train.py`).
# The site's own BASH_ENV (Lmod's `module` function) is read first.
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
    # The place of an exit, for a script that ends without a message (verdict/silent_exit.py).
    case "$BASH_COMMAND" in
        "exit 0") ;;
        exit | exit\ *)
            builtin printf '%s\t%s\tbash\n' "${BASH_SOURCE[1]-}" "${BASH_LINENO[0]-0}" 2> /dev/null \
                >> "${SLURMWRAP_STEP_DIR-/nonexistent}/exits" || :
            ;;
    esac
    # [[ =~ ]] must not be used here, because it would overwrite the user's BASH_REMATCH.
    local __slurmwrap_rest="$BASH_COMMAND" __slurmwrap_named=
    while :; do
        case "${__slurmwrap_rest%%=*}" in "$__slurmwrap_rest" | *[!A-Za-z0-9_]*) break ;; esac
        case "$__slurmwrap_rest" in *[[:space:]]*) ;; *) return 0 ;; esac
        case "$__slurmwrap_rest" in PYTHONPATH=*) __slurmwrap_named=1 ;; esac
        __slurmwrap_rest="${__slurmwrap_rest#*[[:space:]]}"
    done
    case "$__slurmwrap_named${__slurmwrap_rest%%[[:space:]]*}" in
        1*/* | 1*\$*) ;;
        */env) ;;
        */srun | */mpirun | */mpiexec | */mpiexec.hydra | */orterun | */prterun | */horovodrun) ;;
        */sbatch | */salloc | */scancel | */scontrol) ;;
        */apptainer | */singularity | */podman | */podman-hpc | */docker | */nerdctl) ;;
        */ch-run | */bwrap | */enroot | */shifter | */sarus) ;;
        *) return 0 ;;
    esac
    local __slurmwrap_word="${__slurmwrap_rest%%[[:space:]]*}"
    case "$__slurmwrap_word" in *[!-A-Za-z0-9_./\$\{\}\"+]*) return 0 ;; esac
    eval "__slurmwrap_word=$__slurmwrap_word" # nothing but letters, slashes and $NAME or ${NAME}
    case "$__slurmwrap_word" in
        "$SLURMWRAP_SHIMS"/* | *[!-A-Za-z0-9_./+]*) return 0 ;;
    esac
    case "$__slurmwrap_word" in
        */python | */python[23] | */python[23].* | */torchrun | */accelerate | */deepspeed)
            # Inside of the function the assignment is in effect, and this handler adds the counter to it.
            eval "function $__slurmwrap_word { command $__slurmwrap_word \"\$@\"; }"
            return 0
            ;;
    esac
    [[ -x "$__slurmwrap_word" && -x "$SLURMWRAP_SHIMS/${__slurmwrap_word##*/}" ]] || return 0
    # The shim of a container runtime needs the path: the program need not be on PATH.
    eval "function $__slurmwrap_word {
        SLURMWRAP_CALLED=$__slurmwrap_word \"\$SLURMWRAP_SHIMS/${__slurmwrap_word##*/}\" \"\$@\"
    }"
}

# Run the handler before each command, also in functions and subshells.
set -o functrace
# The argument is needed for `mkdir x && cd $_`: bash sets $_ to the last argument of the handler.
trap '__slurmwrap_keep "$_"' DEBUG
