package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// pairs counts the pairs of ports that FreePort looked at. It begins at random, because other test processes look, too.
var pairs atomic.Uint32

func init() { pairs.Store(rand.Uint32()) }

// FreePort returns a TCP port that is free at the moment; the next port is free, too. A process is given the same port
// again only after some ten thousand others. The port is below 32768, because an engine may begin to listen on it only
// minutes later. Meanwhile the system gives ports from 32768 on to connections and to listeners on port 0.
func FreePort(t testing.TB) int {
	t.Helper()
	const first, end = 10_000, 32_768
	for range 100 {
		if port := first + 2*int(pairs.Add(1)%((end-first)/2)); free(port) && free(port+1) {
			return port
		}
	}
	t.Fatalf("find a free port: a hundred between %d and %d are taken", first, end)
	return 0
}

// free reports whether a listener can open the port on all addresses. The port is closed when free returns.
//
// A child that this process forks while the listener is open holds it until it begins its program. So Close alone does
// not close the port: it is closed when it refuses a connection.
func free(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return false
	}
	_ = l.Close()
	return Poll(time.Second, func() bool {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}
