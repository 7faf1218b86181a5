#!/usr/bin/env bash
# test/release/installed.sh examines the Debian packages beside it on a machine that systemd has booted. overlay.sh runs
# it where nothing stays.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
old=$(echo warmpath_0.1.0_*.deb) new=$(echo warmpath_0.2.0_*.deb)
file=/etc/warmpath/warmpath.yaml

fail() {
  echo "FAILED: $*"
  systemctl status --no-pager warmpath.service || true
  journalctl --no-pager -n 15 -u warmpath.service || true
  exit 1
}

installed() { echo "installed: $*"; }

# eventually COMMAND… waits until the command succeeds, for 20 s.
eventually() {
  for _ in $(seq 100); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.2
  done
  fail "this never succeeded: $*"
}

under_way() { curl -fs 127.0.0.1:9090/metrics | grep -q '^warmpath_requests_in_flight 1$'; }

status() { [ "$(curl -s -o /dev/null -w '%{http_code}' "$1")" = "$2" ]; }

running() { systemctl show --value -p MainPID warmpath.service; }

left() { find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /exam -o -path /var/cache/man \) -prune -o -iname '*warmpath*' -print | grep -vxFf before; }

find / -xdev -iname '*warmpath*' >before || true
cp /etc/passwd passwd.before

# Installed, the service runs, and clients can connect as soon as the installation is over. No worker is named yet.
dpkg -i "$old"
systemctl is-active --quiet warmpath.service || fail "the service does not run after the installation"
systemctl is-enabled --quiet warmpath.service || fail "the service does not start at boot"
status 127.0.0.1:8080/health 200 || fail "/health does not answer 200"
status 127.0.0.1:8080/readiness 503 || fail "/readiness without workers is not 503"
[ "$(stat -c %U "/proc/$(running)")" = warmpath ] || fail "the service runs as $(stat -c %U "/proc/$(running)")"
limit=$(ulimit -Hn) # of the machine
if [ "$limit" = unlimited ] || [ "$limit" -gt 65536 ]; then limit=65536; fi
grep -q "Max open files *$limit " "/proc/$(running)/limits" || fail "the limit of descriptors is not $limit"
[ "$(stat -c '%U:%G %a' /etc/warmpath "$file" | tr '\n' ' ')" = 'root:warmpath 750 root:warmpath 640 ' ] || fail "others can read the configuration"
installed "the service runs as its own user"

systemd-analyze verify /usr/lib/systemd/system/warmpath.service 2>verify || fail "systemd-analyze verify: $(cat verify)"
if grep -i warmpath verify; then fail "systemd-analyze verify has something to say"; fi
exposure=$(systemd-analyze security --no-pager --threshold=15 warmpath.service | tail -n 1) || fail "systemd-analyze security: $exposure"
installed "${exposure#→ }"

man -w warmpath >/dev/null 2>&1 || [ ! -x /usr/bin/man ] || fail "man does not find the page"
complete=$(bash -c 'set +e; . /usr/share/bash-completion/completions/warmpath && complete -p warmpath')
case $complete in *warmpath) ;; *) fail "bash has no completion: $complete" ;; esac

# A worker that is written into the file serves after a reload. systemctl returns when the reload is over.
warmpath mock --listen 127.0.0.1:8000 --model tiny --speed 0.2 >mock.log 2>&1 &
eventually status 127.0.0.1:8000/health 200
sed -i 's|^workers:.*|workers: [{url: "http://127.0.0.1:8000"}] # changed|' "$file"
before=$(running)
systemctl reload warmpath.service
eventually status 127.0.0.1:8080/readiness 200
[ "$(running)" = "$before" ] || fail "the reload started another process"
curl -fsS 127.0.0.1:8080/v1/completions -d '{"model":"tiny","prompt":"hello","max_tokens":4}' | grep -q '"text"' || fail "a request is not answered"
installed "a reload adds a worker"

# An upgrade keeps the changed file without a question, and the new version runs.
dpkg --force-confdef --force-confold -i "$new"
grep -q '# changed' "$file" || fail "the upgrade has changed the configuration"
[ "$(stat -c '%U:%G %a' "$file")" = 'root:warmpath 640' ] || fail "the upgrade has changed the rights of the configuration"
warmpath version | grep -q 'v0\.2\.0' || fail "the version is $(warmpath version)"
systemctl is-active --quiet warmpath.service || fail "the service does not run after the upgrade"
[ "$(running)" != "$before" ] || fail "the upgrade did not restart the service"
eventually status 127.0.0.1:8080/readiness 200
installed "an upgrade keeps the configuration"

# A process that dies is started again. A stop finishes the request under way, also if the unit allows less time: the
# router tells systemd how long its drain may take.
kill -9 "$(running)"
eventually status 127.0.0.1:8080/readiness 200
mkdir -p /run/systemd/system/warmpath.service.d
printf '[Service]\nTimeoutStopSec=1s\n' >/run/systemd/system/warmpath.service.d/short.conf
systemctl daemon-reload
curl -fsS 127.0.0.1:8080/v1/completions -d '{"model":"tiny","prompt":"hello","max_tokens":100}' >answer &
request=$!
eventually under_way
begin=$SECONDS
systemctl stop warmpath.service
wait "$request" || fail "the stop has cut a request"
grep -q '"finish_reason":"[a-z]' answer || fail "the answer is cut: $(cat answer)"
installed "a stop waited $((SECONDS - begin)) s for a request"
rm -r /run/systemd/system/warmpath.service.d
systemctl daemon-reload
[ "$(systemctl show --value -p Result warmpath.service)" = success ] || fail "the stop failed: $(systemctl show -p Result warmpath.service)"
systemctl start warmpath.service
installed "the service comes back, and stops in order"

dpkg -r warmpath
if systemctl is-active --quiet warmpath.service; then fail "the service runs after its removal"; fi
grep -q '# changed' "$file" || fail "the removal has removed the configuration"
dpkg -i "$old" # installed again, it finds its file
grep -q '# changed' "$file" || fail "the configuration is lost"
dpkg -P warmpath
kill %1
if left; then fail "the purge has left the files above"; fi
cmp /etc/passwd passwd.before || fail "the purge has left a user"
if systemctl cat warmpath.service >/dev/null 2>&1; then fail "the purge has left the unit"; fi
installed "a purge leaves nothing"
