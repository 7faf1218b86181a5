package config

import (
	"strings"
	"testing"
)

func TestTheSectionOfValkeyCountsOnlyWithItsBackend(t *testing.T) {
	for text, want := range map[string]string{
		"{valkey: {write: true}}":                                        "index.valkey: it has no effect with index.backend: memory; set index.backend: valkey, or remove write",
		"{valkey: {password_file: /nowhere}}":                            "or remove password_file",
		"{valkey: {url: 'valkeys://h:1', tls: {ca_file: /ca}}}":          "or remove url, tls.ca_file",
		"{valkey: {prefix: 'warmpath:', write: false, queue: 65536}}":    "",
		"{backend: valkey, valkey: {url: 'valkey://h:1', queue: 1}}":     "index.valkey.queue: 1 is outside",
		"{backend: valkey}":                                              "index.valkey.url",
		"{backend: valkey, url: 'http://i:1', valkey: {url: redis://h}}": "index.url: with index.backend: valkey",
		"{backend: disk, valkey: {queue: 1}}":                            `index.backend: "disk" is not known`,
	} {
		err := Check("f", []byte("index: "+text))
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", text, err, want)
		case err != nil && strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: more than one mistake is found:\n%v", text, err)
		}
	}
}
