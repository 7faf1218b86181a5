#!/usr/bin/env bash
# test/release.sh builds a release of this folder, with changes that are not committed, and examines it with tools that
# are not ours: dpkg, lintian, skopeo, umoci, runc and systemd. As root it installs them; otherwise it examines only the
# archives. It changes nothing else on the machine: the package is installed into an overlay of the machine's root
# filesystem, where systemd boots. The exit code is 3 if everything that was tested is in order, but this machine or user
# cannot run a container or boot systemd. PLATFORMS is a list of platforms, both of Linux among them, and they alone by
# default: each other platform compiles everything once more (100 s of CPU). Before a release:
# PLATFORMS=linux/amd64,linux/arm64,darwin/amd64,darwin/arm64 test/release.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
here=$PWD
work=$(mktemp -d)
container=
untested=
finish() {
  if [ -n "$container" ]; then runc --root "$work/runc" delete --force "$container" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap finish EXIT

fail() {
  echo "release: $*" >&2
  exit 1
}

say() { echo "release: $* ($SECONDS s)"; }

tools() {
  local needed="skopeo umoci runc lintian systemd systemd-container dbus adduser python3 curl git" missing
  missing=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $needed 2>/dev/null | grep -c '^installed ' || true)
  if [ "$missing" != "$(wc -w <<<"$needed")" ]; then
    apt-get update -qq
    # policy-rc.d of the machine decides about services; none of these packages needs one
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $needed >"$work/apt" 2>&1 || { tail -n 20 "$work/apt"; return 1; }
  fi
}

# checkout FOLDER makes a repository with this folder as its only commit, which has the tag v0.1.0.
checkout() {
  mkdir -p "$1"
  git ls-files -z --cached --others --exclude-standard --deduplicate | (while IFS= read -r -d '' f; do if [ -e "$f" ]; then printf '%s\0' "$f"; fi; done) |
    tar --null --no-recursion -T - -c | tar -x -C "$1"
  (
    cd "$1"
    git init -q -b main
    git add -A
    commit 'the first release'
    git tag v0.1.0
  )
}

commit() {
  GIT_AUTHOR_DATE='2026-01-02T03:04:05Z' GIT_COMMITTER_DATE='2026-01-02T03:04:05Z' \
    git -c user.name=test -c user.email=test@example.org -c commit.gpgsign=false commit -q --allow-empty -m "$1"
}

# same_bytes: a second run in another folder, with another environment, writes the same bytes.
same_bytes() {
  cp -r "$work/one" "$work/two folders"
  (
    umask 077
    export TZ=Asia/Tokyo LC_ALL=C GOFLAGS=-tags=other GOAMD64=v3
    "$work/two folders/deploy/release.sh" "$work/again" -platforms "$platforms" >/dev/null
  )
  diff -r "$work/dist" "$work/again" || fail "two runs write different bytes"
  rm -rf "$work/again" "$work/two folders"
}

