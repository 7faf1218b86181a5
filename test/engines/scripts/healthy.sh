# The scripts that start a server source this file.
# healthy SCRIPT NAME PORT PID LOG: waits at most $WAIT seconds until the server answers /health. If WAIT is not set, it
# does not wait. Status 1: the server has ended. Status 2: it does not answer /health in time.
healthy() {
  local script=$1 name=$2 port=$3 pid=$4 log=$5 i
  [ -n "${WAIT-}" ] || return 0
  for ((i = 0; i < WAIT * 2; i++)); do
    curl -fsS -o /dev/null "http://127.0.0.1:$port/health" 2>/dev/null && return 0
    kill -0 "$pid" 2>/dev/null || { echo "$script: $name ended, see $log" >&2; return 1; }
    sleep 0.5
  done
  echo "$script: $name is not healthy after $WAIT s" >&2
  return 2
}
