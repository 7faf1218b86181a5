package main

import (
	"bytes"
	"compress/gzip"
	"crypto/md5" // the format of Debian packages asks for it; apt checks SHA-256
	"fmt"
	"strings"
	"time"
)

const maintainer = "The Warmpath authors <warmpath@users.noreply.github.com>"

// debianVersion returns the version in Debian's form. A version before another (0.2.0-rc.1, or a pseudo-version of Go)
// has a tilde, which Debian sorts before the end of the text.
func (r *release) debianVersion() string {
	return strings.ReplaceAll(strings.Replace(r.version, "-", "~", 1), "-", ".")
}

// debian returns the Debian package with a binary for Linux: deb(5).
func (r *release) debian(b binary) ([]byte, error) {
	const doc = "usr/share/doc/warmpath/"
	content := tree{
		{name: "usr/bin/warmpath", mode: 0o755, data: b.data},
		{name: "etc/warmpath/warmpath.yaml", data: r.sample},
		{name: "usr/lib/systemd/system/warmpath.service", data: r.service},
		{name: "usr/share/man/man1/warmpath.1.gz", data: zipped(r.manual, gzip.BestCompression)},
		{name: "usr/share/bash-completion/completions/warmpath", data: r.completions["bash"]},
		{name: "usr/share/zsh/vendor-completions/_warmpath", data: r.completions["zsh"]},
		{name: "usr/share/fish/vendor_completions.d/warmpath.fish", data: r.completions["fish"]},
		{name: doc + "copyright", data: r.scripts["copyright"]},
		{name: doc + "THIRD_PARTY_LICENSES.gz", data: zipped(r.licenses, gzip.BestCompression)},
		{name: "usr/share/lintian/overrides/warmpath", data: []byte("# Programs in Go are static.\nwarmpath: statically-linked-binary [usr/bin/warmpath]\n")},
		{name: doc + "changelog.gz", data: zipped([]byte(r.debianChangelog()), gzip.BestCompression)},
	}
	for _, d := range r.documents {
		content = append(content, file{name: doc + d.name, data: d.data})
	}
	var sums bytes.Buffer
	size := 0 // in units of 1024 bytes, each file and folder rounded up
	for _, f := range content.withFolders() {
		size += max(1, (len(f.data)+1023)/1024)
		if !f.dir && !strings.HasPrefix(f.name, "etc/") {
			fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.data), f.name)
		}
	}
	control := tree{
		{name: "control", data: []byte(r.control(b.arch, size))},
		{name: "conffiles", data: []byte("/etc/warmpath/warmpath.yaml\n")},
		{name: "md5sums", data: sums.Bytes()},
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		control = append(control, file{name: script, mode: 0o755, data: r.scripts[script]})
	}
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	member(&out, "debian-binary", r.when, []byte("2.0\n"))
	for _, part := range []struct {
		name string
		tree tree
	}{{"control.tar.gz", control}, {"data.tar.gz", content}} {
		part.tree = append(part.tree, file{dir: true}) // the root folder, "./"
		data, err := compressed(part.tree, r.when, "./")
		if err != nil {
			return nil, err
		}
		member(&out, part.name, r.when, data)
	}
	return out.Bytes(), nil
}

func (r *release) control(arch string, size int) string {
	return fmt.Sprintf(`Package: warmpath
Version: %s
Architecture: %s
Maintainer: %s
Installed-Size: %d
Depends: adduser
Recommends: ca-certificates
Section: net
Priority: optional
Homepage: https://github.com/warmpath/warmpath
Description: request router for LLM engines that follows their KV caches
 Warmpath is a gateway in front of LLM inference engines: vLLM, SGLang and
 TensorRT-LLM. It follows the KV cache events of the engines, and sends each
 request to the engine that has most of the prompt in its cache, unless the
 load makes another engine the better choice.
 .
 The service reads its workers from /etc/warmpath/warmpath.yaml.
`, r.debianVersion(), arch, maintainer, size)
}

func (r *release) debianChangelog() string {
	return fmt.Sprintf("warmpath (%s) stable; urgency=medium\n\n  * Release of the commit %s; CHANGELOG.md has the changes.\n\n -- %s  %s\n",
		r.debianVersion(), r.commit[:12], maintainer, r.when.UTC().Format(time.RFC1123Z))
}

// member writes one file of an archive in the format of ar(5).
func member(out *bytes.Buffer, name string, when time.Time, data []byte) {
	fmt.Fprintf(out, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", name, when.Unix(), 0, 0, "100644", len(data))
	out.Write(data)
	if len(data)%2 == 1 {
		out.WriteByte('\n')
	}
}
