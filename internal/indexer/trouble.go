package indexer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// trouble says why a service cannot be used, and what to do about it.
type trouble struct {
	what string // the reason of the trust while it lasts
	next string // what the operator does next
}

// The kinds of trouble.
const (
	noAnswer  = "the index service does not answer"
	noKey     = "the index service refuses the router's key"
	noCert    = "the index service requires a certificate"
	noService = "there is no index service at index.url"
	noTLS     = "the index service cannot be reached over TLS"
	tooLate   = "the index service answers too late"
	failing   = "the index service is busy or fails"
)

// checkURL is what to do when something else answers.
const checkURL = "index.url must be the HTTP address of warmpath index (--listen, port 8090 by default), with https:// if it has TLS"

// troubleOf returns what err, of a request to the service at host, means. hasKey says that the router sent a key, and
// known that the service has answered before.
func troubleOf(err error, host string, hasKey, known bool) trouble {
	refused, dns := new(refusal), new(net.DNSError)
	text := err.Error()
	switch {
	case errors.As(err, &refused):
		return refused.trouble(hasKey)
	case errors.As(err, &dns):
		return trouble{noAnswer, fmt.Sprintf("the name %s is not known here: correct index.url", dns.Name)}
	case errors.Is(err, syscall.ECONNREFUSED):
		return trouble{noAnswer, fmt.Sprintf("nothing listens at %s: start warmpath index there, or correct index.url", host)}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return trouble{noAnswer, fmt.Sprintf("look whether warmpath index runs at %s, and whether a firewall is between", host)}
	case errors.As(err, new(tls.RecordHeaderError)):
		return trouble{noTLS, "it does not speak TLS at this port: write http:// in index.url"}
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return trouble{noTLS, "its certificate is not accepted: set index.tls.ca_file to the certificate of its authority, and index.tls.server_name to a name in its certificate"}
	case strings.Contains(text, "remote error") && strings.Contains(text, "certificate"):
		return trouble{noTLS, "it refuses the router's certificate: set index.tls.cert_file and index.tls.key_file to one that it accepts"}
	case errors.Is(err, errWire), strings.Contains(text, "looked like an HTTP/1.1 header"):
		return trouble{noService, checkURL}
	case known: // it speaks HTTP/2, so it stopped while it answered
	case strings.Contains(text, "HTTP/2"), strings.Contains(text, "http2: "), strings.Contains(text, "unexpected EOF"):
		return trouble{noService, checkURL}
	}
	return trouble{noAnswer, fmt.Sprintf("look whether warmpath index runs at %s", host)}
}

// trouble returns what the answer means.
func (r *refusal) trouble(hasKey bool) trouble {
	switch {
	case r.status == http.StatusUnauthorized && strings.Contains(r.text, "certificate"):
		return trouble{noCert, "set index.tls.cert_file and index.tls.key_file to a certificate that it accepts"}
	case r.status == http.StatusUnauthorized && hasKey:
		return trouble{noKey, "give the router the service's key: WARMPATH_INDEX_KEY, index.key_file or index.key"}
	case r.status == http.StatusUnauthorized:
		return trouble{noKey, "the router has none: set WARMPATH_INDEX_KEY, index.key_file or index.key to the service's key"}
	case r.temporary():
		return trouble{failing, "the router tries again; the log of the service says why"}
	}
	return trouble{noService, checkURL}
}

// noteFailed logs, at most once a minute, that the service answered a question with an error, and returns the error.
func (c *Client) noteFailed(model string, err error) error {
	if err != nil && c.failed.begins(time.Now()) {
		c.log.Warn("the index service answers a question with an error: the request is decided by load",
			"service", c.config.URL, "model", model, "error", c.blank(err.Error()))
	}
	return err
}

// plain returns the text of an error of a connection to the service, without the advice about workers that
// internal/network adds to it.
func plain(err error) string {
	refused := new(refusal)
	if errors.As(err, &refused) {
		return refused.Error()
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		if !strings.Contains(inner.Error(), "the worker") {
			return inner.Error()
		}
	}
	return err.Error()
}
