package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// The types below are the part of the OCI image specification 1.1 that this image needs. The specification calls the
// labels of an index or a manifest annotations: https://github.com/opencontainers/image-spec.
type (
	descriptor struct {
		MediaType string            `json:"mediaType"`
		Digest    string            `json:"digest"`
		Size      int               `json:"size"`
		Platform  *platform         `json:"platform,omitempty"`
		Labels    map[string]string `json:"annotations,omitempty"`
	}
	platform struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
		Variant      string `json:"variant,omitempty"`
	}
	index struct {
		Schema    int               `json:"schemaVersion"`
		MediaType string            `json:"mediaType"`
		Manifests []descriptor      `json:"manifests"`
		Labels    map[string]string `json:"annotations,omitempty"`
	}
	manifest struct {
		Schema    int               `json:"schemaVersion"`
		MediaType string            `json:"mediaType"`
		Config    descriptor        `json:"config"`
		Layers    []descriptor      `json:"layers"`
		Labels    map[string]string `json:"annotations"`
	}
	imageConfig struct {
		platform
		Created string `json:"created"`
		Config  struct {
			User         string              `json:"User"`
			ExposedPorts map[string]struct{} `json:"ExposedPorts"`
			Env          []string            `json:"Env"`
			Entrypoint   []string            `json:"Entrypoint"`
			Cmd          []string            `json:"Cmd"`
			WorkingDir   string              `json:"WorkingDir"`
			Labels       map[string]string   `json:"Labels"`
			StopSignal   string              `json:"StopSignal"`
		} `json:"config"`
		RootFS struct {
			Type    string   `json:"type"`
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
		History []history `json:"history"`
	}
	history struct {
		Created   string `json:"created"`
		CreatedBy string `json:"created_by"`
	}
	// saved is an entry of manifest.json, which `docker load` reads where the image store is not containerd's.
	saved struct {
		Config   string   `json:"Config"`
		RepoTags []string `json:"RepoTags"`
		Layers   []string `json:"Layers"`
	}
)

const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// nonroot is the user of the process in the container: the number that other images without a shell use, so that
// runAsNonRoot of Kubernetes accepts it.
const nonroot = 65532

// layout is an OCI image layout in the making.
type layout struct {
	blobs tree
}

// add adds a blob and returns its descriptor.
func (l *layout) add(mediaType string, data []byte) descriptor {
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	l.blobs = append(l.blobs, file{name: "blobs/sha256/" + sum, data: data})
	return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(data)}
}

// addJSON adds the JSON text of v as a blob.
func (l *layout) addJSON(mediaType string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	return l.add(mediaType, data), err
}

func blobPath(d descriptor) string { return "blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:") }

// image returns the image of all binaries for Linux: an archive that is an OCI image layout with one image of several
// platforms, and that also has the file of `docker save`. It returns nil if there are no binaries for Linux.
func (r *release) image() ([]byte, error) {
	tag := strings.ReplaceAll(r.version, "+", "-") // a tag has no plus
	labels := map[string]string{
		"org.opencontainers.image.title":         "warmpath",
		"org.opencontainers.image.description":   "Request router for LLM engines that follows their KV caches",
		"org.opencontainers.image.source":        "https://github.com/warmpath/warmpath",
		"org.opencontainers.image.documentation": "https://github.com/warmpath/warmpath/blob/main/docs/install.md",
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.version":       r.version,
		"org.opencontainers.image.revision":      r.commit,
		"org.opencontainers.image.created":       r.when.UTC().Format(time.RFC3339),
	}
	var l layout
	all := index{Schema: 2, MediaType: typeIndex, Labels: labels}
	var loads []saved
	for _, b := range r.binaries {
		if b.os != "linux" {
			continue
		}
		entry, load, err := r.addImage(&l, b, labels)
		if err != nil {
			return nil, err
		}
		load.RepoTags = []string{"warmpath:" + tag + "-" + b.arch}
		all.Manifests, loads = append(all.Manifests, entry), append(loads, load)
	}
	if len(loads) == 0 {
		return nil, nil
	}
	root, err := l.addJSON(typeIndex, all)
	if err != nil {
		return nil, err
	}
	root.Labels = map[string]string{"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": "docker.io/library/warmpath:" + tag}
	top, err := json.Marshal(index{Schema: 2, MediaType: typeIndex, Manifests: []descriptor{root}})
	if err != nil {
		return nil, err
	}
	docker, err := json.Marshal(loads)
	if err != nil {
		return nil, err
	}
	return archived(append(l.blobs,
		file{name: "oci-layout", data: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		file{name: "index.json", data: top},
		file{name: "manifest.json", data: docker}), r.when, "")
}

// addImage adds the image of one platform.
func (r *release) addImage(l *layout, b binary, labels map[string]string) (descriptor, saved, error) {
	plain, err := archived(r.root(b), r.when, "")
	if err != nil {
		return descriptor{}, saved{}, err
	}
	layer := l.add(typeLayer, zipped(plain, gzip.DefaultCompression))
	created := r.when.UTC().Format(time.RFC3339)
	c := imageConfig{platform: platform{Architecture: b.arch, OS: b.os}, Created: created}
	if b.arch == "arm64" {
		c.Variant = "v8"
	}
	c.Config.User = fmt.Sprintf("%d:%d", nonroot, nonroot)
	c.Config.ExposedPorts = map[string]struct{}{"8080/tcp": {}, "9090/tcp": {}}
	c.Config.Env = []string{"PATH=/usr/bin", "HOME=/home/nonroot"}
	c.Config.Entrypoint = []string{"/usr/bin/warmpath"}
	c.Config.Cmd = []string{"serve", "--config", "/etc/warmpath/warmpath.yaml"}
	c.Config.WorkingDir = "/home/nonroot"
	c.Config.Labels, c.Config.StopSignal = labels, "SIGTERM"
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{fmt.Sprintf("sha256:%x", sha256.Sum256(plain))}
	c.History = []history{{created, "deploy/release.sh"}}
	config, err := l.addJSON(typeConfig, c)
	if err != nil {
		return descriptor{}, saved{}, err
	}
	entry, err := l.addJSON(typeManifest, manifest{Schema: 2, MediaType: typeManifest, Config: config, Layers: []descriptor{layer}, Labels: labels})
	entry.Platform = &c.platform
	return entry, saved{Config: blobPath(config), Layers: []string{blobPath(layer)}}, err
}

// root returns the root filesystem of the image: the program, the roots of TLS, a user, and what the licenses ask for.
func (r *release) root(b binary) tree {
	return tree{
		{name: "usr/bin/warmpath", mode: 0o755, data: b.data},
		{name: "etc/warmpath/warmpath.yaml", data: r.sample},
		{name: "etc/ssl/certs/ca-certificates.crt", data: roots()},
		{name: "etc/passwd", data: fmt.Appendf(nil, "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:%d:%d:nonroot:/home/nonroot:/sbin/nologin\n", nonroot, nonroot)},
		{name: "etc/group", data: fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", nonroot)},
		{name: "home/nonroot", dir: true, mode: 0o750, id: nonroot},
		{name: "tmp", dir: true, mode: 0o1777},
		{name: "usr/share/doc/warmpath/LICENSE", data: r.license},
		{name: "usr/share/doc/warmpath/THIRD_PARTY_LICENSES", data: r.licenses},
	}
}

// roots returns the certificates of the authorities that Mozilla trusts for servers, from a module of the Go project. A
// certificate that is trusted only under conditions stays out, because a file of certificates cannot hold conditions.
func roots() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a Buffer takes everything
		}
	}
	return out.Bytes()
}
