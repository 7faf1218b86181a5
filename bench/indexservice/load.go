package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"log"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// applied is the number of block events so far.
var applied atomic.Int64

// load asks at a fixed rate over one connection, and measures from the planned time of each question. It writes frames
// of HTTP/2 itself: a client of net/http takes several times as long for a question as the service.
func load(address, form string, rate int, duration time.Duration, drive *driver) result {
	transport, what, _ := strings.Cut(form, "/")
	if transport == "echo" {
		transport = "ask" // the same frames, to another address
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	from := bufio.NewReaderSize(c, 64<<10)
	l := &loader{conn: from, out: http2.NewFramer(c, nil), in: http2.NewFramer(nil, from), transport: transport, sent: map[uint32]time.Duration{}, credit: 65535, began: time.Now()}
	l.room = sync.NewCond(&l.mu)
	var bodies [][]byte
	for n := range prompts {
		b := body(what, n)
		if transport != "h2" {
			b = append([]byte{0, byte(len(b) >> 24), byte(len(b) >> 16), byte(len(b) >> 8), byte(len(b))}, b...)
		}
		bodies = append(bodies, b)
	}
	head := headers(transport, what, address)
	if transport == "tcp" {
		l.credit = 1 << 50
		go l.readPlain() // ends with the process, as read does
	} else {
		_, err := io.WriteString(c, http2.ClientPreface)
		must(err)
		must(l.out.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}))
		must(l.out.WriteWindowUpdate(0, 1<<30))
		if transport == "ask" {
			must(l.out.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head, EndHeaders: true}))
			l.streamCredit = 65535
		}
		go l.read()
	}
	total := int(float64(rate) * duration.Seconds())
	every := duration / time.Duration(total)
	l.began = time.Now()
	var buffer bytes.Buffer
	frames := http2.NewFramer(&buffer, nil)
	late := make([]time.Duration, 0, total)
	for i := range total {
		due := time.Duration(i) * every
		for {
			now := time.Since(l.began)
			drive.to(now)
			if now >= due {
				break
			}
			time.Sleep(min(due-now, 20*time.Microsecond)) // up to a millisecond, the unit in which the runtime waits
		}
		late = append(late, time.Since(l.began)-due)
		stream, b := uint32(2*i+1), bodies[i%len(bodies)]
		l.mu.Lock()
		for l.credit < len(b) || transport == "ask" && l.streamCredit < len(b) {
			l.room.Wait()
		}
		l.credit -= len(b)
		l.streamCredit -= len(b)
		l.sent[stream] = due
		if transport == "ask" || transport == "tcp" {
			l.order, stream = append(l.order, stream), 1
		}
		buffer.Reset()
		switch transport {
		case "tcp":
			buffer.Write(b)
		case "ask":
			writeData(frames, 1, false, b)
		default:
			must(frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head, EndHeaders: true}))
			writeData(frames, stream, true, b)
		}
		_, err := c.Write(buffer.Bytes())
		l.mu.Unlock()
		must(err)
	}
	for limit := time.Now().Add(5 * time.Second); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		l.mu.Lock()
		left := len(l.sent)
		l.mu.Unlock()
		if left == 0 {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.times)
	slices.Sort(late)
	at := func(list []time.Duration, share float64) float64 {
		if len(list) == 0 {
			return 0
		}
		return float64(list[min(int(share*float64(len(list))), len(list)-1)].Nanoseconds()) / 1000
	}
	return result{Asked: total, Failed: total - len(l.times) + l.bad, P50: at(l.times, .5), P90: at(l.times, .9), P99: at(l.times, .99), P999: at(l.times, .999), Late: at(late, .99)}
}

// driver makes the service apply block events at a rate.
type driver struct {
	conn net.Conn
	rate int // blocks a second
	done int // announcements
}

func newDriver(address string, rate int) *driver {
	c, err := net.Dial("tcp", address)
	must(err)
	return &driver{conn: c, rate: rate}
}

// to orders the announcements that are due at a time after the beginning.
func (d *driver) to(now time.Duration) {
	if due := int(now.Seconds() * float64(d.rate) / step); due > d.done {
		_, err := d.conn.Write(make([]byte, due-d.done))
		must(err)
		d.done = due
	}
}

