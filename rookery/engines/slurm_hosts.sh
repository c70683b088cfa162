# A host on every other node joins the head. One that is killed begins anew; without one that gives up,
# or whose node fails, the run goes on, or is queued again where it needs all of them.
host() {
    local code tries=0
    while :; do
        "$PYTHON" -m rookery join --run "$RUN" --logs "$RUN/hosts/$SLURMD_NODENAME" "$@"
        code=$?
        killed "$code" && [ $((tries += 1)) -le @TRIES@ ] || return "$code"
        echo "the host on $SLURMD_NODENAME was killed (exit code $code) and begins anew"
        sleep 2
    done
}
export -f host killed
missed() { say "a $1 has ended; see its log in $RUN/logs"; }
needed() {
    missed "$1"
    kill -USR1 $$
}
rm -f "$RUN/address.json"
@HOSTS@

begin() {
    rm -f "$RUN/address.json"
    exec "$PYTHON" -m rookery "$@" --listen @LISTEN@ --token-file "$RUN/token"
}
end_run() { [ -z "$lead" ] || kill -TERM "$lead"; }
