package network_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/internal/network"
)

const server = "10.0.0.1"

// dial returns both ends of a connection to port 80 of server.
func dial(t *testing.T, n *network.Memory) (client, accepted net.Conn) {
	t.Helper()
	l, err := n.Host(server).Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	client, err = n.Host("10.0.0.2").Dial(t.Context(), "tcp", server+":80")
	if err != nil {
		t.Fatal(err)
	}
	if accepted, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = client.Close(), accepted.Close(), l.Close() })
	return client, accepted
}

func TestBytesArriveInOrderAndSlowReadersHoldWritersBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, accepted := dial(t, network.NewMemory())
		want := bytes.Repeat([]byte("0123456789"), 100_000)
		go func() {
			if _, err := client.Write(want); err != nil {
				t.Error(err)
			}
			_ = client.(interface{ CloseWrite() error }).CloseWrite()
		}()
		synctest.Wait() // the writer is now blocked, because a million bytes do not fit into the window
		got, err := io.ReadAll(accepted)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, error %v", len(got), err)
		}
		if _, err := accepted.Write([]byte("late")); err != nil {
			t.Errorf("the other direction is closed too: %v", err)
		}
	})
}

func TestDeadlinesAndDelaysAreOfVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := network.NewMemory()
		client, accepted := dial(t, n)
		began := time.Now()
		_ = client.SetReadDeadline(began.Add(time.Minute))
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("error %v after %v", err, time.Since(began))
		}
		_ = client.SetReadDeadline(time.Time{})
		n.Host(server).Delay(3 * time.Second)
		_, _ = accepted.Write([]byte("x"))
		if _, err := client.Read(make([]byte, 1)); err != nil || time.Since(began) != time.Minute+3*time.Second {
			t.Errorf("error %v after %v", err, time.Since(began))
		}
	})
}

func TestFaultsLookLikeThoseOfTheKernel(t *testing.T) {
	one := make([]byte, 1)
	for _, c := range []struct {
		name  string
		fault func(n *network.Memory, client, accepted net.Conn)
		read  error // error that the Read of client must return
	}{
		{"cut", func(n *network.Memory, _, _ net.Conn) { n.Host(server).Cut(80) }, syscall.ECONNRESET},
		{"half-closed", func(n *network.Memory, _, _ net.Conn) { n.Host(server).HalfClose(80) }, io.EOF},
		{"closed", func(_ *network.Memory, _, accepted net.Conn) { _ = accepted.Close() }, io.EOF},
		{"closed with unread bytes", func(_ *network.Memory, client, accepted net.Conn) {
			_, _ = client.Write(one)
			_ = accepted.Close()
		}, syscall.ECONNRESET},
		{"written to after its end", func(_ *network.Memory, client, accepted net.Conn) {
			_ = accepted.Close()
			_, _ = client.Read(one)
			_, _ = client.Write(one)
		}, io.EOF},
		{"closed by itself", func(_ *network.Memory, client, _ net.Conn) { _ = client.Close() }, net.ErrClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := network.NewMemory()
				client, accepted := dial(t, n)
				c.fault(n, client, accepted)
				synctest.Wait()
				if _, err := client.Read(one); !errors.Is(err, c.read) {
					t.Errorf("read: %v, want %v", err, c.read)
				}
				_, _ = client.Close(), accepted.Close()
				if n.Open() != 0 {
					t.Errorf("%d connections are open", n.Open())
				}
			})
		})
	}
}

func TestConnectsAreRefusedOrTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := network.NewMemory()
		host := n.Host("10.0.0.2")
		if _, err := host.Dial(t.Context(), "tcp", server+":80"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
		n.Host(server).Lose(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var timeout net.Error
		if _, err := host.Dial(ctx, "tcp", server+":80"); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("packets are lost: %v", err)
		}
		l, err := n.Host(server).Listen("tcp", ":80")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { n.Host(server).Lose(false) })
		c, err := host.Dial(t.Context(), "tcp", server+":80")
		if err != nil {
			t.Errorf("packets are not lost any more: %v", err)
		}
		_, _ = c.Close(), l.Close() // l never accepted the connection
		if n.Open() != 0 {
			t.Errorf("%d connections are open", n.Open())
		}
	})
}

func TestHTTPRunsOverANetworkInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := network.NewMemory()
		l, err := n.Host(server).Listen("tcp", server+":0")
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-time.After(time.Hour)
			_, _ = io.Copy(w, r.Body)
		})}
		go func() { _ = s.Serve(l) }()
		transport := &http.Transport{DialContext: n.Host("10.0.0.2").Dial}
		resp, err := (&http.Client{Transport: transport}).Post("http://"+l.Addr().String(), "", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "hello" {
			t.Errorf("%q, error %v", text, err)
		}
		_ = resp.Body.Close()
		transport.CloseIdleConnections()
		_ = s.Close()
		synctest.Wait()
		if n.Open() != 0 {
			t.Errorf("%d connections are open", n.Open())
		}
	})
}