// writeData writes b in frames of the usual size.
func writeData(to *http2.Framer, stream uint32, end bool, b []byte) {
	for len(b) > 16384 {
		must(to.WriteData(stream, false, b[:16384]))
		b = b[16384:]
	}
	must(to.WriteData(stream, end, b))
}

// loader is one connection.
type loader struct {
	conn      io.Reader
	out, in   *http2.Framer
	transport string
	began     time.Time
	pending   []byte // the beginning of a message whose end was not read yet

	mu           sync.Mutex // guards the fields below, and writing
	room         *sync.Cond // credit has grown
	sent         map[uint32]time.Duration
	times        []time.Duration
	order        []uint32 // questions of a stream, whose answers have the same order
	credit       int      // bytes that the service takes, and takes of the one stream
	streamCredit int
	bad          int // answers that are no success
}

// read reads answers.
func (l *loader) read() {
	decoder := hpack.NewDecoder(4096, nil)
	for {
		f, err := l.in.ReadFrame()
		if err != nil {
			log.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				window, has := f.Value(http2.SettingInitialWindowSize)
				l.mu.Lock()
				if has {
					l.streamCredit += int(window) - 65535
					l.room.Signal()
				}
				must(l.out.WriteSettingsAck())
				l.mu.Unlock()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				l.mu.Lock()
				must(l.out.WritePing(true, f.Data))
				l.mu.Unlock()
			}
		case *http2.WindowUpdateFrame:
			l.mu.Lock()
			if f.StreamID == 0 {
				l.credit += int(f.Increment)
			} else {
				l.streamCredit += int(f.Increment)
			}
			l.room.Signal()
			l.mu.Unlock()
		case *http2.HeadersFrame:
			fields, err := decoder.DecodeFull(f.HeaderBlockFragment())
			must(err)
			for _, h := range fields {
				if h.Name == ":status" && h.Value != "200" || h.Name == "grpc-status" && h.Value != "0" {
					l.mu.Lock()
					l.bad++
					l.mu.Unlock()
				}
			}
			if f.StreamEnded() {
				l.end(f.StreamID)
			}
		case *http2.DataFrame:
			if l.transport == "ask" {
				l.messages(f.Data())
				continue
			}
			if f.StreamEnded() {
				l.end(f.StreamID)
			}
		case *http2.RSTStreamFrame:
			log.Fatalf("the service reset a stream: %v", f.ErrCode)
		case *http2.GoAwayFrame:
			log.Fatalf("the service ends the connection: %v", f.ErrCode)
		}
	}
}

// messages takes messages of a stream: a byte, the length in four bytes, and an answer each.
func (l *loader) messages(b []byte) {
	l.pending = append(l.pending, b...)
	for len(l.pending) >= 5 {
		n := 5 + int(binary.BigEndian.Uint32(l.pending[1:]))
		if len(l.pending) < n {
			break
		}
		l.mu.Lock()
		next := l.order[0]
		l.order = l.order[1:]
		if l.transport == "ask" && bytes.HasPrefix(l.pending[5:], []byte{6 << 3}) { // a code comes first if there is one
			l.bad++
		}
		l.mu.Unlock()
		l.end(next)
		l.pending = l.pending[n:]
	}
	l.pending = append([]byte(nil), l.pending...)
}

// readPlain reads answers without HTTP/2.
func (l *loader) readPlain() {
	b := make([]byte, 64<<10)
	for {
		n, err := l.conn.Read(b)
		must(err)
		l.messages(b[:n])
	}
}

// end notes the end of an answer.
func (l *loader) end(stream uint32) {
	now := time.Since(l.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	if due, ok := l.sent[stream]; ok {
		l.times = append(l.times, now-due)
		delete(l.sent, stream)
	}
}

// headers returns the encoded header of a question. It uses no dynamic table, so it is the same for all.
func headers(transport, what, address string) []byte {
	path, kind := "/query_by_hash", "application/x-protobuf"
	switch {
	case transport == "grpc":
		path, kind = "/warmpath.index.v1.Index/Score", "application/grpc"
	case transport == "ask":
		path, kind = "/warmpath.index.v1.Index/Ask", "application/grpc"
	case strings.HasPrefix(what, "json"):
		kind = "application/json"
	}
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSize(0)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", address}, {"content-type", kind}, {"te", "trailers"}} {
		must(e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1], Sensitive: true}))
	}
	return b.Bytes()
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
