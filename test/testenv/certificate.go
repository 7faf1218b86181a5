package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a certificate authority of a test.
type Authority struct {
	File string // the authority's certificate, in PEM form
	Pool *x509.CertPool

	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, File: filepath.Join(t.TempDir(), "ca.pem"), Pool: x509.NewCertPool()}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	a.key = a.newKey()
	der := a.sign(template, template, &a.key.PublicKey)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.Pool.AddCert(a.cert)
	a.write(a.File, "CERTIFICATE", der)
	return a
}

// Certificate makes a certificate of an authority of its own, for a server at 127.0.0.1 and for a client. names are
// further DNS names of the server. certFile also has the authority's certificate, so it is a file of trusted
// authorities, too.
func Certificate(t testing.TB, names ...string) (certFile, keyFile string) {
	t.Helper()
	a, dir := NewAuthority(t), t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	a.Issue(certFile, keyFile, 2, names...)
	chain := a.read(certFile) + a.read(a.File)
	if err := os.WriteFile(certFile, []byte(chain), 0o600); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile
}

// Issue writes a certificate for 127.0.0.1 and the DNS names, with this serial number, and its key. The certificate is
// for a server and for a client. The files replace existing ones as deployment tools do: by a rename.
func (a *Authority) Issue(certFile, keyFile string, serial int64, names ...string) {
	a.t.Helper()
	key := a.newKey()
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der := a.sign(template, a.cert, &key.PublicKey)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(keyFile, "PRIVATE KEY", secret)
	a.write(certFile, "CERTIFICATE", der)
}

func (a *Authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

func (a *Authority) sign(template, parent *x509.Certificate, public *ecdsa.PublicKey) []byte {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

func (a *Authority) write(file, kind string, der []byte) {
	if err := os.WriteFile(file+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		a.t.Fatal(err)
	}
}

func (a *Authority) read(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(text)
}
