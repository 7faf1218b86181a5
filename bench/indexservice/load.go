package main

import (
	"bytes"
	"encoding/binary"
	"log"
	"math"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"
)

// applied is the number of block events so far.
var applied atomic.Int64

// load asks at a fixed rate over one connection, and measures from the planned time of each question. It writes frames
// of HTTP/2 itself: a client of net/http takes several times as long for a question as the service. One thread does
// all, and waits in ppoll: the timers of the Go runtime may be a millisecond late, the unit in which it waits.
func load(address, form string, rate int, duration time.Duration, drive *driver) result {
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // a load takes some 200 MB
	must(unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0))
	transport, what, _ := strings.Cut(form, "/")
	if transport == "echo" {
		transport = "ask" // the same frames, to another address
	}
	var bodies [][]byte
	for n := range prompts {
		b := body(what, n)
		if transport != "h2" {
			b = append([]byte{0, byte(len(b) >> 24), byte(len(b) >> 16), byte(len(b) >> 8), byte(len(b))}, b...)
		}
		bodies = append(bodies, b)
	}
	l := newLoader(address, transport, headers(transport, what, address))
	total := int(float64(rate) * duration.Seconds())
	every := duration / time.Duration(total)
	late := make([]time.Duration, 0, total)
	l.began = time.Now()
	for asked := 0; ; {
		now := time.Since(l.began)
		drive.to(now)
		for len(late) < total && now >= time.Duration(len(late))*every {
			late = append(late, now-time.Duration(len(late))*every)
		}
		for asked < len(late) && l.ask(asked, bodies[asked%len(bodies)], time.Duration(asked)*every) {
			asked++
		}
		l.write()
		if asked == total && len(l.sent) == 0 || now > duration+5*time.Second {
			break
		}
		until := min(drive.next(), now+time.Second)
		if len(late) < total {
			until = min(until, time.Duration(len(late))*every)
		}
		l.wait(until - time.Since(l.began))
	}
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

// next returns the time after the beginning at which the next announcement is due.
func (d *driver) next() time.Duration {
	if d.rate == 0 {
		return math.MaxInt64
	}
	return time.Duration(float64(d.done+1)*step/float64(d.rate)*1e9) + 1
}

// writeData writes b in frames of the usual size.
func writeData(to *http2.Framer, stream uint32, end bool, b []byte) {
	for len(b) > 16384 {
		must(to.WriteData(stream, false, b[:16384]))
		b = b[16384:]
	}
	must(to.WriteData(stream, end, b))
}

// loader is one connection. One goroutine uses it.
type loader struct {
	fd        int // of a socket that does not block
	transport string
	head      []byte // header of a question
	began     time.Time

	out     bytes.Buffer // frames that the socket has not taken yet
	frames  *http2.Framer
	buffer  []byte // to read into
	in      []byte // bytes that were read, from the beginning of a frame on
	decoder *hpack.Decoder
	pending []byte // messages of a stream, from the beginning of a message on

	sent         map[uint32]time.Duration // the planned time of each question without an answer
	order        []uint32                 // questions of a stream, whose answers have the same order
	credit       int                      // bytes that the service takes, and takes of the one stream
	streamCredit int
	streams      int // streams that the service takes at the same time
	times        []time.Duration
	bad          int // answers that are no success
}

func newLoader(address, transport string, head []byte) *loader {
	c, err := net.Dial("tcp", address)
	must(err)
	file, err := c.(*net.TCPConn).File() // lives as long as the process
	must(err)
	kept = append(kept, file)
	l := &loader{fd: int(file.Fd()), transport: transport, head: head, buffer: make([]byte, 64<<10), decoder: hpack.NewDecoder(4096, nil), sent: map[uint32]time.Duration{}, credit: 65535, streams: 100}
	must(unix.SetNonblock(l.fd, true))
	l.frames = http2.NewFramer(&l.out, nil)
	if transport == "tcp" {
		l.credit = 1 << 50
		return l
	}
	l.out.WriteString(http2.ClientPreface)
	must(l.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}))
	must(l.frames.WriteWindowUpdate(0, 1<<30))
	if transport == "ask" {
		must(l.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head, EndHeaders: true}))
		l.streamCredit = 65535
	}
	return l
}

// kept keeps the files of sockets open.
var kept []*os.File

