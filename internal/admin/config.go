package admin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// Config says where the admin listener is and who may use it.
type Config struct {
	// Listen is host:port; "" opens no admin listener. Loopback by default: it shows prompts' sizes and workers'
	// addresses.
	Listen string `yaml:"listen"`
	// Key must be given as a bearer token for /admin/. Required when Listen is not loopback. Prefer KeyFile or the
	// environment variable WARMPATH_ADMIN_KEY to a key in a file that others read.
	Key string `yaml:"key"`
	// KeyFile holds the key; space around it is left out.
	KeyFile string `yaml:"key_file"`
}

// DefaultConfig listens on loopback, port 9090 as Prometheus users expect, without a key.
func DefaultConfig() Config { return Config{Listen: "127.0.0.1:9090"} }

// minKey bounds a key's length from below: shorter ones can be guessed over a network.
const minKey = 8

// Validate returns all problems of c, each beginning with the name of its field. It is called when the key has been
// read.
func (c Config) Validate() error {
	var problems []error
	if c.Listen != "" {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			problems = append(problems, fmt.Errorf("listen: %q is not host:port", c.Listen))
		} else if c.Key == "" && !Loopback(c.Listen) {
			problems = append(problems, fmt.Errorf("key: %s can be reached from other machines, so /admin/ needs a key: "+
				"set admin.key_file or WARMPATH_ADMIN_KEY, or listen on 127.0.0.1", c.Listen))
		}
	}
	if c.Key != "" && len(c.Key) < minKey {
		problems = append(problems, fmt.Errorf("key: %d characters are too few, use %d or more", len(c.Key), minKey))
	}
	return errors.Join(problems...)
}

// Loopback reports whether address (host:port) can be reached from this machine only.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
