package proxy

import (
	"context"
	"net"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/network"
)

// exhausted is a network whose first dials fail, as on a machine without free ports. fails is the number of dials that
// still fail.
type exhausted struct {
	network.Network
	no    syscall.Errno
	fails atomic.Int64
}

func (n *exhausted) Dial(ctx context.Context, over, address string) (net.Conn, error) {
	if n.fails.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "dial", Net: over, Err: os.NewSyscallError("socket", n.no)}
	}
	return n.Network.Dial(ctx, over, address)
}

func TestALocalFailureSaysNothingAboutTheWorker(t *testing.T) {
	w := answering(t, true, wholeAnswer)
	for _, no := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.EADDRNOTAVAIL, syscall.ENOMEM} {
		n := &exhausted{Network: network.Machine, no: no}
		c := newClient(t, func(cfg *Config) { cfg.Network = n })
		forward := func() Result {
			return c.Forward(context.Background(), attempt(w.url, httptest.NewRecorder()))
		}
		n.fails.Store(2)
		if res := forward(); res.Class != Local || res.Class.WorkerFault() || api.AsError(res.Err).Status != 503 {
			t.Errorf("%v: %v: %v", no, res.Class, res.Err)
		}
		n.fails.Store(1)
		if res := forward(); res.Class != Success {
			t.Errorf("%v once: %v: %v; want a second dial", no, res.Class, res.Err)
		}
	}
}

func TestIdleConnectionsAreGivenUpForADial(t *testing.T) {
	idle, asked := answering(t, true, wholeAnswer), answering(t, true, wholeAnswer)
	n := &exhausted{Network: network.Machine, no: syscall.EMFILE}
	c := newClient(t, func(cfg *Config) { cfg.Network = n })
	for i, url := range []string{idle.url, asked.url} {
		n.fails.Store(int64(i))
		if res := c.Forward(context.Background(), attempt(url, httptest.NewRecorder())); res.Class != Success {
			t.Fatalf("%v: %v", res.Class, res.Err)
		}
	}
	k, _ := c.worker(idle.url)
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.idle) != 0 {
		t.Errorf("%d connections are idle while dials fail", len(k.idle))
	}
}
