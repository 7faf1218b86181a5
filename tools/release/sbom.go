package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// The types below are the part of CycloneDX 1.5 that a list of Go modules needs:
// https://cyclonedx.org/docs/1.5/json/. purl is the package URL of https://github.com/package-url/purl-spec.
type (
	bom struct {
		Format       string       `json:"bomFormat"`
		Spec         string       `json:"specVersion"`
		Serial       string       `json:"serialNumber"`
		Version      int          `json:"version"`
		Metadata     bomMetadata  `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	bomMetadata struct {
		Time      string     `json:"timestamp"`
		Tools     bomTools   `json:"tools"`
		Component component  `json:"component"`
		Settings  []property `json:"properties"`
	}
	bomTools struct {
		Components []component `json:"components"`
	}
	component struct {
		Type       string     `json:"type"`
		Ref        string     `json:"bom-ref,omitempty"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		Hashes     []hash     `json:"hashes,omitempty"`
		Licenses   []license  `json:"licenses,omitempty"`
		PURL       string     `json:"purl,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	license struct {
		License struct {
			ID string `json:"id"`
		} `json:"license"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref string   `json:"ref"`
		On  []string `json:"dependsOn,omitempty"`
	}
)

// sbom returns the list of the modules that a binary says it was built from, as CycloneDX.
func (r *release) sbom(b binary) ([]byte, error) {
	sum := sha256.Sum256(b.data)
	self := component{Type: "application", Name: b.info.Main.Path, Version: r.version, PURL: purl(b.info.Main.Path, "v"+r.version),
		Hashes: []hash{{"SHA-256", fmt.Sprintf("%x", sum)}}, Licenses: make([]license, 1)}
	self.Ref = self.PURL
	self.Licenses[0].License.ID = "Apache-2.0"
	out := bom{Format: "CycloneDX", Spec: "1.5", Serial: "urn:uuid:" + uuid(sum), Version: 1, Metadata: bomMetadata{
		Time: r.when.UTC().Format(time.RFC3339), Component: self,
		Tools: bomTools{[]component{{Type: "application", Name: "warmpath/tools/release", Version: r.version}}},
	}}
	for _, s := range b.info.Settings {
		out.Metadata.Settings = append(out.Metadata.Settings, property{"go:build:" + s.Key, s.Value})
	}
	out.Components = append(out.Components, library(&debug.Module{Path: "std", Version: b.info.GoVersion}))
	for _, m := range b.info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		out.Components = append(out.Components, library(m))
	}
	all := dependency{Ref: self.Ref}
	for _, c := range out.Components {
		all.On = append(all.On, c.Ref)
	}
	out.Dependencies = []dependency{all}
	text, err := json.MarshalIndent(out, "", "  ")
	return append(text, '\n'), err
}

// library returns the component of a module. Go's hash of a module is no hash of a file, so it is a property.
func library(m *debug.Module) component {
	c := component{Type: "library", Name: m.Path, Version: m.Version, PURL: purl(m.Path, m.Version)}
	c.Ref = c.PURL
	if m.Sum != "" {
		c.Properties = []property{{"go:sum", m.Sum}}
	}
	return c
}

// purl returns the package URL of a module. The standard library's versions have no v there, but "go" before them.
func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(strings.TrimPrefix(version, "go"), "+", "%2B")
}

// uuid makes a UUID of version 8 (RFC 9562, section 5.8) from a hash, so that one binary always has one serial number.
func uuid(sum [32]byte) string {
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}
