# All ranks are tasks of one step.
begin() {
    exec srun --mpi=@MPI@ --nodes=@NODES@ --ntasks=@RANKS@ --export=ALL --wait=0 \
        "$PYTHON" -m rookery "$@"
}
end_run() { [ -z "$lead" ] || scancel --signal=TERM "$SLURM_JOB_ID"; } # every step, not this script