# names: the release has these files and no others, and SHA256SUMS has all of them.
names() {
  local want=SHA256SUMS p os arch
  for p in ${platforms//,/ }; do
    os=${p%/*} arch=${p#*/}
    want+=" warmpath-0.1.0-$os-$arch.cdx.json warmpath-0.1.0-$os-$arch.tar.gz"
    if [ "$os" = linux ]; then want+=" warmpath_0.1.0_$arch.deb"; fi
  done
  want+=" warmpath-0.1.0-image.tar"
  diff <(tr ' ' '\n' <<<"$want" | LC_ALL=C sort) <(ls "$work/dist" | LC_ALL=C sort) || fail "the release has other files"
  (cd "$work/dist" && sha256sum --check --quiet --strict SHA256SUMS)
  [ "$(wc -l <"$work/dist/SHA256SUMS")" = $(($(ls "$work/dist" | wc -l) - 1)) ] || fail "SHA256SUMS does not have every file"
}

# archives: each has what a user needs, and a binary for its platform whose modules are those of its SBOM.
archives() {
  local p name dir
  for p in ${platforms//,/ }; do
    name=warmpath-0.1.0-${p/\//-}
    dir=$work/archives/$name
    mkdir -p "$work/archives"
    tar -xzf "$work/dist/$name.tar.gz" -C "$work/archives"
    for f in warmpath LICENSE THIRD_PARTY_LICENSES README.md CHANGELOG.md warmpath.1 warmpath.yaml completions/warmpath.bash docs/install.md docs/policies/marginal.md; do
      [ -s "$dir/$f" ] || fail "$name.tar.gz has no $f"
    done
    go version -m "$dir/warmpath" >"$work/modules"
    python3 - "$work/modules" "$work/dist/$name.cdx.json" "$dir/warmpath" "$p" <<'PYTHON'
import hashlib, json, sys
lines = [l.split("\t")[1:] for l in open(sys.argv[1]) if l.startswith("\t")]
bom, binary = json.load(open(sys.argv[2])), open(sys.argv[3], "rb").read()
goos, arch = sys.argv[4].split("/")
settings = dict(l[1].strip().split("=", 1) for l in lines if l[0] == "build" and "=" in l[1])
modules = sorted((l[1], l[2], l[3].strip() if len(l) > 3 else "") for l in lines if l[0] == "dep")
listed = sorted((c["name"], c["version"], c.get("properties", [{"value": ""}])[0]["value"]) for c in bom["components"] if c["name"] != "std")
magic = {"linux": b"\x7fELF", "darwin": b"\xcf\xfa\xed\xfe"}[goos]
assert modules and modules == listed, (set(modules) ^ set(listed))
assert settings["GOOS"] == goos and settings["GOARCH"] == arch and settings["CGO_ENABLED"] == "0" and settings["vcs.modified"] == "false", settings
assert not any(k.startswith("-tags") for k in settings) and settings.get("GOAMD64", "v1") == "v1", settings
assert binary.startswith(magic) and b"/lib64/ld-linux" not in binary
assert bom["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(binary).hexdigest()}]
assert bom["metadata"]["component"]["version"] == "0.1.0" and bom["metadata"]["timestamp"] == "2026-01-02T03:04:05Z"
refs = [c["bom-ref"] for c in bom["components"]]
assert len(set(refs)) == len(refs) and sorted(refs) == sorted(bom["dependencies"][0]["dependsOn"])
PYTHON
  done
  dir=$work/archives/warmpath-0.1.0-linux-$native
  "$dir/warmpath" version | grep -q '^warmpath v0\.1\.0, commit [0-9a-f]\{12\} of 2026-01-02T03:04:05Z, go1' || fail "the version is $("$dir/warmpath" version)"
  (cd "$work/one" && GOFLAGS=-buildvcs=auto make -s build && cmp bin/warmpath "$dir/warmpath") || fail "make build makes another binary"
  cmp <("$dir/warmpath" man) "$dir/warmpath.1"
  bash -n "$dir/completions/warmpath.bash"
  "$dir/warmpath" config check "$dir/warmpath.yaml" >/dev/null 2>&1
  while read -r module _; do
    grep -q "^=== $module " "$dir/THIRD_PARTY_LICENSES" || fail "the license of $module is missing"
  done < <(go version -m "$dir/warmpath" | awk '$1 == "dep" {print $2, $3}')
}

# image: skopeo reads both forms of the image and its platforms; runc runs it as umoci unpacks it.
image() {
  local file=$work/dist/warmpath-0.1.0-image.tar arch pid
  skopeo copy -q --all "oci-archive:$file" "oci:$work/layout:0.1.0" # checks every digest
  for arch in amd64 arm64; do
    skopeo --override-arch "$arch" inspect --config "oci:$work/layout:0.1.0" >"$work/config.json"
    skopeo inspect --config "docker-archive:$file:docker.io/library/warmpath:0.1.0-$arch" | cmp - "$work/config.json" || fail "docker load would see another image for $arch"
    python3 - "$work/config.json" "$arch" <<'PYTHON'
import json, sys
c = json.load(open(sys.argv[1]))
assert (c["os"], c["architecture"], c["created"]) == ("linux", sys.argv[2], "2026-01-02T03:04:05Z"), c
assert c["config"]["User"] == "65532:65532" and c["config"]["Labels"]["org.opencontainers.image.version"] == "0.1.0", c
PYTHON
  done
  skopeo --override-arch "$native" copy -q "oci-archive:$file" "oci:$work/layout:$native"
  umoci unpack --image "$work/layout:$native" "$work/bundle" >/dev/null
  cmp "$work/bundle/rootfs/usr/bin/warmpath" "$work/archives/warmpath-0.1.0-linux-$native/warmpath"
  python3 -c 'import ssl, sys; c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); c.load_verify_locations(sys.argv[1]); assert len(c.get_ca_certs()) > 100' "$work/bundle/rootfs/etc/ssl/certs/ca-certificates.crt"
  if ! unshare --mount --net --pid --fork true 2>/dev/null; then
    untested+=" the running container;"
    return
  fi
  python3 - "$work/bundle/config.json" <<'PYTHON'
import json, sys
c = json.load(open(sys.argv[1]))
c["root"]["readonly"], c["process"]["terminal"] = True, False
json.dump(c, open(sys.argv[1], "w"))
PYTHON
  container=warmpath-test-$$
  runc --root "$work/runc" run --detach --bundle "$work/bundle" --pid-file "$work/pid" "$container" >"$work/container.log" 2>&1 </dev/null ||
    { cat "$work/container.log"; return 1; }
  pid=$(cat "$work/pid")
  for _ in $(seq 100); do
    if nsenter -t "$pid" -n curl -fs 127.0.0.1:8080/health >/dev/null; then break; fi
    sleep 0.2
  done
  nsenter -t "$pid" -n curl -fsS 127.0.0.1:8080/health >/dev/null || { cat "$work/container.log"; fail "the container does not answer"; }
  awk '/^(Uid|Gid):/ && $2 != 65532 {exit 1}' "/proc/$pid/status" || fail "the process of the container has another user"
  runc --root "$work/runc" kill "$container" TERM
  for _ in $(seq 100); do
    if [ ! -e "/proc/$pid" ]; then break; fi
    sleep 0.2
  done
  [ ! -e "/proc/$pid" ] || fail "the container does not stop"
  runc --root "$work/runc" delete --force "$container"
  container=
  say "the container runs"
}

debian() {
  dpkg-deb --info "$work/dist/warmpath_0.1.0_arm64.deb" >/dev/null
  lintian --fail-on error,warning --allow-root "$work"/dist/*.deb
  (
    cd "$work/one"
    commit 'the second release'
    git tag v0.2.0
    deploy/release.sh "$work/next" -platforms "linux/$native" >/dev/null
  )
  cp "$work/next/warmpath_0.2.0_$native.deb" "$work/dist/warmpath_0.1.0_$native.deb" "$here/test/release/installed.sh" "$work"
  local code=0
  unshare --mount bash "$here/test/release/overlay.sh" "$work" || code=$?
  case $code in
    0) say "the package was installed, upgraded and purged" ;;
    3) untested+=" the installed package;" ;;
    *) fail "the installed package is not in order: see the lines above" ;;
  esac
}

native=$(dpkg --print-architecture)
platforms=${PLATFORMS:-linux/amd64,linux/arm64}
(cd tools && go vet ./release && go test ./release && go tool staticcheck ./release)
if [ "$(id -u)" = 0 ]; then tools; fi
say "the tools are ready"
checkout "$work/one"
"$work/one/deploy/release.sh" "$work/dist" -platforms "$platforms"
say "built"
same_bytes
say "a second run wrote the same bytes"
names
archives
say "archives and SBOMs are in order"
if [ "$(id -u)" = 0 ]; then
  image
  say "the image is in order"
  debian
else
  untested=" the image and the Debian packages, which need root;"
fi
if [ -n "$untested" ]; then
  echo "release: NOT TESTED on this machine:${untested%;}"
  exit 3
fi
