package discovery

import (
	"errors"
	"fmt"
	"strings"

	"github.com/warmpath/warmpath/internal/network"
)

// Defaults are settings of all workers. A worker's own settings have precedence.
type Defaults struct {
	// APIKey is the key of a worker without a key of its own. It may come from a file or from an environment variable, as
	// a worker's key.
	APIKey     string `yaml:"api_key,omitempty"`
	APIKeyFile string `yaml:"api_key_file,omitempty"`
	APIKeyEnv  string `yaml:"api_key_env,omitempty"`
	// APIKeyUse is the use of keys, if a worker has a key and no use of its own.
	APIKeyUse string `yaml:"api_key_use,omitempty"`
	// Protocol is auto, http1 or http2.
	Protocol string `yaml:"protocol,omitempty"`
	// TLS has the files for https workers without files of their own. It does not apply to other workers.
	TLS network.PeerTLS `yaml:"tls,omitempty"`
}

// Fill returns t with the defaults of the settings that it does not have.
func (d Defaults) Fill(t Target) Target {
	if t.APIKey == "" && t.APIKeyFile == "" && t.APIKeyEnv == "" {
		t.APIKey = d.APIKey
	}
	if t.APIKeyUse == "" && t.APIKey != "" {
		t.APIKeyUse = d.APIKeyUse
	}
	if t.Protocol == "" {
		t.Protocol = d.Protocol
	}
	if t.TLS == (network.PeerTLS{}) && strings.HasPrefix(t.URL, "https:") {
		t.TLS = d.TLS
	}
	return t
}

// Validate returns all problems of the defaults. It reads the files of TLS.
func (d Defaults) Validate() error {
	// An https worker that has exactly these settings shows the problems; it may have any key.
	_, err := Target{URL: "https://worker", APIKey: "any", APIKeyUse: d.APIKeyUse, Protocol: d.Protocol}.normalize()
	if tlsErr := d.TLS.Validate(); tlsErr != nil {
		err = errors.Join(err, fmt.Errorf("tls: %w", tlsErr))
	}
	return err
}

// SetDefaults makes d the defaults of the workers of all sources. Workers whose settings change are probed again.
func (s *Watcher) SetDefaults(d Defaults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.roster.defaults != d {
		s.roster.defaults = d
		s.merge()
	}
}