// ask writes question i. It returns false if the service has no room for it yet.
func (l *loader) ask(i int, b []byte, due time.Duration) bool {
	alone := l.transport != "ask" && l.transport != "tcp" // each question has a stream of its own
	if l.credit < len(b) || l.transport == "ask" && l.streamCredit < len(b) || alone && len(l.sent) >= l.streams {
		return false
	}
	l.credit -= len(b)
	l.streamCredit -= len(b)
	stream := uint32(2*i + 1)
	l.sent[stream] = due
	switch l.transport {
	case "tcp":
		l.order = append(l.order, stream)
		l.out.Write(b)
	case "ask":
		l.order = append(l.order, stream)
		writeData(l.frames, 1, false, b)
	default:
		must(l.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: l.head, EndHeaders: true}))
		writeData(l.frames, stream, true, b)
	}
	return true
}

// write writes what the socket takes.
func (l *loader) write() {
	for l.out.Len() > 0 {
		n, err := unix.Write(l.fd, l.out.Bytes())
		if err == unix.EAGAIN {
			return
		}
		if err != unix.EINTR {
			must(err)
			l.out.Next(n)
		}
	}
}

// wait waits for an answer, or for room in the socket, and reads what there is.
func (l *loader) wait(limit time.Duration) {
	fds := []unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}
	if l.out.Len() > 0 {
		fds[0].Events |= unix.POLLOUT
	}
	timeout := unix.NsecToTimespec(max(limit, 0).Nanoseconds())
	if n, err := unix.Ppoll(fds, &timeout, nil); err != nil && err != unix.EINTR {
		log.Fatal(err)
	} else if n <= 0 || fds[0].Revents&unix.POLLIN == 0 {
		return
	}
	n, err := unix.Read(l.fd, l.buffer)
	if err == unix.EAGAIN || err == unix.EINTR {
		return
	}
	must(err)
	if n == 0 {
		log.Fatal("the service ended the connection")
	}
	if l.transport == "tcp" {
		l.messages(l.buffer[:n])
		return
	}
	l.in = append(l.in, l.buffer[:n]...)
	for len(l.in) >= 9 {
		n := 9 + int(l.in[0])<<16 + int(l.in[1])<<8 + int(l.in[2])
		if len(l.in) < n {
			break
		}
		f, err := http2.NewFramer(nil, bytes.NewReader(l.in[:n])).ReadFrame()
		must(err)
		l.frame(f)
		l.in = l.in[n:]
	}
	l.in = append([]byte(nil), l.in...)
}

// frame takes a frame of the service.
func (l *loader) frame(f http2.Frame) {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			if window, has := f.Value(http2.SettingInitialWindowSize); has {
				l.streamCredit += int(window) - 65535
			}
			if most, has := f.Value(http2.SettingMaxConcurrentStreams); has {
				l.streams = int(most)
			}
			must(l.frames.WriteSettingsAck())
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			must(l.frames.WritePing(true, f.Data))
		}
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			l.credit += int(f.Increment)
		} else {
			l.streamCredit += int(f.Increment)
		}
	case *http2.HeadersFrame:
		fields, err := l.decoder.DecodeFull(f.HeaderBlockFragment())
		must(err)
		for _, h := range fields {
			if h.Name == ":status" && h.Value != "200" || h.Name == "grpc-status" && h.Value != "0" {
				l.bad++
			}
		}
		if f.StreamEnded() {
			l.end(f.StreamID)
		}
	case *http2.DataFrame:
		if l.transport == "ask" {
			l.messages(f.Data())
		} else if f.StreamEnded() {
			l.end(f.StreamID)
		}
	case *http2.RSTStreamFrame:
		log.Fatalf("the service reset a stream: %v", f.ErrCode)
	case *http2.GoAwayFrame:
		log.Fatalf("the service ends the connection: %v", f.ErrCode)
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
		if l.transport == "ask" && bytes.HasPrefix(l.pending[5:], []byte{6 << 3}) { // a code comes first if there is one
			l.bad++
		}
		l.end(l.order[0])
		l.order, l.pending = l.order[1:], l.pending[n:]
	}
	l.pending = append([]byte(nil), l.pending...)
}

// end notes the end of an answer.
func (l *loader) end(stream uint32) {
	if due, ok := l.sent[stream]; ok {
		l.times = append(l.times, time.Since(l.began)-due)
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
