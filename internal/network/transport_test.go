package network

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// http.Transport may report either the read or the write. The write comes here after the read and the close.
func TestARefusedCertificateIsToldByTheWriteToo(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	plain, err := tls.Dial("tcp", s.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	c := &refusable{Conn: plain}
	_, read := c.Read(make([]byte, 1))
	c.Close()
	_, write := c.Write([]byte("GET / HTTP/1.1\r\n"))
	for _, err := range []error{read, write} {
		if err == nil || !strings.Contains(Explained(err).Error(), "set tls.cert_file and tls.key_file") {
			t.Errorf("the error is %v", err)
		}
	}
}

// The write comes here after the server of HTTP/1.1 has answered and closed.
func TestAServerWithoutHTTP2IsToldByTheWriteToo(t *testing.T) {
	for said, want := range map[string]bool{"": true, "HTTP/1.1 400 Bad Request\r\n": true, "\x00\x00\x00\x04\x00\x00\x00\x00\x00": false} {
		client, server := net.Pipe()
		c := &unheard{Conn: client}
		if said != "" {
			go func() { _, _ = io.WriteString(server, said) }() // ends when it is read
			if _, err := c.Read(make([]byte, len(said))); err != nil {
				t.Fatal(err)
			}
		}
		_ = server.Close()
		if _, err := c.Write([]byte("PRI * HTTP/2.0\r\n")); err == nil || strings.Contains(err.Error(), "set its protocol to auto or http1") != want {
			t.Errorf("after %q the error is %v", said, err)
		}
	}
}
