package admin

import (
	"errors"
	"fmt"
	"net"

	"github.com/warmpath/warmpath/internal/network"
)

// Config has the settings of the admin listener.
type Config struct {
	// Listen is the address, host:port; "" opens no admin listener. The default is a loopback address, because the
	// listener shows the sizes of prompts and the addresses of workers.
	Listen string `yaml:"listen"`
	// Key is the bearer token that requests to /admin/ must have. It is required if Listen is not a loopback address. If
	// other people can read the configuration file, use KeyFile or the environment variable WARMPATH_ADMIN_KEY instead.
	Key string `yaml:"key"`
	// KeyFile is a file with the key. White space around the key is removed.
	KeyFile string `yaml:"key_file"`
	// TLS names the files for TLS at the admin listener. By default it speaks HTTP without TLS.
	TLS network.ListenerTLS `yaml:"tls"`
	// PeerPaths serves /add_worker, /remove_worker and /list_workers of sglang-router and vllm-router at the admin
	// listener, for scripts that call them. By default it is off: /admin/workers does the same, and more.
	PeerPaths bool `yaml:"peer_paths"`
}

// DefaultConfig listens on loopback without a key, at port 9090, which Prometheus users expect.
func DefaultConfig() Config { return Config{Listen: "127.0.0.1:9090"} }

// minKey is the minimum length of a key. A shorter key can be guessed over a network.
const minKey = 8

// Validate returns all problems of c. Each begins with the name of its field. Call Validate after the key was read.
func (c Config) Validate() error {
	var problems []error
	if c.Listen != "" {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			problems = append(problems, fmt.Errorf("listen: %q is not host:port", c.Listen))
		} else if c.Key == "" && !network.Loopback(c.Listen) {
			problems = append(problems, fmt.Errorf("key: %s can be reached from other machines, so /admin/ needs a key: "+
				"set admin.key_file or WARMPATH_ADMIN_KEY, or listen on 127.0.0.1", c.Listen))
		}
	}
	if c.Key != "" && len(c.Key) < minKey {
		problems = append(problems, fmt.Errorf("key: %d characters are too few, use %d or more", len(c.Key), minKey))
	}
	if err := c.TLS.Validate(); err != nil {
		problems = append(problems, fmt.Errorf("tls.%w", err))
	}
	return errors.Join(problems...)
}
