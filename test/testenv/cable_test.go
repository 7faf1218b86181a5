package testenv_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

func TestACableIsCutMendedAndDelayed(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // ends when the listener is closed; the cleanup waits
		defer close(ended)
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }() // ends when the cable is cut
		}
	}()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	cable := testenv.NewCable(t, server.Addr().String())
	open := func() net.Conn {
		conn, err := net.Dial("tcp", cable.Address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		return conn
	}
	echo := func(conn net.Conn) error {
		if _, err := conn.Write([]byte("hello")); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, make([]byte, 5))
		return err
	}
	conn := open()
	if err := echo(conn); err != nil {
		t.Fatalf("a whole cable: %v", err)
	}
	const delay = 50 * time.Millisecond
	cable.SetDelay(delay)
	began := time.Now()
	if err := echo(conn); err != nil || time.Since(began) < 2*delay {
		t.Errorf("there and back took %v with a delay of %v in each direction: %v", time.Since(began), delay, err)
	}
	cable.SetDelay(0)
	cable.Cut()
	if echo(conn) == nil || echo(open()) == nil {
		t.Error("a cable that is cut carries bytes")
	}
	cable.Mend()
	if err := echo(open()); err != nil {
		t.Errorf("a cable that is mended: %v", err)
	}
}
