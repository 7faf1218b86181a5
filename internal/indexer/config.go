package indexer

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/network"
)

// Config has the settings of the index service. The zero value offers no index to others.
type Config struct {
	// Listen is the address for HTTP, host:port; "" offers no index to others. Beside its other listeners, `warmpath
	// serve` opens it too. The default of `warmpath index` is a loopback address, because the service shows the workers
	// and connects to the endpoints that are registered.
	Listen string `yaml:"listen"`
	// GRPCListen is the address for gRPC, host:port. Default "": none.
	GRPCListen string `yaml:"grpc_listen"`
	// Key is the bearer token that requests must have, except for /health and /metrics. It is required if an address is
	// not a loopback address. If other people can read the configuration file, use KeyFile or the environment variable
	// WARMPATH_INDEX_KEY instead.
	Key string `yaml:"key"`
	// KeyFile is a file with the key. White space around the key is removed.
	KeyFile string `yaml:"key_file"`
	// TLS names the files for TLS at both addresses. By default they speak without TLS.
	TLS network.ListenerTLS `yaml:"tls"`
}

// DefaultListen is the address of `warmpath index`: the port of Dynamo's standalone indexer.
const DefaultListen = "127.0.0.1:8090"

// minKey is the minimum length of a key. A shorter key can be guessed over a network.
const minKey = 8

// Validate returns all problems of c. Each begins with the name of its field. Call Validate after the key was read.
func (c Config) Validate() error {
	var problems []error
	for _, l := range []struct{ name, address string }{{"listen", c.Listen}, {"grpc_listen", c.GRPCListen}} {
		if l.address == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(l.address); err != nil {
			problems = append(problems, fmt.Errorf("%s: %q is not host:port", l.name, l.address))
		} else if c.Key == "" && !network.Loopback(l.address) {
			problems = append(problems, fmt.Errorf("key: %s can be reached from other machines, so the index service needs a key: "+
				"set index_service.key_file or WARMPATH_INDEX_KEY, or listen on 127.0.0.1", l.address))
		}
	}
	if c.GRPCListen != "" && c.Listen == "" {
		problems = append(problems, errors.New("listen: the index service also needs an address for HTTP, for /metrics and /health"))
	}
	if c.Key != "" && len(c.Key) < minKey {
		problems = append(problems, fmt.Errorf("key: %d characters are too few, use %d or more", len(c.Key), minKey))
	}
	if err := c.TLS.Validate(); err != nil {
		problems = append(problems, fmt.Errorf("tls.%w", err))
	}
	return errors.Join(problems...)
}

// ClientConfig says which index service a router asks. The tags are names in the section index of the configuration.
type ClientConfig struct {
	// URL is the address of an index service (`warmpath index`), http://host:port or https. The router then has no index
	// of its own: it asks the service about each prompt, and follows no events. While the service does not answer,
	// requests are decided by load. Default "": the router has an index of its own.
	URL string `yaml:"url"`
	// MaxWait is how long a request waits for the service's answer. 50 ms is some hundred times as long as an answer
	// takes, and less than the prefill of a thousand tokens.
	MaxWait time.Duration `yaml:"max_wait"`
	// Register says that the router registers its workers at the service, so that the service needs no list of workers.
	// Default true. A worker leaves the service 30 s after the last router that registers it.
	Register bool `yaml:"register"`
	// Key is the bearer token of the service. If other people can read the configuration file, use KeyFile or the
	// environment variable WARMPATH_INDEX_KEY instead.
	Key string `yaml:"key"`
	// KeyFile is a file with the key. White space around the key is removed.
	KeyFile string `yaml:"key_file"`
	// TLS has the files for an https service, and for https addresses in peers: ca_file, cert_file, key_file and
	// server_name.
	TLS network.PeerTLS `yaml:"tls"`
}

// DefaultClientConfig asks no service.
func DefaultClientConfig() ClientConfig {
	return ClientConfig{MaxWait: 50 * time.Millisecond, Register: true}
}

// Validate returns all problems of c. Each begins with the name of its field.
func (c ClientConfig) Validate() error {
	var problems []error
	if c.URL != "" {
		u, err := url.Parse(c.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.HasSuffix(u.Host, ":") || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			problems = append(problems, errors.New("url: write the address of an index service, such as http://index-1:8090"))
		}
	}
	if err := c.TLS.Validate(); err != nil {
		problems = append(problems, fmt.Errorf("tls.%w", err))
	}
	if c.MaxWait <= 0 || c.MaxWait > 10*time.Second {
		problems = append(problems, fmt.Errorf("max_wait: %v is not within 1ms..10s", c.MaxWait))
	}
	return errors.Join(problems...)
}
