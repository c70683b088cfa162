# A host on every other node joins the head. One that is killed begins anew; without one that gives up,
# or whose node fails, the run goes on, or is queued again where it needs all of them.
host() {
    local code tries=0
    if [ "$SLURM_PROCID" -eq 0 ]; then
        watch_head &
        trap "kill $!" EXIT
    fi
    while :; do
        "$PYTHON" -m rookery join --run "$RUN" --logs "$RUN/hosts/$SLURMD_NODENAME" "$@"
        code=$?
        killed "$code" && [ $((tries += 1)) -le @TRIES@ ] || break
        echo "the host on $SLURMD_NODENAME was killed (exit code $code) and begins anew"
        sleep 2
    done
    # What its own error has ended would end so again; a node that fails says nothing.
    [ "$code" -eq 0 ] || [ "$code" -gt 128 ] || echo "$code" >"$RUN/hosts/failed"
    return "$code"
}

# Slurm leaves a node out that fails, the head's too: then hosts are all that is left of the job.
watch_head() {
    local nodes
    while :; do
        read -rt @WATCH@ <> <(:) # sleeps, without a process that would outlive this one
        nodes=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%N) && [ -n "$nodes" ] || continue
        scontrol show hostnames "$nodes" | grep -qx "$HEAD_NODE" && continue
        echo "the head's node $HEAD_NODE has failed: requeued"
        scontrol requeue "$SLURM_JOB_ID"
        return
    done
}
export HEAD_NODE=$SLURMD_NODENAME
export -f host killed watch_head
missed() { say "a $1 has ended; see its log in $RUN/logs"; }
needed() {
    missed "$1"
    [ ! -s "$RUN/hosts/failed" ] || mv "$RUN/hosts/failed" "$RUN/hosts/ends"
    kill -USR1 $$
}
mkdir -p "$RUN/hosts"
rm -f "$RUN/address.json" "$RUN/hosts/failed" "$RUN/hosts/ends"
@HOSTS@

begin() {
    rm -f "$RUN/address.json"
    exec "$PYTHON" -m rookery "$@" --listen @LISTEN@ --token-file "$RUN/token"
}
end_run() { [ -z "$lead" ] || kill -TERM "$lead"; }
