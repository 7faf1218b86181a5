package replica

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

// Every combination of the fields of sync.tls either encrypts, or is refused with an error that says what to set.
func TestNoFieldOfTLSLeavesSyncInClearText(t *testing.T) {
	cert, key := testenv.Certificate(t)
	for set := range 16 {
		var files network.PeerTLS
		for i, field := range []struct {
			to    *string
			value string
		}{{&files.CAFile, cert}, {&files.CertFile, cert}, {&files.KeyFile, key}, {&files.ServerName, "router"}} {
			if set&(1<<i) != 0 {
				*field.to = field.value
			}
		}
		halfPair := (files.CertFile == "") != (files.KeyFile == "")
		for _, embedded := range []bool{true, false} {
			name := fmt.Sprintf("ca_file %v, cert_file %v, key_file %v, server_name %v, embedded %v", files.CAFile != "", files.CertFile != "",
				files.KeyFile != "", files.ServerName != "", embedded)
			t.Run(name, func(t *testing.T) {
				cfg := DefaultConfig()
				cfg.TLS, cfg.Embedded = files, embedded
				if !embedded {
					cfg.NATS = "nats://127.0.0.1:4222"
				}
				err := cfg.Validate()
				if bad := halfPair || embedded && set != 0 && files.CertFile == ""; bad {
					if err == nil || !strings.HasPrefix(err.Error(), "tls: ") || !strings.Contains(err.Error(), "set") {
						t.Errorf("the error is %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := encrypts(t, &cfg); got != (set != 0) {
					t.Errorf("the connection is encrypted: %v", got)
				}
			})
		}
	}
}

// encrypts reports whether the connection to the other routers, or to the given server, requires TLS.
func encrypts(t *testing.T, cfg *Config) bool {
	t.Helper()
	if cfg.Embedded {
		o, err := cfg.server(1)
		if err != nil {
			t.Fatal(err)
		}
		return o.Cluster.TLSConfig != nil
	}
	options, err := newNATS(*cfg, 1, discard).options(New(*cfg, Parts{Log: discard}))
	if err != nil {
		t.Fatal(err)
	}
	o := nats.GetDefaultOptions()
	for _, set := range options {
		if err := set(&o); err != nil {
			t.Fatal(err)
		}
	}
	return o.Secure
}

func TestARouteWithTLSNeedsACertificate(t *testing.T) {
	cert, key := testenv.Certificate(t)
	cfg := DefaultConfig()
	cfg.Embedded, cfg.Routes = true, []string{"nats-route://a:4248", "tls://b:4248"}
	if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), "routes[1]: ") || !strings.Contains(err.Error(), "cert_file") {
		t.Errorf("the error is %v", err)
	}
	cfg.TLS = network.PeerTLS{CertFile: cert, KeyFile: key}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}
