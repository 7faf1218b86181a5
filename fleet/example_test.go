package fleet_test

import (
	"fmt"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

func Example() {
	f := fleet.New(fleet.Config{})
	id := f.Put("http://10.0.0.7:8000", fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})

	pool, _ := f.Snapshot().Pool("llama")
	var request fleet.Reservation
	f.Reserve(&request, pool.Holders[0], fleet.Work{UncachedTokens: 900, ContextBlocks: 63}, 0)
	const later = 5_000_000 // nanoseconds
	load := f.Snapshot().LoadAt(pool.Holders[0], later)
	fmt.Println(load.Requests, "request,", load.PrefillTokens, "tokens to compute, another", load.Backlog.Round(time.Millisecond))
	request.FirstToken(40_000_000)
	request.Release(90_000_000)

	f.SetHealth(id, false, "connection refused")
	w := f.Snapshot().Worker(pool.Holders[0])
	fmt.Println(w.URL, w.Ready, w.Why)
	// Output:
	// 1 request, 900 tokens to compute, another 31ms
	// http://10.0.0.7:8000 false connection refused
}
