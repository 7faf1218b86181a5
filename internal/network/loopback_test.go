package network

import "testing"

func TestLoopbackAddressesAreReachedFromThisMachineOnly(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "[::ffff:127.0.0.1]:1": true, "localhost:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "router:1": false, "127.0.0.1": false, "": false,
		"localhost.example.com:1": false, "127.0.0.1.example.com:1": false,
	} {
		if got := Loopback(address); got != want {
			t.Errorf("Loopback(%q) = %v", address, got)
		}
	}
}
