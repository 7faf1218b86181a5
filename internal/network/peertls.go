package network

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// PeerTLS has the files for https to a peer. A file that changes is read again at the next handshake, so renewed
// certificates need no restart. If the changed file cannot be read, the previous content stays in use.
type PeerTLS struct {
	// CAFile has the certificates, in PEM, that may sign the server's certificate; "" means the machine's roots.
	CAFile string `yaml:"ca_file,omitempty"`
	// CertFile and KeyFile are the client certificate and its key, in PEM; "" sends none.
	CertFile string `yaml:"cert_file,omitempty"`
	KeyFile  string `yaml:"key_file,omitempty"`
	// ServerName is the name that the server's certificate must have, if it is not the URL's host.
	ServerName string `yaml:"server_name,omitempty"`
}

// Validate reads the files, and returns the first problem.
func (t PeerTLS) Validate() error {
	if (t.CertFile == "") != (t.KeyFile == "") {
		return errors.New("cert_file and key_file belong together: set both or none")
	}
	_, err := (&tlsFiles{from: t}).read()
	return err
}

// Client returns the TLS configuration of a client, from the present content of the files.
func (t PeerTLS) Client() (*tls.Config, error) {
	c, err := (&tlsFiles{from: t}).read()
	if err != nil {
		return nil, err
	}
	c.MinVersion = max(c.MinVersion, tls.VersionTLS12)
	return c, nil
}

// tlsFiles keeps the content of the files of a PeerTLS.
type tlsFiles struct {
	from PeerTLS

	mu     sync.Mutex // guards the fields below
	stamps [3]time.Time
	last   *tls.Config
}

// config returns the client configuration. It reads the files if one of them changed.
func (f *tlsFiles) config() (*tls.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.changed()
	if f.last != nil && now == f.stamps {
		return f.last, nil
	}
	next, err := f.read()
	if err != nil && f.last == nil {
		return nil, err
	}
	if err == nil {
		f.last = next
	}
	f.stamps = now
	return f.last, nil
}

// changed returns the times of the last changes of the files; zero for a file that is not there.
func (f *tlsFiles) changed() (stamps [3]time.Time) {
	for i, name := range []string{f.from.CAFile, f.from.CertFile, f.from.KeyFile} {
		if info, err := os.Stat(name); name != "" && err == nil {
			stamps[i] = info.ModTime()
		}
	}
	return stamps
}

func (f *tlsFiles) read() (*tls.Config, error) {
	c := &tls.Config{ServerName: f.from.ServerName}
	if name := f.from.CAFile; name != "" {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("ca_file: %s has no certificate in PEM", name)
		}
	}
	if f.from.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(f.from.CertFile, f.from.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file and key_file: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// certificateHint says what to do about a server's certificate that was refused.
func certificateHint(err error) string {
	var invalid x509.CertificateInvalidError
	switch {
	case as[x509.HostnameError](err):
		return "the worker's certificate is for another name: set tls.server_name to a name in it"
	case as[x509.UnknownAuthorityError](err):
		return "the worker's certificate is signed by an authority that is not trusted here: set tls.ca_file to its certificate"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the worker's certificate is out of date: renew it, or correct this machine's clock"
	}
	return "the worker's certificate is refused"
}
