#!/usr/bin/env bash
# test/release/overlay.sh FOLDER boots systemd in an overlay of the machine's root filesystem, and runs installed.sh
# there with the packages in FOLDER. test/release.sh calls it in a mount namespace of its own, so that nothing stays. The
# exit code is 3 if this machine permits no overlay or no boot.
set -euo pipefail
work=$1
mkdir -p "$work/overlay" "$work/root"
mount --make-rprivate / && mount -t tmpfs tmpfs "$work/overlay" || exit 3
mkdir "$work/overlay/upper" "$work/overlay/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/overlay/upper,workdir=$work/overlay/work" "$work/root" || exit 3
root=$work/root
mkdir -p "$root/exam"
cp "$work"/warmpath_*.deb "$work/installed.sh" "$root/exam"
rm -f "$root/usr/sbin/policy-rc.d"       # it keeps packages from starting services
rm -f "$root/var/lib/man-db/auto-update" # the index of manual pages takes a package more time than the rest
cat >"$root/etc/systemd/system/exam.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=idle
ExecStart=/bin/bash /exam/installed.sh
ExecStopPost=/bin/sh -c 'echo $EXIT_STATUS >/exam/code; systemctl --no-block poweroff --force'
StandardOutput=file:/exam/log
StandardError=inherit
UNIT
mkdir -p "$root/etc/systemd/system/exam.target.wants"
cat >"$root/etc/systemd/system/exam.target" <<'UNIT'
[Unit]
Requires=basic.target exam.service
After=basic.target
UNIT
ln -sf exam.target "$root/etc/systemd/system/default.target"
timeout 300 systemd-nspawn --quiet --directory "$root" --boot --private-network --register=no --keep-unit --machine "exam-$$" \
  </dev/null >"$work/boot.log" 2>&1 || true
if [ ! -e "$root/exam/log" ]; then
  tail -n 20 "$work/boot.log"
  exit 3
fi
grep '^installed: ' "$root/exam/log" || true
code=$(cat "$root/exam/code" 2>/dev/null || true)
if [ "$code" != 0 ]; then
  tail -n 100 "$root/exam/log"
  if [ -z "$code" ]; then echo "FAILED: the examination took longer than 5 minutes"; fi
  exit 1
fi
