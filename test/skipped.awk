# Reads the output of `go test -v ./...`. Prints one line for each package, and the whole output of each package that
# fails. At the end it prints what the skipped tests need and the commands that install this. The exit status is 1 if a
# package failed.
#
# The lines of a package are consecutive, and the last line has the package's result. testenv.Missing writes the
# messages of skipped tests. go test writes compile errors to its standard error, which must not be in the input of this
# program.
function print_kept(i) {
  for (i = 1; i <= kept; i++) print lines[i]
}
{
  if ($0 ~ /^ok  \t/ || $0 ~ /^\?   \t/ || $0 ~ /^\t[^ ]+\t\tcoverage/) {
    print
    kept = 0
  } else if ($0 ~ /^FAIL\t/) {
    print_kept()
    print
    kept = 0
    failed = 1
  } else {
    lines[++kept] = $0 # one string that grows would be copied for each line: minutes for 200,000 lines
  }
  if (match($0, /skipped: needs .*: [^:]+$/)) {
    text = substr($0, RSTART + length("skipped: needs "))
    command = text
    sub(/.*: /, "", command)
    what = substr(text, 1, length(text) - length(command) - 2)
    if (!(command in count)) order[++commands] = command
    count[command]++
    if (!((command, what) in seen)) {
      seen[command, what] = 1
      needs[command] = needs[command] (needs[command] == "" ? "" : ", ") what
    }
  }
  fflush()
}
END {
  print_kept()
  for (i = 1; i <= commands; i++) {
    command = order[i]
    printf "skipped: %d %s %s: %s\n", count[command], count[command] == 1 ? "test needs" : "tests need", needs[command], command
  }
  exit failed
}
