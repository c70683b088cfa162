begin() { exec "$PYTHON" -m rookery "$@"; }
end_run() { [ -z "$lead" ] || kill -TERM "$lead"; }
