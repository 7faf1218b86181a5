package gateway

import (
	"net"
	"net/http"
	"time"

	"github.com/warmpath/warmpath/internal/telemetry"
)

// note is the writer of a request that gets a line in the access log. It counts what the client got.
type note struct {
	http.ResponseWriter
	g    *Gateway
	line telemetry.Access
}

// note returns the writer for a request that gets a line in the access log, nil if it gets none. The probes of load
// balancers get no lines.
func (g *Gateway) note(w http.ResponseWriter, r *http.Request) *note {
	if !g.AccessLog.Takes() {
		return nil
	}
	if to := routeOf(r.URL.Path); to != nil && to.open {
		return nil
	}
	client := r.RemoteAddr
	if host, _, err := net.SplitHostPort(client); err == nil {
		client = host
	}
	return &note{ResponseWriter: w, g: g, line: telemetry.Access{
		Time: time.Now(), Client: client, ForwardedFor: shortened(r.Header.Get("X-Forwarded-For")), Method: shortened(r.Method), Path: shortened(r.URL.Path), Protocol: r.Proto,
		RequestID: shortened(r.Header.Get(headerRequestID)),
	}}
}

// maxLogged bounds, in bytes, a text of the client in the access log. Paths and chains of proxies are shorter.
const maxLogged = 512

func shortened(s string) string { return s[:min(len(s), maxLogged)] }

// WriteHeader notes the status. An informational status (1xx) is not the answer.
func (n *note) WriteHeader(status int) {
	if n.line.Status == 0 && status >= 200 {
		n.line.Status = status
	}
	n.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes of the answer.
func (n *note) Write(p []byte) (int, error) {
	if n.line.Status == 0 {
		n.line.Status = http.StatusOK
	}
	written, err := n.ResponseWriter.Write(p)
	n.line.BytesOut += int64(written)
	return written, err
}

// Unwrap lets http.ResponseController find the client's writer.
func (n *note) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// end writes the line. It also runs when the handler panics.
func (n *note) end() {
	n.line.TotalMS = milliseconds(time.Since(n.line.Time))
	n.g.AccessLog.Add(&n.line, accessBytes+len(n.line.Path)+len(n.line.Model))
}

// accessBytes is about the memory of a line of the access log.
const accessBytes = 700

// noteRecord copies what the exchange knows into the line of the access log.
func (x *exchange) noteRecord() {
	n, ok := x.w.(*note)
	if !ok {
		return
	}
	n.line.Take(&x.rec)
	if t := x.visit.tenant; t != nil {
		n.line.Tenant = t.Name
	}
	if x.body != nil {
		n.line.BytesIn = int64(len(x.body.Bytes))
	}
}
