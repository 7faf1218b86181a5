package testenv

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// DNS is a small DNS server on a UDP port of this machine, with records of the types A, AAAA and SRV (RFC 1035,
// RFC 3596, RFC 2782).
type DNS struct {
	conn net.PacketConn

	mu      sync.Mutex // guards the fields below
	records map[string][]string
	failing bool
}

// NewDNS starts a server without records. It ends with the test.
func NewDNS(t testing.TB) *DNS {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &DNS{conn: conn, records: map[string][]string{}}
	ended := make(chan struct{})
	go func() { // ends when the cleanup closes conn
		defer close(ended)
		for buffer := make([]byte, 512); ; {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if answer := d.answer(buffer[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from) // a lost answer is asked for again
			}
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-ended })
	return d
}

// Set gives a name, with its last dot, the records: addresses, or host:port for SRV. Without records the name does not
// exist.
func (d *DNS) Set(name string, records ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.records[name] = slices.Clone(records)
}

// Fail makes the server answer each question with a failure (SERVFAIL), or ends this.
func (d *DNS) Fail(failing bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failing = failing
}

// Resolver returns a resolver that asks this server.
func (d *DNS) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", d.conn.LocalAddr().String())
	}}
}

// answer returns the answer to a query with one question; nil if it cannot be read.
func (d *DNS) answer(query []byte) []byte {
	const head = 12
	at, name := head, ""
	for at < len(query) && query[at] != 0 {
		end := at + 1 + int(query[at])
		if end > len(query) {
			return nil
		}
		name, at = name+string(query[at+1:end])+".", end
	}
	if at+5 > len(query) {
		return nil
	}
	kind, question := binary.BigEndian.Uint16(query[at+1:]), query[head:at+5]
	d.mu.Lock()
	defer d.mu.Unlock()
	records, code, count := d.records[strings.ToLower(name)], 0, 0
	switch {
	case d.failing:
		records, code = nil, 2 // SERVFAIL
	case len(records) == 0:
		code = 3 // NXDOMAIN
	}
	var body []byte
	for _, r := range records {
		var data []byte
		of := uint16(33) // SRV
		if a, err := netip.ParseAddr(r); err == nil {
			if of, data = 1, a.AsSlice(); a.Is6() {
				of = 28
			}
		} else {
			host, port, _ := net.SplitHostPort(r)
			n, _ := strconv.Atoi(port)
			data = binary.BigEndian.AppendUint16([]byte{0, 1, 0, 1}, uint16(n)) // priority and weight 1
			for label := range strings.FieldsFuncSeq(host, func(r rune) bool { return r == '.' }) {
				data = append(append(data, byte(len(label))), label...)
			}
			data = append(data, 0)
		}
		if of != kind {
			continue
		}
		count++
		body = append(body, 0xc0, head) // the name of the question
		body = binary.BigEndian.AppendUint16(body, of)
		body = append(body, 0, 1, 0, 0, 0, 5) // class IN, five seconds
		body = append(binary.BigEndian.AppendUint16(body, uint16(len(data))), data...)
	}
	out := append(append([]byte{}, query[:2]...), 0x81, 0x80|byte(code), 0, 1, 0, byte(count), 0, 0, 0, 0)
	return append(append(out, question...), body...)
}
