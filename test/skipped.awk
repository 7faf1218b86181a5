# Reads the output of `go test -v ./...`. Prints one line for each package, and the whole output of each package that
# fails. At the end it prints what the skipped tests need and the commands that install this. The exit status is 1 if a
# package failed.
#
# The lines of a package are consecutive, and the last line has the package's result. testenv.Missing writes the
# messages of skipped tests. go test writes compile errors to its standard error, which must not be in the input of this
# program.
{
  if ($0 ~ /^ok  \t/ || $0 ~ /^\?   \t/ || $0 ~ /^\t[^ ]+\t\tcoverage/) {
    print
    lines = ""
  } else if ($0 ~ /^FAIL\t/) {
    printf "%s", lines
    print
    lines = ""
    failed = 1
  } else {
    lines = lines $0 "\n"
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
  printf "%s", lines
  for (i = 1; i <= commands; i++) {
    command = order[i]
    printf "skipped: %d %s %s: %s\n", count[command], count[command] == 1 ? "test needs" : "tests need", needs[command], command
  }
  exit failed
}
