#!/bin/bash
# @COMMAND@
#
# To go on with the run in another job: sbatch @SCRIPT@
@DIRECTIVES@

export RUN=@RUN@
export PYTHON=@PYTHON@@SETUP@

say() { echo "$(date '+%F %T') job $SLURM_JOB_ID: $*"; }

# Whether an exit code says that somebody killed it; 130 and 143 are an end that was asked for.
killed() { [ "$1" -gt 128 ] && [ "$1" -ne 130 ] && [ "$1" -ne 143 ]; }

# USR1 comes ahead of the time limit, and where a host is missed; TERM with preemption and scancel.
ending= lead= hosts=
stop() {
    ending=$1
    say "$1: the run ends with a checkpoint"
    end_run
}
end_run() { :; } # nothing runs yet
trap 'stop USR1' USR1
trap 'stop TERM' TERM

# All nodes see the run directory and have the same packages, or nothing starts.
"$PYTHON" -m rookery slurm --probe "$RUN" || exit
srun --nodes=@NODES@ --ntasks=@NODES@ --ntasks-per-node=1 --mpi=none --export=ALL --kill-on-bad-exit=0 \
    "$PYTHON" -m rookery slurm --check "$RUN" || exit 2

@START@

newest() { readlink "$RUN/checkpoints/latest"; }
before=$(newest)
tries=0
while [ -z "$ending" ]; do
    if [ -n "$(newest)" ]; then
        words=(resume "$RUN")
    else
        words=(train --config "$RUN/config.yaml" --run "$RUN"@ONCE@)
    fi
    begin "${words[@]}"@ALWAYS@ &
    lead=$!
    wait "$lead"
    while kill -0 "$lead" 2>/dev/null; do wait "$lead"; done # it was a signal that ended the wait
    wait "$lead"
    code=$?
    lead=
    killed "$code" && [ $((tries += 1)) -le @TRIES@ ] || break
    say "the head was killed (exit code $code) and begins anew"
done
code=${code:-143}

if [ -n "$ending" ] && [ "$code" -gt 128 ] && @REQUEUE@; then
    failed=$(cat "$RUN/hosts/ends" 2>/dev/null)
    state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)
    if [ "$state" != RUNNING ]; then
        say "Slurm ends the job ($state); unless it is queued again, sbatch $RUN/slurm.sh goes on"
    elif [ -n "$failed" ]; then
        say "not requeued: a host has failed with exit code $failed"
        code=$failed
    elif [ "$(newest)" = "$before" ]; then
        say "not requeued: nothing was saved since the job began; give it more --time"
    else
        say "requeued, to go on from $(newest)"
        trap '' TERM # which the requeue sends
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi
for _ in {1..20}; do # hosts hear that the run is over
    kill -0 $hosts 2>/dev/null || break
    sleep 0.5
done
exit "$code"
