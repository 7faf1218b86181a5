package snapshot

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// failure is about a peer whose last snapshot failed.
type failure struct {
	kind  string        // why it failed: the log has it once
	until time.Time     // the peer is not asked for single holders before
	busy  bool          // it was giving other snapshots
	limit time.Duration // how long the next snapshot of this peer may take; 0: index.peer_timeout
}

// failedPause is the time that a peer that failed is not asked for single holders: each request to a silent peer delays
// the other holders by peerSilence.
const failedPause = 10 * time.Second

// attempt is how a request to a peer failed.
type attempt struct {
	err    error
	took   time.Duration
	late   bool // the time for the request ended
	useful bool // the peer gave a checkpoint before
	start  bool // the request was one of the start
}

// pace returns how long a peer that failed is not asked for single holders, and how long its next snapshot may take.
// limit is what the last one could take. most is index.peer_timeout.
//
// Only one peer is asked at a time. So a peer that gives nothing in its time, because it stands still at one holder,
// may take only silence the next time, and then twice as long each time: a large holder may need more than silence. The
// pauses grow, too: such a peer takes a sixth of the time at most.
func (a *attempt) pace(limit, silence, most time.Duration) (pause, next time.Duration) {
	switch {
	case a.late && a.took < min(silence, most/2): // earlier peers used up the time
		return 0, limit
	case a.late && (a.start || a.useful): // it has more than index.peer_timeout is enough for
		return 0, max(limit, silence)
	case a.late:
		next = min(max(2*limit, silence), most)
		return max(failedPause, 5*next), next
	case errors.Is(a.err, errBusy):
		return time.Second, limit
	}
	return failedPause, limit
}

// errBusy means that a peer gives other snapshots.
var errBusy = errors.New("the peer is busy")

// errSilent means that a peer sends nothing.
var errSilent = errors.New("it sends nothing")

// refusal is an answer of a peer that is no snapshot.
type refusal struct {
	status int
	text   string
	// unread means that the answer is net/http's to a request without TLS at a port with TLS.
	unread bool
}

func (r *refusal) Error() string { return fmt.Sprintf("status %d: %s", r.status, r.text) }

func (r *refusal) Is(target error) bool {
	return target == errBusy && r.status == http.StatusServiceUnavailable
}

// next says what to do about the answer; "" if time helps, or if its text says it.
func (r *refusal) next() string {
	switch {
	case r.unread:
		return "the peer speaks TLS: write https:// in index.peers"
	case r.status == http.StatusUnauthorized:
		return "give both routers the same admin key (WARMPATH_ADMIN_KEY, admin.key_file or admin.key), " +
			"or both index services the same WARMPATH_INDEX_KEY"
	case r.status == http.StatusNotFound:
		return "index.peers must name the admin listeners of routers that have an index of their own (admin.listen, port 9090 by default); for warmpath index those of other index services"
	}
	return ""
}

// explain returns what kind of failure err is, and what the operator does next; "" if nothing is to be done, or if err
// says it. Two errors of one kind may have different texts, with addresses and numbers.
func explain(err error, late bool) (kind, next string) {
	refused, dns, certificate := new(refusal), new(net.DNSError), new(tls.CertificateVerificationError)
	switch {
	case late, errors.Is(err, errSilent):
		return "too late", ""
	case errors.As(err, &refused):
		return fmt.Sprint("status ", refused.status), refused.next()
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused", "nothing listens at this address: start the router there, or correct the address in index.peers"
	case errors.As(err, &dns):
		return "unknown name", "correct the name in index.peers"
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, new(tls.RecordHeaderError)):
		return "no TLS", "the peer speaks no TLS at this port: write http:// in index.peers"
	case errors.As(err, &certificate):
		return "certificate", "set index.tls.ca_file to the certificate of its authority, and index.tls.server_name to a name in its certificate"
	case strings.Contains(err.Error(), "remote error") && strings.Contains(err.Error(), "certificate"):
		return "own certificate", "set index.tls.cert_file and index.tls.key_file to a certificate that the peer accepts"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "broken connection", ""
	}
	for _, known := range []error{errForeign, errVersion, errDamaged, errCut, errLarge} {
		if errors.Is(err, known) {
			return known.Error(), ""
		}
	}
	return "other", ""
}

// short returns an error of net/http without the URL, which names up to mostAsked holders, and without addresses.
func short(err error) error {
	whole, op := new(url.Error), new(net.OpError)
	if errors.As(err, &op) {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	if errors.As(err, &whole) {
		return whole.Err
	}
	return err
}
