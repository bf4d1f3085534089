# shellcheck shell=bash
# Other scripts include this file to run a command as a named, timed step.

fail() {
  echo "kvant: $*" >&2
  exit 1
}

# Shows the elapsed seconds and the newest "[3/87]" of the log on a terminal, until it is killed.
show_progress() {
  local log=$1 start=$SECONDS
  while sleep 1; do
    printf '\r   %4d s  %s\033[K' $((SECONDS - start)) "$(grep -ao '^\[[0-9]*/[0-9]*\]' "$log" | tail -n 1)"
  done >&2
}

# step TITLE COMMAND...: prints the title, runs the command, and prints the time taken. The command's output is shown
# only if the command fails. COMMAND may be a function. A function must return its own failure, because `set -e` has no
# effect inside it.
step() {
  local title=$1 start=$SECONDS log progress='' status=0
  shift
  log=$(mktemp)
  echo "-- $title" >&2
  if [ -t 2 ]; then
    show_progress "$log" &
    progress=$!
    # shellcheck disable=SC2064  # the values of now are meant
    trap "kill $progress 2> /dev/null; rm -f '$log'" EXIT
  fi
  "$@" > "$log" 2>&1 || status=$?
  if [ -n "$progress" ]; then
    kill $progress
    wait $progress 2> /dev/null || true
    trap - EXIT
    printf '\r\033[K' >&2
  fi
  [ $status = 0 ] || tail -n 60 "$log" >&2
  rm -f "$log"
  [ $status = 0 ] || fail "failed after $((SECONDS - start)) s: $title"
  echo "   done in $((SECONDS - start)) s" >&2
}
