package testenv_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// frame is a line of NATS's protocol, with the payload that belongs to it.
// See https://docs.nats.io/reference/reference-protocols/nats-protocol.
type frame struct {
	text    []byte
	message bool // PUB or MSG: a message of a client, or one to a client
}

// readFrame reads a frame.
func readFrame(from *bufio.Reader) (f frame, err error) {
	if f.text, err = from.ReadBytes('\n'); err != nil {
		return f, err
	}
	fields := strings.Fields(string(f.text))
	if len(fields) == 0 {
		return f, nil
	}
	switch verb := strings.ToUpper(fields[0]); verb {
	case "PUB", "MSG", "HPUB", "HMSG":
		n, err := strconv.Atoi(fields[len(fields)-1])
		if err != nil || n < 0 || n > 1<<24 {
			return f, fmt.Errorf("read a frame of NATS: %q", f.text)
		}
		rest := make([]byte, n+len("\r\n"))
		_, err = io.ReadFull(from, rest)
		f.text, f.message = append(f.text, rest...), true
		return f, err
	}
	return f, nil
}

// heldBack is how long a message waits for the next one, with which it changes places.
const heldBack = 40 * time.Millisecond

// shuffler carries frames over a cable, and swaps messages.
type shuffler struct {
	swapped atomic.Int64 // pairs of messages that changed their order
}

// carry carries frames until one end closes, and swaps each two messages that follow each other within heldBack. Other
// frames pass them. TCP itself keeps the order of its bytes, so only whole messages can change places: as they do
// where messages of one sender take two ways.
func (s *shuffler) carry(to, from net.Conn) {
	frames := make(chan frame)
	var wg sync.WaitGroup
	wg.Go(func() { // ends when an end closes; waited for below
		defer close(frames)
		for in := bufio.NewReader(from); ; {
			f, err := readFrame(in)
			if err != nil {
				return
			}
			frames <- f
		}
	})
	var held []byte
	timer := time.NewTimer(time.Hour)
	for open := true; open; {
		var out []byte
		select {
		case f, more := <-frames:
			switch {
			case !more:
				out, held, open = held, nil, false
			case !f.message:
				out = f.text
			case held == nil:
				held = f.text
				timer.Reset(heldBack)
			default:
				out, held = append(bytes.Clone(f.text), held...), nil
				s.swapped.Add(1)
			}
		case <-timer.C:
			out, held = held, nil
		}
		if len(out) > 0 {
			_, _ = to.Write(out) // after an error the rest is lost
		}
	}
	_ = to.Close()
	wg.Wait()
}

// Messages of one router come in another order, all the time. Each packet that another one overtakes is dropped as an
// old one, and what it told is asked for.
func TestRoutersShareThoughMessagesChangePlaces(t *testing.T) {
	testenv.Binary(t)
	port := testenv.FreePort(t)
	natsServer(t, port)
	var lines []*shuffler
	r := startRouters(t, 3, startEngines(t, 4), func(int) string {
		s := &shuffler{}
		lines = append(lines, s)
		return fmt.Sprintf(`{nats: "nats://%s"}`, testenv.NewCableWith(t, fmt.Sprintf("127.0.0.1:%d", port), s.carry).Address())
	})
	r.together(t, 2)
	c := r.startClients(t, 6)
	testenv.Until(t, "requests are served meanwhile", func() bool { return c.sent.Load() >= 80 })
	c.check(t)
	ends := []func(){r.open(t, 0, 2), r.open(t, 1, 2), r.open(t, 2, 1)}
	quick(t, "one view though messages change places", r.one(t, 5, 0, 1, 2), time.Second)
	for _, end := range ends {
		end()
	}
	quick(t, "one view after the ends", r.one(t, 0, 0, 1, 2), time.Second)
	swapped, old, repairs := int64(0), uint64(0), uint64(0)
	for i, g := range r.all {
		var s replicas
		testenv.JSON(t, g.Admin+"/admin/replicas", &s)
		swapped, old, repairs = swapped+lines[i].swapped.Load(), old+s.Counts.Dropped["old"], repairs+s.Counts.Repairs
	}
	t.Logf("%d pairs of messages changed places; %d packets were dropped as old, and views were repaired %d times", swapped, old, repairs)
	if swapped < 20 || old < 10 || repairs < 6 { // each router repairs its view of each other one at its start
		t.Errorf("the test shows little: %d swaps, %d old packets, %d repairs", swapped, old, repairs)
	}
}
