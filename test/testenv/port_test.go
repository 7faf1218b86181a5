package testenv_test

import (
	"fmt"
	"net"
	"os/exec"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// A process that begins while a port is looked at does not keep it open. Without the wait of FreePort, one port of
// some hundred cannot be opened here.
func TestAFreePortCanBeOpenedWhileProcessesBegin(t *testing.T) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends when stop is closed; waited for below
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				_ = exec.Command("true").Run()
			}
		}
	}()
	seen := map[int]bool{}
	for range 500 {
		port := testenv.FreePort(t)
		if seen[port] {
			t.Errorf("port %d was given twice", port)
		}
		seen[port] = true
		for _, port := range []int{port, port + 1} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				t.Error(err)
				continue
			}
			_ = l.Close()
		}
	}
	close(stop)
	<-ended
}
