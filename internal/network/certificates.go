package network

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// ListenerTLS names the files for TLS at a listener.
type ListenerTLS struct {
	// CertFile and KeyFile are PEM files: the certificate with its chain, and its private key. Without them the listener
	// speaks HTTP without TLS. The router reads them again when they change; connections stay.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ClientCAFile is a PEM file with the certificates of authorities. With it, a client needs a certificate of one of
	// them (mTLS). Only /health and /readiness are answered without one, because few probes can send a certificate.
	ClientCAFile string `yaml:"client_ca_file"`
}

// On reports whether the listener uses TLS.
func (c ListenerTLS) On() bool { return c.CertFile != "" || c.KeyFile != "" || c.ClientCAFile != "" }

// Validate returns all problems of c, each beginning with its key. It reads the files.
func (c ListenerTLS) Validate() error {
	switch {
	case !c.On():
		return nil
	case c.CertFile == "":
		return errors.New("cert_file: TLS needs a certificate")
	case c.KeyFile == "":
		return errors.New("key_file: the certificate needs its private key")
	}
	_, err := c.read()
	return err
}

// Files returns the paths of the files that c names.
func (c ListenerTLS) Files() (paths []string) {
	for _, path := range []string{c.CertFile, c.KeyFile, c.ClientCAFile} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	return paths
}

// Certificates are the certificates of a listener. They can be read again while connections are open: a connection
// keeps the certificate of its handshake. Certificates are safe for concurrent use.
type Certificates struct {
	cfg     ListenerTLS
	current atomic.Pointer[tls.Config]
}

// ReadCertificates reads the files. c is on.
func ReadCertificates(c ListenerTLS) (*Certificates, error) {
	all := &Certificates{cfg: c}
	return all, all.Reload()
}

// Reload reads the files again. If it returns an error, nothing has changed.
func (c *Certificates) Reload() error {
	next, err := c.cfg.read()
	if err == nil {
		c.current.Store(next)
	}
	return err
}

// Expires returns the time at which the present certificate expires.
func (c *Certificates) Expires() time.Time { return c.current.Load().Certificates[0].Leaf.NotAfter }

// Files returns the paths of the files.
func (c *Certificates) Files() []string { return c.cfg.Files() }

// Serve lets server answer on l, with TLS unless c is nil. Each handshake uses the certificates that were read last. It
// returns when the server ends.
func (c *Certificates) Serve(server *http.Server, l net.Listener) error {
	if c == nil {
		return server.Serve(l)
	}
	server.TLSConfig = c.Config()
	return server.ServeTLS(l, "", "")
}

// Config returns a configuration for servers of other protocols. Each handshake uses the certificates that were read
// last.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil },
	}
}

func (c ListenerTLS) read() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("cert_file: read the certificate %s with its key %s: %w", c.CertFile, c.KeyFile, err)
	}
	out := &tls.Config{
		Certificates: []tls.Certificate{pair},
		// TLS 1.0 and 1.1 are deprecated [RFC 8996].
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
	}
	if c.ClientCAFile == "" {
		return out, nil
	}
	pem, err := os.ReadFile(c.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("client_ca_file: %w", err)
	}
	out.ClientCAs = x509.NewCertPool()
	if !out.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("client_ca_file: %s has no certificate in PEM form", c.ClientCAFile)
	}
	// The handler refuses requests without a certificate: it knows the paths of probes.
	out.ClientAuth = tls.VerifyClientCertIfGiven
	// A resumed session would keep the client's certificate after its authority was removed.
	out.SessionTicketsDisabled = true
	return out, nil
}

// MissingCertificate reports whether a connection lacks a client's certificate that the listener requires. state is nil
// for a connection without TLS.
func (c *Certificates) MissingCertificate(state *tls.ConnectionState) bool {
	return c != nil && c.cfg.ClientCAFile != "" && (state == nil || len(state.VerifiedChains) == 0)
}
